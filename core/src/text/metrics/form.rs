//! The forms of the metrics page, and the choice among them.

use std::cmp::Reverse;

use crate::metrics::labels;

labels! {
    /// A form of the metrics page, in the order of preference. Its name is an argument, and the value of `?format=`.
    #[derive(Default)]
    PageForm::ALL {
        /// Prometheus's text format, version 0.0.4.
        #[default]
        Prometheus = "prometheus",
        /// A JSON object.
        Json = "json",
        /// A page for a browser.
        Html = "html",
    }
}

/// How well a form suits a client: its quality in thousandths, how exactly it is named in `Accept`,
/// and how early.
type Rank = (u16, u8, Reverse<usize>);

impl PageForm {
    /// The form of this name.
    pub fn from_name(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|form| form.name().as_bytes() == name)
    }

    /// The value of `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::Json => "application/json",
            Self::Html => "text/html; charset=utf-8",
        }
    }

    /// The media types that select it. A client that accepts OpenMetrics is Prometheus, which reads
    /// its own format as well.
    fn media_types(self) -> &'static [&'static str] {
        match self {
            Self::Prometheus => &["text/plain", "application/openmetrics-text"],
            Self::Json => &["application/json"],
            Self::Html => &["text/html"],
        }
    }

    /// The one of `forms` that suits a client with this `Accept` best (RFC 9110, section 12.5.1); the first
    /// one if none does.
    pub fn accepted(forms: &[Self], accept: &str) -> Self {
        // The last one of several maxima is taken.
        let best = forms.iter().rev().max_by_key(|form| form.rank(accept));
        best.copied().unwrap_or_default()
    }

    /// `None` if the client does not accept it.
    fn rank(self, accept: &str) -> Option<Rank> {
        let types = self.media_types().iter();
        types.filter_map(|media_type| rank(media_type, accept)).max()
    }
}

/// The rank of a media type: that of the range which names it most exactly.
fn rank(media_type: &str, accept: &str) -> Option<Rank> {
    let ranges = accept.split(',').enumerate().filter_map(|(place, range)| {
        let (range, parameters) = range.split_once(';').unwrap_or((range, ""));
        let exactness = exactness(range.trim(), media_type)?;
        Some((exactness, Reverse(place), quality(parameters)?))
    });
    let (exactness, place, quality) = ranges.max()?;
    (quality > 0).then_some((quality, exactness, place))
}

/// How exactly a range names a media type; `None` if it does not contain it.
fn exactness(range: &str, media_type: &str) -> Option<u8> {
    let (kind, _) = media_type.split_once('/')?;
    match range.split_once('/')? {
        _ if range.eq_ignore_ascii_case(media_type) => Some(2),
        (range_kind, "*") if range_kind.eq_ignore_ascii_case(kind) => Some(1),
        ("*", "*") => Some(0),
        _ => None,
    }
}

/// The quality among the parameters of a range, in thousandths; `None` if it is invalid.
fn quality(parameters: &str) -> Option<u16> {
    for parameter in parameters.split(';') {
        if let Some((name, value)) = parameter.trim().split_once('=')
            && name.eq_ignore_ascii_case("q")
        {
            let quality: f32 = value.parse().ok()?;
            return (0.0..=1.0).contains(&quality).then_some((quality * 1_000.0) as u16);
        }
    }
    Some(1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn accepts(accept: &str, form: PageForm) {
        assert_eq!(PageForm::accepted(&PageForm::ALL, accept), form, "{accept:?}");
    }

    #[test]
    fn the_default_is_for_prometheus() {
        for accept in ["", "*/*", "text/*", "text/plain", "TEXT/PLAIN;version=0.0.4", "*/*;q=0.1"] {
            accepts(accept, PageForm::Prometheus);
        }
        // A client that accepts none gets the default too.
        for accept in ["image/png", "text/plain;q=0", "nonsense", ";;;,,,", "/", "text/html;q=2"] {
            accepts(accept, PageForm::Prometheus);
        }
    }

    /// The `Accept` fields of several versions of Prometheus.
    #[test]
    fn prometheus_gets_its_form() {
        for accept in [
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;\
             version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;\
             encoding=delimited;q=0.6,application/openmetrics-text;version=1.0.0;\
             escaping=allow-utf-8;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            "text/plain;version=0.0.4;q=1,*/*;q=0.1",
        ] {
            accepts(accept, PageForm::Prometheus);
        }
    }

    #[test]
    fn browsers_get_the_page() {
        accepts(
            "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,\
             image/apng,*/*;q=0.8,application/signed-exchange;v=b3;q=0.7",
            PageForm::Html,
        );
        accepts(
            "text/html, application/xhtml+xml, application/xml;q=0.9, */*;q=0.8",
            PageForm::Html,
        );
        accepts("text/html", PageForm::Html);
    }

    #[test]
    fn programs_get_json() {
        accepts("application/json", PageForm::Json);
        accepts("application/json, */*;q=0.5", PageForm::Json);
        accepts("application/*", PageForm::Prometheus);
        // All three have the same quality: the most exact name wins, then the first.
        accepts("application/json, */*", PageForm::Json);
        accepts("*/*, application/json", PageForm::Json);
        accepts("application/json, text/plain, */*", PageForm::Json);
        accepts("text/plain, application/json, */*", PageForm::Prometheus);
    }

    #[test]
    fn the_best_quality_wins() {
        accepts("text/html;q=0.4, application/json;q=0.5, text/plain;q=0.3", PageForm::Json);
        accepts("text/html ; Q=0.9 , application/json ; q=0.8", PageForm::Html);
        accepts("text/html;q=0.999, application/json;q=1.0", PageForm::Json);
        accepts("text/html;level=1;q=0.2, application/json;q=0.3", PageForm::Json);
        // The range that names a type most exactly gives its quality.
        accepts("*/*, text/plain;q=0.1, application/openmetrics-text;q=0.1", PageForm::Json);
        accepts("text/*;q=0.9, text/html;q=0, application/*;q=0.5", PageForm::Prometheus);
        accepts("*/*;q=0.5, text/*;q=0, application/openmetrics-text;q=0", PageForm::Json);
        accepts("text/html;q=nan, application/json;q=0.1", PageForm::Json);
        accepts("text/html;q=-1, application/json;q=0.1", PageForm::Json);
    }

    #[test]
    fn forms_have_their_names() {
        for form in PageForm::ALL {
            assert_eq!(PageForm::from_name(form.name().as_bytes()), Some(form));
        }
        for name in ["", "HTML", "htm", "html ", "xml"] {
            assert_eq!(PageForm::from_name(name.as_bytes()), None);
        }
    }
}
