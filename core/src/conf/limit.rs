//! A line `rate_limit_redis`: its parameters, and what they make together.

use std::rc::Rc;

use super::Setting;
use crate::algorithm::Undelayed;
use crate::charge::Effect;
use crate::conf::DirectiveError;
use crate::limit::{Algorithm, Quota};
use crate::rate::{Rate, saturated};

mod definition;
mod doubts;
mod names;
pub(crate) mod parameter;
#[cfg(test)]
mod tests;
mod words;

pub use definition::Definition;
pub use doubts::twice;
pub use names::{BoundLine, Definitions, NameError};
pub use parameter::{UnusableValue, ValueError};
pub use words::{LimitWords, is_off, parameters};

/// When a limit decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// In the access phase.
    #[default]
    Access,
    /// In the precontent phase, when all access checks have passed.
    Precontent,
}

impl Phase {
    /// In the order of NGINX.
    pub const ALL: [Self; 2] = [Self::Access, Self::Precontent];
}

/// A line that limits. `V` is a text with variables, as it was compiled.
#[derive(Debug)]
pub struct LimitLine<'a, V> {
    /// The key of a request.
    pub key: V,
    /// The definition that its name stands for.
    pub definition: Rc<Definition<'a>>,
    /// The rate at which units come back.
    pub rate: Setting<Rate, V>,
    /// `capacity=` or `burst=`, as the algorithm has it.
    pub burst: Option<Setting<u64, V>>,
    /// The cost of a request.
    pub cost: Setting<u64, V>,
    /// The real cost of a request, once it is known.
    pub settle: Option<V>,
    /// The part of the excess that a leaky bucket does not delay.
    pub undelayed: Option<Undelayed>,
    /// When it decides.
    pub phase: Phase,
    /// The effect of its verdict on a request.
    pub effect: Effect,
    /// The quota of a client, if neither rate nor burst is a variable.
    pub known_quota: Option<Quota>,
}

impl<V> LimitLine<'_, V> {
    /// Whether its commands have no more than plain arguments.
    pub fn is_plain(&self) -> bool {
        let Definition { block, has_override, .. } = *self.definition;
        self.effect == Effect::Enforced && block == 0 && !has_override
    }

    /// Reads the rate of a request.
    pub fn read_rate(&self, text: &str) -> Result<Rate, LimitError> {
        Ok(parameter::rate(self.definition.algorithm, text, Rate::saturating)?)
    }

    /// Reads the capacity or burst of a request.
    pub fn read_burst(&self, text: &str) -> Result<u64, LimitError> {
        Ok(parameter::burst(self.definition.algorithm, text, saturated)?)
    }

    /// Reads what a request spends.
    pub fn read_cost(&self, text: &str) -> Result<u64, LimitError> {
        parameter::cost(text, saturated)
    }

    /// Reads what a request has really cost.
    pub fn read_settle(&self, text: &str) -> Result<u64, LimitError> {
        parameter::settle(text)
    }

    /// The quota of a request, by the values of variables. If it cannot be counted exactly, the largest power of ten with
    /// which it can stands in place of numbers of 2^53 and more.
    pub fn quota_of_request(&self, rate: Rate, burst: Option<u64>) -> Result<Quota, LimitError> {
        Quota::saturating(rate, burst, |rate, burst| self.quota(rate, burst))
    }

    /// The quota of a client at this rate, with this capacity or burst.
    pub fn quota(&self, rate: Rate, burst: Option<u64>) -> Result<Quota, LimitError> {
        let quota = self.definition.quota(rate, burst, self.settle.is_some());
        Ok(quota.map_err(|error| {
            let parameter = self.definition.algorithm.burst_parameter();
            let (name, value) = match parameter.name().zip(burst) {
                Some((name, burst)) => (name, burst.to_string()),
                None => ("rate", rate.to_string()),
            };
            UnusableValue { name, value, error: ValueError::Quota(error) }
        })?)
    }
}

/// Why a `rate_limit_redis` line is refused, or the value of a variable in it.
#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    /// There is no key.
    #[error("\"rate_limit_redis\" must have a key before its parameters, such as $remote_addr")]
    NoKey,
    /// There is no rate.
    #[error("\"rate_limit_redis\" must have the \"rate=\" parameter, such as rate=10r/s")]
    NoRate,
    /// `off`, written otherwise.
    #[error("{}; without limits it is \"rate_limit_redis off\", in lower case", Self::NoRate)]
    OffCase,
    /// `off` and more.
    #[error("\"rate_limit_redis off\" takes no parameters")]
    OffWithParameters,
    /// `off` and another line at one level.
    #[error(
        "\"rate_limit_redis off\" cannot stand beside another \"rate_limit_redis\" of the same level"
    )]
    OffBesideAnother,
    /// A parameter is there twice.
    #[error("duplicate \"{0}\" in \"rate_limit_redis\" directive")]
    Duplicate(String),
    /// There is no such parameter.
    #[error("invalid parameter \"{word}\" in \"rate_limit_redis\" directive, {hint}")]
    Unknown {
        /// The word.
        word: String,
        /// The hint to what would be right.
        hint: String,
    },
    /// `delay=` and `nodelay`.
    #[error("\"delay=\" and \"nodelay\" of the \"rate_limit_redis\" directive exclude each other")]
    DelayAndNodelay,
    /// `block=` and `dry_run`.
    #[error("\"block=\" and \"dry_run\" of the \"rate_limit_redis\" directive exclude each other")]
    BlockAndDryRun,
    /// `override` where the rate or the capacity is a variable.
    #[error(
        "\"override\" of the \"rate_limit_redis\" directive needs a rate, and a capacity or burst, without variables"
    )]
    OverrideAndVariable,
    /// Another algorithm has the parameter.
    #[error(
        "\"{parameter}\" in \"rate_limit_redis\" directive is no parameter of algorithm={}, which has {}",
        algorithm.name(), algorithm.own_parameters()
    )]
    Foreign {
        /// The parameter as it is written.
        parameter: String,
        /// The algorithm of the line.
        algorithm: Algorithm,
    },
    /// The value of a parameter cannot be used.
    #[error("{}", .0.within(" in \"rate_limit_redis\" directive"))]
    Value(#[from] UnusableValue),
    /// A word is no text.
    #[error(transparent)]
    Word(#[from] DirectiveError),
}

impl LimitError {
    /// The error that the value of a parameter is not what it must be.
    pub(super) fn invalid(parameter: &'static str, value: &str, expected: &str) -> Self {
        UnusableValue::invalid(parameter, value, format!("it must be {expected}")).into()
    }

    /// The error that the name of a limit is none.
    pub fn name(name: &str) -> Self {
        Self::invalid("name", name, "1 to 64 of A-Z a-z 0-9 _ - .")
    }

    /// The error that `name=value` is no parameter of the algorithm.
    pub(super) fn foreign(name: &str, value: &str, algorithm: Algorithm) -> Self {
        Self::Foreign { parameter: format!("{name}={value}"), algorithm }
    }
}
