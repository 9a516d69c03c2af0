//! Doubts about a line: it is valid and rarely means what it says, so that a warning says what it does.

use super::{LimitLine, LimitWords, Phase};
use crate::algorithm::leaky_bucket::Undelayed;
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
            self.unverified_user(line.phase),
            is_variable(self.key).then(|| name_as_key(self.key)),
            forwarded_key(self.key),
            excessive_cost(line),
            excessive_delay(line),
        ];
        let doubts: Vec<_> = doubts.into_iter().flatten().chain(self.chosen_by_client()).collect();
        (!doubts.is_empty()).then(|| doubts.join("; "))
    }

    fn unverified_user(&self, phase: Phase) -> Option<String> {
        let name = "remote_user";
        let numbers = self.numbers().into_iter().filter_map(|(_, value)| value);
        let mut texts = numbers.chain([self.key]).chain(self.parameters.settle);
        let is_used = texts.any(|text| has_variable(text, name));
        (is_used && phase == Phase::Access).then(|| {
            format!(
                "\"${name}\" is not verified before the access checks have passed: add \"after=auth\""
            )
        })
    }

    /// The numbers that a request brings along.
    fn chosen_by_client(&self) -> impl Iterator<Item = String> {
        self.numbers().into_iter().filter_map(|(parameter, value)| {
            let value = value?;
            let is_chosen = |name: &str| {
                let name = name.to_ascii_lowercase();
                // An upload may cost as much as it is long.
                ["arg_", "cookie_", "http_"].iter().any(|prefix| name.starts_with(prefix))
                    || (name == "content_length" && parameter != "cost")
            };
            variables(value).any(is_chosen).then(|| {
                format!(
                    "\"{parameter}={value}\" is whatever the client writes: use a \"map\" of it"
                )
            })
        })
    }

    /// The parameters that may be variables, but for `settle=`.
    fn numbers(&self) -> [(&'static str, Option<&str>); 4] {
        let parameters = &self.parameters;
        [
            ("rate", parameters.rate),
            ("capacity", parameters.capacity),
            ("burst", parameters.burst),
            ("cost", parameters.cost),
        ]
    }
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
            line.name
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
