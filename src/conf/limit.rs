//! One `rate_limit_redis` line.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;

use ngx::ffi::{NGX_LOG_WARN, ngx_http_request_t, ngx_str_t};
use rate_limit_core::algorithm::leaky_bucket::Undelayed;
use rate_limit_core::algorithm::{Algorithm, BurstParameter};
use rate_limit_core::client::Definition;
use rate_limit_core::key::{self, Head};
use rate_limit_core::limit::{self, Quota};
use rate_limit_core::rate::{self, Rate};
use rate_limit_core::redis::script::{Prepared, Question};
use rate_limit_core::text::log::Escaped;

use super::Store;
use super::directive::{Directive, text};
use super::value::{ComplexValue, Setting};
use crate::client::SCRIPTS;
use crate::shm::{LimitRecord, Shared};

const DEFAULT_NAME: &str = "default";

const NO_KEY: &str =
    "\"rate_limit_redis\" must have a key before its parameters, such as $remote_addr";

/// A limit as it was configured.
pub(crate) struct Limit {
    key: ComplexValue,
    name: &'static str,
    algorithm: Algorithm,
    rate: Setting<Rate>,
    burst: Option<Setting<u64>>,
    cost: Setting<u64>,
    /// Of a leaky bucket: which part of the excess is not delayed.
    undelayed: Option<Undelayed>,
    /// Where neither rate nor burst is a variable.
    quota: Option<Quota>,
    /// What follows from the store, once that is known.
    bound: OnceCell<Bound>,
    written: String,
    /// File and line.
    place: String,
    /// What is counted for it, once something is, and in which zone.
    record: Cell<Option<(u64, &'static LimitRecord)>>,
}

/// What follows from the store that a limit keeps its counters in.
struct Bound {
    /// The index of the store among all.
    store: usize,
    /// What its commands have in common.
    definition: Rc<Definition>,
    /// What stands for it in this machine's memory.
    fingerprint: u64,
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
    refill: Option<&'static str>,
    cost: Option<&'static str>,
    delay: Option<&'static str>,
    nodelay: bool,
}

impl Limit {
    pub(super) fn parse(directive: &mut Directive<'_>) -> Result<Self, String> {
        let mut words = directive.arguments();
        let key = words.next().ok_or(NO_KEY).and_then(|word| text(word).map_err(|_| NO_KEY))?;
        if key.starts_with("rate=") {
            return Err(NO_KEY.to_owned());
        }
        let parameters = Parameters::read(words)?;

        let name = parameters.name.unwrap_or(DEFAULT_NAME);
        if !limit::is_name(name) {
            return Err(no_name(name));
        }
        let algorithm = parameters.algorithm()?;
        let rate = parameters
            .rate
            .ok_or("\"rate_limit_redis\" must have the \"rate=\" parameter, such as rate=10r/s")?;
        let burst = parameters.burst(algorithm)?;

        let undelayed = parameters.undelayed(algorithm)?;
        let written = parameters.written(algorithm);
        let place = directive.place();

        let cf = directive.cf();
        let mut limit = Self {
            key: ComplexValue::compile(cf, key)?,
            name,
            algorithm,
            rate: Setting::compile(cf, rate, read_rate)?,
            burst: match burst {
                Some(text) => Some(Setting::compile(cf, text, |text| read_burst(algorithm, text))?),
                None => None,
            },
            cost: Setting::compile(cf, parameters.cost.unwrap_or("1"), read_cost)?,
            undelayed,
            quota: None,
            bound: OnceCell::new(),
            written,
            place,
            record: Cell::new(None),
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

    /// What its commands have in common, once its store is known.
    pub(crate) fn definition(&self) -> Option<&Rc<Definition>> {
        self.bound.get().map(|bound| &bound.definition)
    }

    /// The index of the store that it keeps its counters in, once that is known.
    pub(super) fn store(&self) -> Option<usize> {
        self.bound.get().map(|bound| bound.store)
    }

    /// What stands for the limit in this machine's memory.
    pub(crate) fn fingerprint(&self) -> u64 {
        self.bound.get().map_or(0, |bound| bound.fingerprint)
    }

    /// Says which store it keeps its counters in, the one of this index.
    pub(super) fn bind(&self, index: usize, store: &Store) -> Result<(), String> {
        let head = Head::new(store.prefix(), self.name).ok_or_else(|| no_name(self.name))?;
        self.bound.get_or_init(|| {
            let fingerprint = key::fingerprint(&head);
            let known = self.quota.zip(self.cost.literal());
            let command = known.map(|(quota, cost)| {
                Prepared::new(&SCRIPTS, &Question { head: &head, key: b"", quota, cost })
            });
            Bound { store: index, definition: Rc::new(Definition::new(head, command)), fingerprint }
        });
        Ok(())
    }

    /// What is counted for it.
    pub(crate) fn record(&self, shared: &Shared) -> &'static LimitRecord {
        match self.record.get() {
            Some((zone, record)) if zone == shared.identity() => record,
            _ => {
                let record = shared.limit(self.name);
                self.record.set(Some((shared.identity(), record)));
                record
            }
        }
    }

    /// Of a leaky bucket: which part of the excess is not delayed.
    pub(crate) fn undelayed(&self) -> Option<Undelayed> {
        self.undelayed
    }

    /// What the name stands for, store aside, as it was written.
    pub(super) fn written(&self) -> &str {
        &self.written
    }

    /// Where it stands: file and line.
    pub(super) fn place(&self) -> &str {
        &self.place
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
        let algorithm = self.algorithm;
        let rate = self.rate.get(r, read_rate).map_err(Unusable)?;
        let burst = match &self.burst {
            Some(burst) => {
                Some(burst.get(r, |text| read_burst(algorithm, text)).map_err(Unusable)?)
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
            BurstParameter::Capacity | BurstParameter::None => burst.unwrap_or(rate.count()),
            BurstParameter::Burst => burst.unwrap_or(0).saturating_add(1),
        };
        Quota::new(self.algorithm, rate, limit).map_err(|error| {
            let (name, value) = match parameter.name().zip(burst) {
                Some((name, burst)) => (name, burst.to_string()),
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
            if word == "nodelay" {
                if std::mem::replace(&mut parameters.nodelay, true) {
                    return Err("duplicate \"nodelay\" in \"rate_limit_redis\" directive".into());
                }
                continue;
            }
            let (name, value) = word.split_once('=').ok_or_else(unknown)?;
            let slot = match name {
                "rate" => &mut parameters.rate,
                "name" => &mut parameters.name,
                "algorithm" => &mut parameters.algorithm,
                "capacity" => &mut parameters.capacity,
                "burst" => &mut parameters.burst,
                "refill" => &mut parameters.refill,
                "cost" => &mut parameters.cost,
                "delay" => &mut parameters.delay,
                _ => return Err(unknown()),
            };
            if slot.replace(value).is_some() {
                return Err(format!("duplicate \"{name}=\" in \"rate_limit_redis\" directive"));
            }
        }
        Ok(parameters)
    }

    fn algorithm(&self) -> Result<Algorithm, String> {
        let algorithm = match self.algorithm {
            None => Algorithm::default(),
            Some(name) => Algorithm::from_name(name).ok_or_else(|| {
                let mut known = Algorithm::ALL.map(Algorithm::name).to_vec();
                known.dedup();
                invalid("algorithm", name, &format!("one of {}", known.join(", ")))
            })?,
        };
        match (algorithm, self.refill) {
            (_, None) => Ok(algorithm),
            (Algorithm::TokenBucket, Some("continuous")) => Ok(Algorithm::TokenBucket),
            (Algorithm::TokenBucket, Some("interval")) => Ok(Algorithm::IntervalBucket),
            (Algorithm::TokenBucket, Some(other)) => {
                Err(invalid("refill", other, "continuous or interval"))
            }
            (_, Some(other)) => Err(foreign("refill", other, algorithm)),
        }
    }

    /// The burst parameter that belongs to the algorithm.
    fn burst(&self, algorithm: Algorithm) -> Result<Option<&'static str>, String> {
        let own = algorithm.burst_parameter();
        match (self.capacity, self.burst) {
            (Some(value), _) if own != BurstParameter::Capacity => {
                Err(foreign("capacity", value, algorithm))
            }
            (_, Some(value)) if own != BurstParameter::Burst => {
                Err(foreign("burst", value, algorithm))
            }
            (capacity, burst) => Ok(capacity.or(burst)),
        }
    }

    /// Which part of the excess a leaky bucket does not delay.
    fn undelayed(&self, algorithm: Algorithm) -> Result<Option<Undelayed>, String> {
        if algorithm != Algorithm::LeakyBucket {
            return match (self.delay, self.nodelay) {
                (None, false) => Ok(None),
                (Some(value), _) => Err(foreign("delay", value, algorithm)),
                (None, true) => Err(foreign_parameter("nodelay", algorithm)),
            };
        }
        match (self.delay, self.nodelay) {
            (None, false) => Ok(Some(Undelayed::UpTo(0))),
            (None, true) => Ok(Some(Undelayed::All)),
            (Some(text), false) => Ok(Some(Undelayed::UpTo(read_number("delay", text, 0)?))),
            (Some(_), true) => Err("\"delay=\" and \"nodelay\" of the \"rate_limit_redis\" \
                                    directive exclude each other"
                .to_owned()),
        }
    }

    /// What the name stands for, store aside, as it is written.
    fn written(&self, algorithm: Algorithm) -> String {
        let mut text = format!("algorithm={}", algorithm.name());
        for (name, value) in [
            ("rate", self.rate),
            ("capacity", self.capacity),
            ("burst", self.burst),
            ("refill", self.refill),
        ] {
            if let Some(value) = value {
                text += &format!(" {name}={value}");
            }
        }
        text
    }
}

/// Says that `name=value` is not a parameter of the algorithm.
fn foreign(name: &str, value: &str, algorithm: Algorithm) -> String {
    foreign_parameter(&format!("{name}={value}"), algorithm)
}

fn foreign_parameter(parameter: &str, algorithm: Algorithm) -> String {
    let name = algorithm.name();
    let own = match algorithm {
        Algorithm::TokenBucket | Algorithm::IntervalBucket => "\"capacity=\" and \"refill=\"",
        Algorithm::Gcra => "\"burst=\"",
        Algorithm::LeakyBucket => "\"burst=\", \"delay=\" and \"nodelay\"",
        _ => "none of its own",
    };
    format!(
        "\"{parameter}\" in \"rate_limit_redis\" directive is no parameter of \
         algorithm={name}, which has {own}"
    )
}

fn no_name(name: &str) -> String {
    invalid("name", name, "1 to 64 of A-Z a-z 0-9 _ - .")
}

fn read_rate(text: &str) -> Result<Rate, String> {
    text.parse::<Rate>().map_err(|error| invalid_because("rate", text, &error.to_string()))
}

fn read_burst(algorithm: Algorithm, text: &str) -> Result<u64, String> {
    match algorithm.burst_parameter() {
        BurstParameter::Burst => read_number("burst", text, 0),
        _ => read_number("capacity", text, 1),
    }
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
