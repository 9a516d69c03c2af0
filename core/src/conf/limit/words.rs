//! The words of a line: which parameters it has, and which of them its algorithm takes.

use std::iter;
use std::rc::Rc;

use super::{Definition, LimitError, LimitLine, Phase, parameter};
use crate::algorithm::{BurstParameter, Undelayed};
use crate::charge::Effect;
use crate::conf::directive::text;
use crate::conf::value::is_literal;
use crate::conf::{Directive, Setting};
use crate::limit::{Algorithm, is_name};
use crate::rate::whole;

const DEFAULT_NAME: &str = "default";

const DEFAULT_COST: &str = "1";

/// Whether a line is `rate_limit_redis off`.
pub fn is_off(line: &Directive<'_>) -> Result<bool, LimitError> {
    let mut words = line.arguments();
    match (words.next(), words.next()) {
        (Some(b"off"), None) => Ok(true),
        (Some(b"off"), Some(_)) => Err(LimitError::OffWithParameters),
        _ => Ok(false),
    }
}

/// The error of a line without a rate, which may be meant to be `off`.
fn no_rate(line: &Directive<'_>) -> LimitError {
    match line.value() {
        Ok(word) if word.eq_ignore_ascii_case("off") => LimitError::OffCase,
        _ => LimitError::NoRate,
    }
}

/// The words of a line that limits, checked as far as they can be without its variables.
#[derive(Debug)]
pub struct LimitWords<'a> {
    pub(super) key: &'a str,
    pub(super) parameters: Parameters<'a>,
    /// But for how long a client is blocked.
    definition: Definition<'a>,
    undelayed: Option<Undelayed>,
}

impl<'a> LimitWords<'a> {
    /// Reads the words of `line`.
    pub fn read(line: &Directive<'a>) -> Result<Self, LimitError> {
        let mut words = line.arguments();
        let key = words.next().filter(|word| !is_parameter(word));
        let key = key.and_then(|key| text(key).ok()).ok_or(LimitError::NoKey)?;
        let parameters = Parameters::read(words)?;
        let name = parameters.get("name").unwrap_or(DEFAULT_NAME);
        if !is_name(name) {
            return Err(LimitError::name(name));
        }
        let algorithm = parameters.algorithm()?;
        let rate = parameters.get("rate").ok_or_else(|| no_rate(line))?;
        let burst = parameters.burst(algorithm)?;
        let undelayed = parameters.undelayed(algorithm)?;
        let (has_override, written) = (parameters.has("override"), parameters.written(algorithm));
        let shared = Definition::default();
        let definition =
            Definition { name, algorithm, rate, burst, has_override, written, ..shared };
        Ok(Self { key, parameters, definition, undelayed })
    }

    /// Compiles the key, and every text with variables, by `compile`, and reads the literals.
    pub fn compile<V, E: From<LimitError>>(
        &self,
        mut compile: impl FnMut(&'a str) -> Result<V, E>,
    ) -> Result<LimitLine<'a, V>, E> {
        let (parameters, compile) = (&self.parameters, &mut compile);
        let Definition { algorithm, rate, burst, .. } = self.definition;
        let key = compile(self.key)?;
        let read = |text: &str| Ok::<_, LimitError>(parameter::rate(algorithm, text, str::parse)?);
        let rate = Setting::new(rate, read, compile)?;
        let read = |text: &str| Ok::<_, LimitError>(parameter::burst(algorithm, text, whole)?);
        let burst = burst.map(|text| Setting::new(text, read, compile)).transpose()?;
        let cost = parameters.get("cost").unwrap_or(DEFAULT_COST);
        let cost = Setting::new(cost, |text| parameter::cost(text, whole), compile)?;
        let mut line = LimitLine {
            key,
            rate,
            burst,
            cost,
            settle: parameters.get("settle").map(|text| settle(text, compile)).transpose()?,
            definition: Rc::new(Definition {
                block: parameters.block()?,
                ..self.definition.clone()
            }),
            undelayed: self.undelayed,
            phase: parameters.phase()?,
            effect: if parameters.has("dry_run") { Effect::DryRun } else { Effect::Enforced },
            known_quota: None,
        };
        let burst = match &line.burst {
            Some(burst) => burst.literal().map(Some),
            None => Some(None),
        };
        let known = line.rate.literal().zip(burst);
        line.known_quota = known.map(|(rate, burst)| line.quota(rate, burst)).transpose()?;
        if parameters.has("override") && line.known_quota.is_none() {
            return Err(LimitError::OverrideAndVariable.into());
        }
        Ok(line)
    }
}

/// `settle=`. It is evaluated when a request has ended, but a literal is checked now.
fn settle<'a, V, E: From<LimitError>>(
    text: &'a str,
    compile: &mut impl FnMut(&'a str) -> Result<V, E>,
) -> Result<V, E> {
    if is_literal(text) {
        parameter::settle(text)?;
    }
    compile(text)
}

/// Whether the word in the place of the key is a parameter, so that the key is forgotten. Any but the rate
/// may be a key if it has a variable.
fn is_parameter(word: &[u8]) -> bool {
    let is_read = || Parameters::read(iter::once(word)).is_ok();
    word.starts_with(b"rate=") || !word.contains(&b'$') && is_read()
}

/// The parameters with a value, and the value where it is not given, if there is one for all lines.
const VALUES: [(&str, Option<&str>); 11] = [
    ("rate", None),
    ("name", Some(DEFAULT_NAME)),
    ("algorithm", Some("token_bucket")),
    ("capacity", None),
    ("burst", Some("0")),
    ("refill", Some("continuous")),
    ("cost", Some(DEFAULT_COST)),
    ("delay", Some("0")),
    ("after", None),
    ("block", None),
    ("settle", None),
];

/// The parameters without a value.
const FLAGS: [&str; 3] = ["nodelay", "dry_run", "override"];

/// The parameters of a line, as they are written, each once.
#[derive(Debug, Default)]
pub(super) struct Parameters<'a> {
    values: Vec<(&'static str, &'a str)>,
    flags: Vec<&'static str>,
}

/// Every parameter, as it is written up to its value, and the value of a line without it, if there is one.
pub fn parameters() -> impl Iterator<Item = (String, Option<&'static str>)> {
    let values = VALUES.into_iter().map(|(name, default)| (format!("{name}="), default));
    values.chain(FLAGS.map(|name| (name.to_owned(), None)))
}

/// The error that there is no such parameter, with what is meant where that is plain.
fn unknown(word: &str) -> LimitError {
    let name = word.split('=').next().unwrap_or_default();
    let count = word.split_once("r/").map(|(count, _)| count);
    let hint = if count.is_some_and(|count| count.starts_with('$') || whole(count).is_ok()) {
        format!("the rate is written \"rate={word}\"")
    } else if FLAGS.contains(&name) {
        format!("\"{name}\" has no value")
    } else if VALUES.iter().any(|(known, _)| *known == name) {
        format!("it is written \"{name}=\", with a value")
    } else {
        let known: Vec<_> = parameters().map(|(name, _)| format!("\"{name}\"")).collect();
        format!("which has {}", known.join(", "))
    };
    LimitError::Unknown { word: word.to_owned(), hint }
}

impl<'a> Parameters<'a> {
    fn read(words: impl Iterator<Item = &'a [u8]>) -> Result<Self, LimitError> {
        let mut read = Self::default();
        for word in words {
            read.add(text(word)?)?;
        }
        Ok(read)
    }

    fn add(&mut self, word: &'a str) -> Result<(), LimitError> {
        if let Some(flag) = FLAGS.into_iter().find(|flag| *flag == word) {
            if self.has(flag) {
                return Err(LimitError::Duplicate(flag.to_owned()));
            }
            self.flags.push(flag);
            return Ok(());
        }
        let (name, value) = word.split_once('=').ok_or_else(|| unknown(word))?;
        let known = VALUES.into_iter().find(|(known, _)| *known == name);
        let (name, _) = known.ok_or_else(|| unknown(word))?;
        if self.get(name).is_some() {
            return Err(LimitError::Duplicate(format!("{name}=")));
        }
        self.values.push((name, value));
        Ok(())
    }

    /// The value of a parameter, if it is given.
    pub(super) fn get(&self, name: &str) -> Option<&'a str> {
        self.values.iter().find(|(given, _)| *given == name).map(|(_, value)| *value)
    }

    /// Whether a parameter without a value is given.
    fn has(&self, flag: &str) -> bool {
        self.flags.contains(&flag)
    }

    fn algorithm(&self) -> Result<Algorithm, LimitError> {
        let algorithm = match self.get("algorithm") {
            None => Algorithm::default(),
            Some(name) => Algorithm::from_name(name).ok_or_else(|| {
                let mut known = Algorithm::ALL.map(Algorithm::name).to_vec();
                known.dedup();
                LimitError::invalid("algorithm", name, &format!("one of {}", known.join(", ")))
            })?,
        };
        match (algorithm, self.get("refill")) {
            (_, None) => Ok(algorithm),
            (Algorithm::TokenBucket, Some("continuous")) => Ok(Algorithm::TokenBucket),
            (Algorithm::TokenBucket, Some("interval")) => Ok(Algorithm::IntervalBucket),
            (Algorithm::TokenBucket, Some(other)) => {
                Err(LimitError::invalid("refill", other, "continuous or interval"))
            }
            (_, Some(other)) => Err(LimitError::foreign("refill", other, algorithm)),
        }
    }

    /// The burst parameter that belongs to the algorithm.
    fn burst(&self, algorithm: Algorithm) -> Result<Option<&'a str>, LimitError> {
        let own = algorithm.burst_parameter();
        match (self.get("capacity"), self.get("burst")) {
            (Some(value), _) if own != BurstParameter::Capacity => {
                Err(LimitError::foreign("capacity", value, algorithm))
            }
            (_, Some(value)) if own != BurstParameter::Burst => {
                Err(LimitError::foreign("burst", value, algorithm))
            }
            (capacity, burst) => Ok(capacity.or(burst)),
        }
    }

    /// The part of the excess that a leaky bucket does not delay.
    fn undelayed(&self, algorithm: Algorithm) -> Result<Option<Undelayed>, LimitError> {
        let delays = algorithm.delays();
        match (self.get("delay"), self.has("nodelay")) {
            (None, false) => Ok(delays.then_some(Undelayed::UpTo(0))),
            (Some(value), _) if !delays => Err(LimitError::foreign("delay", value, algorithm)),
            (None, true) if !delays => {
                Err(LimitError::Foreign { parameter: "nodelay".to_owned(), algorithm })
            }
            (None, true) => Ok(Some(Undelayed::All)),
            (Some(text), false) => Ok(Some(Undelayed::UpTo(parameter::delay(text)?))),
            (Some(_), true) => Err(LimitError::DelayAndNodelay),
        }
    }

    fn phase(&self) -> Result<Phase, LimitError> {
        match self.get("after") {
            None => Ok(Phase::Access),
            Some("auth") => Ok(Phase::Precontent),
            Some(other) => Err(LimitError::invalid("after", other, "auth")),
        }
    }

    /// How long a client is blocked, in µs.
    fn block(&self) -> Result<u64, LimitError> {
        match self.get("block") {
            None => Ok(0),
            Some(_) if self.has("dry_run") => Err(LimitError::BlockAndDryRun),
            Some(text) => parameter::block(text),
        }
    }

    /// The definition that the name stands for, without the store, as it is written.
    fn written(&self, algorithm: Algorithm) -> String {
        let mut text = format!("algorithm={}", algorithm.name());
        for name in ["rate", "capacity", "burst", "refill", "block"] {
            if let Some(value) = self.get(name) {
                text += &format!(" {name}={value}");
            }
        }
        if self.has("override") {
            text += " override";
        }
        text
    }
}
