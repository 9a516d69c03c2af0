//! One `rate_limit_redis` line.

use ngx::ffi::{NGX_LOG_WARN, ngx_http_request_t, ngx_str_t};
use rate_limit_core::algorithm::{Algorithm, BurstParameter};
use rate_limit_core::key;
use rate_limit_core::limit::{self, Quota};
use rate_limit_core::rate::{self, Rate};
use rate_limit_core::text::log::Escaped;

use super::directive::{Directive, text};
use super::value::{ComplexValue, Setting};

const DEFAULT_NAME: &str = "default";

/// The prefix of every Redis key.
const PREFIX: &str = "rl:";

/// A limit as it was configured.
pub(crate) struct Limit {
    key: ComplexValue,
    name: &'static str,
    algorithm: Algorithm,
    rate: Setting<Rate>,
    burst: Option<Setting<u64>>,
    cost: Setting<u64>,
    /// Where neither rate nor burst is a variable.
    quota: Option<Quota>,
    /// The part of the Redis key that all clients have in common.
    head: Vec<u8>,
    written: String,
}

/// A variable has a value that cannot be used; the text says which and what would be right.
pub(crate) struct Unusable(pub(crate) String);

/// The parameters of a line, as they stand there.
#[derive(Default)]
struct Parameters {
    rate: Option<&'static str>,
    name: Option<&'static str>,
    algorithm: Option<&'static str>,
    capacity: Option<&'static str>,
    burst: Option<&'static str>,
    cost: Option<&'static str>,
}

impl Limit {
    pub(super) fn parse(directive: &mut Directive<'_>) -> Result<Self, String> {
        let mut words = directive.arguments();
        let key = text(words.next().ok_or("\"rate_limit_redis\" must have a key")?)?;
        let parameters = Parameters::read(words)?;

        let name = parameters.name.unwrap_or(DEFAULT_NAME);
        if !limit::is_name(name) {
            return Err(invalid("name", name, "1 to 64 of A-Z a-z 0-9 _ - ."));
        }
        let algorithm = parameters.algorithm()?;
        let rate = parameters
            .rate
            .ok_or("\"rate_limit_redis\" must have the \"rate=\" parameter, such as rate=10r/s")?;
        let burst = parameters.burst(algorithm)?;

        let cf = directive.cf();
        let mut limit = Self {
            key: ComplexValue::compile(cf, key)?,
            name,
            algorithm,
            rate: Setting::compile(cf, rate, read_rate)?,
            burst: match burst {
                Some(text) => Some(Setting::compile(cf, text, |text| {
                    read_burst(algorithm.burst_parameter(), text)
                })?),
                None => None,
            },
            cost: Setting::compile(cf, parameters.cost.unwrap_or("1"), read_cost)?,
            quota: None,
            head: key::head(PREFIX, name),
            written: match burst {
                Some(burst) => format!(
                    "algorithm={} rate={rate} {}={burst}",
                    algorithm.name(),
                    algorithm.burst_parameter().name()
                ),
                None => format!("algorithm={} rate={rate}", algorithm.name()),
            },
        };
        limit.check(directive)?;
        Ok(limit)
    }

    /// Checks what is known before the first request.
    fn check(&mut self, directive: &mut Directive<'_>) -> Result<(), String> {
        let burst = self.burst.as_ref().map(Setting::literal);
        let (Some(rate), Some(burst)) =
            (self.rate.literal(), burst.map_or(Some(None), |b| b.map(Some)))
        else {
            return Ok(());
        };
        let quota = self.make_quota(rate, burst)?;
        if let Some(cost) = self.cost.literal().filter(|cost| *cost > quota.limit()) {
            let (name, limit) = (self.name, quota.limit());
            ngx::ngx_conf_log_error!(
                NGX_LOG_WARN,
                directive.cf(),
                "\"cost={cost}\" is above all that the limit \"{name}\" can hold, {limit}: every \
                 request will be rejected"
            );
        }
        self.quota = Some(quota);
        Ok(())
    }

    /// The name that identifies the limit.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// The part of the Redis key that all clients have in common.
    pub(crate) fn head(&self) -> &[u8] {
        &self.head
    }

    /// What the name stands for, store aside, as it was written.
    pub(super) fn written(&self) -> String {
        self.written.clone()
    }

    /// The key of a request; `None` if NGINX is out of memory.
    pub(crate) fn key<'a>(&self, r: &'a mut ngx_http_request_t) -> Option<&'a [u8]> {
        self.key.evaluate(r)
    }

    /// What the client of a request may spend.
    pub(crate) fn quota(&self, r: &mut ngx_http_request_t) -> Result<Quota, Unusable> {
        if let Some(quota) = self.quota {
            return Ok(quota);
        }
        let parameter = self.algorithm.burst_parameter();
        let rate = self.rate.get(r, read_rate).map_err(Unusable)?;
        let burst = match &self.burst {
            Some(burst) => {
                Some(burst.get(r, |text| read_burst(parameter, text)).map_err(Unusable)?)
            }
            None => None,
        };
        self.make_quota(rate, burst).map_err(Unusable)
    }

    /// What a request spends.
    pub(crate) fn cost(&self, r: &mut ngx_http_request_t) -> Result<u64, Unusable> {
        self.cost.get(r, read_cost).map_err(Unusable)
    }

    fn make_quota(&self, rate: Rate, burst: Option<u64>) -> Result<Quota, String> {
        let parameter = self.algorithm.burst_parameter();
        let limit = match parameter {
            BurstParameter::Capacity => burst.unwrap_or(rate.count()),
            BurstParameter::Burst => burst.unwrap_or(0).saturating_add(1),
        };
        Quota::new(self.algorithm, rate, limit).map_err(|error| {
            let (name, value) = match burst {
                Some(burst) => (parameter.name(), burst.to_string()),
                None => ("rate", rate.to_string()),
            };
            format!("\"{name}={value}\" in \"rate_limit_redis\" directive {error}")
        })
    }
}

impl Parameters {
    fn read<'a>(words: impl Iterator<Item = &'a ngx_str_t>) -> Result<Self, String> {
        let mut parameters = Self::default();
        for word in words {
            let word = text(word)?;
            let unknown =
                || format!("invalid parameter \"{word}\" in \"rate_limit_redis\" directive");
            let (name, value) = word.split_once('=').ok_or_else(unknown)?;
            let slot = match name {
                "rate" => &mut parameters.rate,
                "name" => &mut parameters.name,
                "algorithm" => &mut parameters.algorithm,
                "capacity" => &mut parameters.capacity,
                "burst" => &mut parameters.burst,
                "cost" => &mut parameters.cost,
                _ => return Err(unknown()),
            };
            if slot.replace(value).is_some() {
                return Err(format!("duplicate \"{name}=\" in \"rate_limit_redis\" directive"));
            }
        }
        Ok(parameters)
    }

    fn algorithm(&self) -> Result<Algorithm, String> {
        let Some(name) = self.algorithm else { return Ok(Algorithm::default()) };
        Algorithm::from_name(name).ok_or_else(|| {
            let known = Algorithm::ALL.map(Algorithm::name).join(", ");
            invalid("algorithm", name, &format!("one of {known}"))
        })
    }

    /// The burst parameter that belongs to the algorithm.
    fn burst(&self, algorithm: Algorithm) -> Result<Option<&'static str>, String> {
        let (own, other, other_name) = match algorithm.burst_parameter() {
            BurstParameter::Capacity => (self.capacity, self.burst, "burst"),
            BurstParameter::Burst => (self.burst, self.capacity, "capacity"),
        };
        match other {
            None => Ok(own),
            Some(_) => Err(format!(
                "\"{other_name}=\" is no parameter of algorithm={}, which has \"{}=\"",
                algorithm.name(),
                algorithm.burst_parameter().name()
            )),
        }
    }
}

fn read_rate(text: &str) -> Result<Rate, String> {
    text.parse::<Rate>().map_err(|error| invalid_because("rate", text, &error.to_string()))
}

fn read_burst(parameter: BurstParameter, text: &str) -> Result<u64, String> {
    let least = match parameter {
        BurstParameter::Capacity => 1,
        BurstParameter::Burst => 0,
    };
    read_number(parameter.name(), text, least)
}

fn read_cost(text: &str) -> Result<u64, String> {
    read_number("cost", text, 0)
}

fn read_number(name: &str, text: &str, least: u64) -> Result<u64, String> {
    match rate::whole(text) {
        Ok(number) if number >= least => Ok(number),
        _ => Err(invalid(name, text, &format!("a number from {least} to {}", rate::MAX_EXACT))),
    }
}

fn invalid(name: &str, value: &str, expected: &str) -> String {
    invalid_because(name, value, &format!("it must be {expected}"))
}

fn invalid_because(name: &str, value: &str, reason: &str) -> String {
    let value = Escaped(value.as_bytes());
    format!("invalid {name} \"{value}\" in \"rate_limit_redis\" directive: {reason}")
}
