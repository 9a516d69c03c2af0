//! Doubts about a line: it is valid and rarely means what it says, so that a warning says what it does.

use super::{LimitLine, LimitWords, Phase};
use crate::algorithm::Undelayed;
use crate::conf::Directive;
use crate::conf::value::{has_variable, variables};

impl LimitWords<'_> {
    /// All doubts about these words, and the line that they make, as one warning. `is_variable` knows the
    /// variables where the line stands.
    pub fn doubts<V>(
        &self,
        line: &LimitLine<'_, V>,
        is_variable: impl FnOnce(&str) -> bool,
    ) -> Option<String> {
        let doubts = [
            self.key.is_empty().then(|| "the key is empty: no request is limited".to_owned()),
            self.unverified_user(line.phase),
            is_variable(self.key).then(|| name_as_key(self.key)),
            forwarded_key(self.key),
            excessive_cost(line),
            excessive_delay(line),
        ];
        let doubts = doubts.into_iter().flatten().chain(self.chosen_by_client());
        let doubts: Vec<_> =
            doubts.chain(self.settled_by_client()).chain(self.of_later()).collect();
        (!doubts.is_empty()).then(|| doubts.join("; "))
    }

    fn unverified_user(&self, phase: Phase) -> Option<String> {
        let name = "remote_user";
        let numbers = self.numbers().map(|(_, value)| value);
        let mut texts = numbers.chain([self.key]).chain(self.parameters.get("settle"));
        let is_used = texts.any(|text| has_variable(text, name));
        (is_used && phase == Phase::Access).then(|| {
            format!(
                "\"${name}\" is not verified before the access checks have passed: add \"after=auth\""
            )
        })
    }

    /// The numbers that a request brings along.
    fn chosen_by_client(&self) -> impl Iterator<Item = String> {
        self.numbers().filter_map(|(parameter, value)| {
            let is_chosen = |name: &str| {
                // An upload may cost as much as it is long.
                is_of_client(name)
                    || (name.eq_ignore_ascii_case("content_length") && parameter != "cost")
            };
            variables(value).any(is_chosen).then(|| {
                format!(
                    "\"{parameter}={value}\" is whatever the client writes: use a \"map\" of it"
                )
            })
        })
    }

    /// The real cost that a request brings along.
    fn settled_by_client(&self) -> Option<String> {
        let value =
            self.parameters.get("settle").filter(|value| variables(value).any(is_of_client))?;
        Some(format!(
            "\"settle={value}\" is whatever the client writes, and one that writes 0 pays nothing: \
             \"$upstream_http_...\" is what the backend answers"
        ))
    }

    /// The variables that get their values later, in what the limit needs.
    fn of_later(&self) -> impl Iterator<Item = String> {
        self.numbers().chain([("key", self.key)]).filter_map(|(place, value)| {
            let (name, state) =
                variables(value).find_map(|name| Some((name, state_before_value(name)?)))?;
            let hint =
                if place == "cost" { ": \"settle=\" is what a request has cost" } else { "" };
            Some(format!("\"${name}\" in the {place} is {state}{hint}"))
        })
    }

    /// The parameters that may be variables, but for `settle=`.
    fn numbers(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let names = ["rate", "capacity", "burst", "cost"].into_iter();
        names.filter_map(|name| Some((name, self.parameters.get(name)?)))
    }
}

/// The warning of a line that is among `others`, the lines of its level with their places.
pub fn twice<'o>(
    line: &Directive<'_>,
    name: &str,
    others: impl IntoIterator<Item = (&'o Directive<'o>, &'o str)>,
) -> Option<String> {
    let (_, first) = others.into_iter().find(|(other, _)| *other == line)?;
    Some(format!(
        "\"rate_limit_redis\" of the limit \"{name}\" is given twice at one level, first in {first}, as where \
         a file is included twice: both lines charge each request"
    ))
}

/// Whether a variable is what the client writes.
fn is_of_client(name: &str) -> bool {
    ["arg_", "cookie_", "http_"].iter().any(|prefix| has_prefix(name, prefix))
}

/// The value of a variable of NGINX when the limit decides, if it gets its value later.
fn state_before_value(name: &str) -> Option<&'static str> {
    match name.to_ascii_lowercase().as_str() {
        "status" => Some("\"000\" when the limit decides, before there is a response"),
        "request_body" | "request_body_file" => {
            Some("empty when the limit decides, before the body of the request is read")
        }
        name if is_of_response(name) => {
            Some("empty when the limit decides, before there is a response")
        }
        _ => None,
    }
}

/// Whether a variable is NGINX's own, and empty as long as there is no response.
fn is_of_response(name: &str) -> bool {
    let fields =
        ["upstream_http_", "upstream_cookie_", "upstream_trailer_", "sent_http_", "sent_trailer_"];
    let others = [
        "upstream_addr",
        "upstream_bytes_received",
        "upstream_bytes_sent",
        "upstream_cache_status",
        "upstream_connect_time",
        "upstream_header_time",
        "upstream_queue_time",
        "upstream_response_length",
        "upstream_response_time",
        "upstream_status",
    ];
    fields.iter().any(|prefix| has_prefix(name, prefix))
        || others.iter().any(|other| name.eq_ignore_ascii_case(other))
}

fn has_prefix(name: &str, prefix: &str) -> bool {
    name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

/// A variable's `$` is forgotten.
fn name_as_key(key: &str) -> String {
    format!("the key \"{key}\" is a text, one for all clients: the variable is \"${key}\"")
}

fn forwarded_key(key: &str) -> Option<String> {
    let name = "http_x_forwarded_for";
    has_variable(key, name).then(|| {
        format!(
            "\"${name}\" is whatever the client writes, a new key for each request: use the client's \
             address, with \"set_real_ip_from\" behind a proxy"
        )
    })
}

/// Every request costs more than the limit can hold.
fn excessive_cost<V>(line: &LimitLine<'_, V>) -> Option<String> {
    let (cost, limit) = (line.cost.literal()?, line.known_quota?.limit());
    (cost > limit).then(|| {
        format!(
            "\"cost={cost}\" is above all that the limit \"{}\" can hold, {limit}: every request will be \
             rejected",
            line.definition.name
        )
    })
}

/// Every request of the burst passes before the delay begins.
fn excessive_delay<V>(line: &LimitLine<'_, V>) -> Option<String> {
    let Some(Undelayed::UpTo(delay)) = line.undelayed else { return None };
    let burst = match &line.burst {
        Some(burst) => burst.literal()?,
        None => 0,
    };
    (delay > burst).then(|| {
        format!(
            "\"delay={delay}\" is above \"burst={burst}\": no request will be delayed, as with \"nodelay\""
        )
    })
}
