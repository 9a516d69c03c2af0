//! `rate_limit_redis`.

use std::iter;
use std::rc::Rc;

use ngx::ffi::{ngx_conf_t, ngx_str_t};
use rate_limit_core::algorithm::BurstParameter;
use rate_limit_core::algorithm::leaky_bucket::Undelayed;
use rate_limit_core::limit::{Algorithm, is_name};
use rate_limit_core::rate::{MAX_TIME, MILLISECOND, whole};

use super::directive::{Directive, milliseconds, text};
use super::error::ConfError;
use crate::conf::{
    ComplexValue, Effect, Limit, LimitError, LocationConf, Parameters, Phase, Setting, parameter,
};

mod doubts;

const DEFAULT_NAME: &str = "default";

/// Adds the limit of a line, or none for `off`.
pub(super) fn add(conf: &mut LocationConf, line: &mut Directive<'_>) -> Result<(), ConfError> {
    if line.arguments().next().is_some_and(|first| first.as_bytes() == b"off") {
        if line.arguments().count() > 1 {
            return Err(LimitError::OffWithParameters.into());
        }
        return match conf.limits.replace(Vec::new()) {
            None => Ok(()),
            Some(_) => Err(LimitError::OffBesideAnother.into()),
        };
    }
    if conf.limits.as_ref().is_some_and(Vec::is_empty) {
        return Err(LimitError::OffBesideAnother.into());
    }
    let limit = read(line)?;
    line.main()?.define(&limit)?;
    let limits = conf.limits.get_or_insert_default();
    let index = limits.partition_point(|other| other.phase() <= limit.phase());
    limits.insert(index, Rc::new(limit));
    Ok(())
}

fn read(line: &mut Directive<'_>) -> Result<Limit, ConfError> {
    let mut words = line.arguments();
    let key = words.next().filter(|word| !is_parameter(word));
    let key = key.and_then(|key| text(key).ok()).ok_or(LimitError::NoKey)?;
    let words = Words::read(words)?;

    let name = words.name.unwrap_or(DEFAULT_NAME);
    if !is_name(name) {
        return Err(LimitError::name(name).into());
    }
    let algorithm = words.algorithm()?;
    let rate = words.rate.ok_or(LimitError::NoRate)?;
    let burst = words.burst(algorithm)?;
    let undelayed = words.undelayed(algorithm)?;
    let place = line.place();

    let cf = &mut *line.cf;
    let limit = Limit::new(Parameters {
        key: ComplexValue::compile(cf, key)?,
        name,
        algorithm,
        rate: Setting::compile(cf, rate, |text| parameter::rate(algorithm, text))?,
        burst: burst
            .map(|text| Setting::compile(cf, text, |text| parameter::burst(algorithm, text, whole)))
            .transpose()?,
        cost: Setting::compile(cf, words.cost.unwrap_or("1"), |text| parameter::cost(text, whole))?,
        settle: words.settle.map(|text| settle(cf, text)).transpose()?,
        block: words.block()?,
        undelayed,
        phase: words.phase()?,
        effect: if words.dry_run { Effect::DryRun } else { Effect::Enforced },
        written: words.written(algorithm),
        place,
    })?;
    doubts::warn(line, key, &words, &limit);
    Ok(limit)
}

/// Whether the word in the place of the key is a parameter, so that the key is forgotten. Any but the rate
/// may be a key if it has a variable.
fn is_parameter(word: &ngx_str_t) -> bool {
    let bytes = word.as_bytes();
    bytes.starts_with(b"rate=") || !bytes.contains(&b'$') && Words::read(iter::once(word)).is_ok()
}

/// The parameters of a line, as they are written.
#[derive(Default)]
struct Words {
    rate: Option<&'static str>,
    name: Option<&'static str>,
    algorithm: Option<&'static str>,
    capacity: Option<&'static str>,
    burst: Option<&'static str>,
    refill: Option<&'static str>,
    cost: Option<&'static str>,
    delay: Option<&'static str>,
    after: Option<&'static str>,
    block: Option<&'static str>,
    settle: Option<&'static str>,
    nodelay: bool,
    dry_run: bool,
}

impl Words {
    fn read<'a>(words: impl Iterator<Item = &'a ngx_str_t>) -> Result<Self, ConfError> {
        let mut read = Self::default();
        for word in words {
            let word = text(word)?;
            let unknown = || LimitError::Unknown(word.to_owned());
            let flag = match word {
                "nodelay" => Some(&mut read.nodelay),
                "dry_run" => Some(&mut read.dry_run),
                _ => None,
            };
            if let Some(flag) = flag {
                if std::mem::replace(flag, true) {
                    return Err(LimitError::Duplicate(word.to_owned()).into());
                }
                continue;
            }
            let (name, value) = word.split_once('=').ok_or_else(unknown)?;
            let slot = match name {
                "rate" => &mut read.rate,
                "name" => &mut read.name,
                "algorithm" => &mut read.algorithm,
                "capacity" => &mut read.capacity,
                "burst" => &mut read.burst,
                "refill" => &mut read.refill,
                "cost" => &mut read.cost,
                "delay" => &mut read.delay,
                "after" => &mut read.after,
                "block" => &mut read.block,
                "settle" => &mut read.settle,
                _ => return Err(unknown().into()),
            };
            if slot.replace(value).is_some() {
                return Err(LimitError::Duplicate(format!("{name}=")).into());
            }
        }
        Ok(read)
    }

    fn algorithm(&self) -> Result<Algorithm, LimitError> {
        let algorithm = match self.algorithm {
            None => Algorithm::default(),
            Some(name) => Algorithm::from_name(name).ok_or_else(|| {
                let mut known = Algorithm::ALL.map(Algorithm::name).to_vec();
                known.dedup();
                LimitError::invalid("algorithm", name, &format!("one of {}", known.join(", ")))
            })?,
        };
        match (algorithm, self.refill) {
            (_, None) => Ok(algorithm),
            (Algorithm::TokenBucket, Some("continuous")) => Ok(Algorithm::TokenBucket),
            (Algorithm::TokenBucket, Some("interval")) => Ok(Algorithm::IntervalBucket),
            (Algorithm::TokenBucket, Some(other)) => {
                Err(LimitError::invalid("refill", other, "continuous or interval"))
            }
            (_, Some(other)) => Err(foreign("refill", other, algorithm)),
        }
    }

    /// The burst parameter that belongs to the algorithm.
    fn burst(&self, algorithm: Algorithm) -> Result<Option<&'static str>, LimitError> {
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

    /// The part of the excess that a leaky bucket does not delay.
    fn undelayed(&self, algorithm: Algorithm) -> Result<Option<Undelayed>, LimitError> {
        if algorithm != Algorithm::LeakyBucket {
            return match (self.delay, self.nodelay) {
                (None, false) => Ok(None),
                (Some(value), _) => Err(foreign("delay", value, algorithm)),
                (None, true) => {
                    Err(LimitError::Foreign { parameter: "nodelay".to_owned(), algorithm })
                }
            };
        }
        match (self.delay, self.nodelay) {
            (None, false) => Ok(Some(Undelayed::UpTo(0))),
            (None, true) => Ok(Some(Undelayed::All)),
            (Some(text), false) => Ok(Some(Undelayed::UpTo(parameter::delay(text)?))),
            (Some(_), true) => Err(LimitError::DelayAndNodelay),
        }
    }

    fn phase(&self) -> Result<Phase, LimitError> {
        match self.after {
            None => Ok(Phase::Access),
            Some("auth") => Ok(Phase::Precontent),
            Some(other) => Err(LimitError::invalid("after", other, "auth")),
        }
    }

    /// How long a client is blocked, in µs.
    fn block(&self) -> Result<u64, LimitError> {
        let Some(text) = self.block else { return Ok(0) };
        if self.dry_run {
            return Err(LimitError::BlockAndDryRun);
        }
        let time = milliseconds(text).map(|time| time as u64).filter(|time| *time > 0);
        let micros = time.and_then(|time| time.checked_mul(MILLISECOND));
        let expected = "a time above 0 and up to a hundred years, such as 10m";
        micros
            .filter(|micros| *micros <= MAX_TIME)
            .ok_or_else(|| LimitError::invalid("block", text, expected))
    }

    /// What the name stands for, apart from the store, as it is written.
    fn written(&self, algorithm: Algorithm) -> String {
        let mut text = format!("algorithm={}", algorithm.name());
        for (name, value) in [
            ("rate", self.rate),
            ("capacity", self.capacity),
            ("burst", self.burst),
            ("refill", self.refill),
            ("block", self.block),
        ] {
            if let Some(value) = value {
                text += &format!(" {name}={value}");
            }
        }
        text
    }
}

/// `settle=`. It is evaluated when a request has ended, but a literal is checked now.
fn settle(cf: &mut ngx_conf_t, text: &'static str) -> Result<ComplexValue, LimitError> {
    let value = ComplexValue::compile(cf, text)?;
    if value.is_literal() {
        parameter::settle(text)?;
    }
    Ok(value)
}

/// The error that `name=value` is not a parameter of the algorithm.
fn foreign(name: &str, value: &str, algorithm: Algorithm) -> LimitError {
    LimitError::Foreign { parameter: format!("{name}={value}"), algorithm }
}
