//! The values of parameters.

use super::LimitError;
use crate::algorithm::BurstParameter;
use crate::conf::value;
use crate::limit::{Algorithm, QuotaError};
use crate::rate::{self, MAX_TIME, MILLISECOND, Rate, RateError, ReadDigits};
use crate::text::log::Escaped;

/// The value of a parameter, or of an argument of the admin interface, that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.within(""))]
pub struct UnusableValue {
    /// The name of the parameter.
    pub name: &'static str,
    /// The value.
    pub value: String,
    /// Why it cannot be used.
    pub error: ValueError,
}

/// Why a value cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueError {
    /// It is not what it must be.
    Invalid(String),
    /// It is valid, but there is no quota with it.
    Quota(QuotaError),
}

impl UnusableValue {
    pub(crate) fn invalid(name: &'static str, value: &str, reason: String) -> Self {
        Self { name, value: value.to_owned(), error: ValueError::Invalid(reason) }
    }

    /// The text of the error, with the place of the value.
    pub(crate) fn within(&self, place: &str) -> String {
        let Self { name, value, error } = self;
        match error {
            ValueError::Invalid(reason) => {
                format!("invalid {name} \"{}\"{place}: {reason}", Escaped(value.as_bytes()))
            }
            ValueError::Quota(error) => format!("\"{name}={value}\"{place} {error}"),
        }
    }
}

/// `rate=`, at which the algorithm can count. `read` is how a literal is read, or a variable.
pub(crate) fn rate(
    algorithm: Algorithm,
    text: &str,
    read: fn(&str) -> Result<Rate, RateError>,
) -> Result<Rate, UnusableValue> {
    let error = |error| UnusableValue { name: "rate", value: text.to_owned(), error };
    let rate = read(text).map_err(|why| error(ValueError::Invalid(why.to_string())))?;
    algorithm.check_rate(rate).map_err(|why| error(ValueError::Quota(why)))?;
    Ok(rate)
}

/// `burst=` or `capacity=`, as the algorithm has it.
pub(crate) fn burst(
    algorithm: Algorithm,
    text: &str,
    digits: ReadDigits,
) -> Result<u64, UnusableValue> {
    match algorithm.burst_parameter() {
        BurstParameter::Burst => number("burst", text, 0, digits),
        BurstParameter::Capacity | BurstParameter::None => number("capacity", text, 1, digits),
    }
}

pub(super) fn cost(text: &str, digits: ReadDigits) -> Result<u64, LimitError> {
    Ok(number("cost", text, 0, digits)?)
}

pub(super) fn settle(text: &str) -> Result<u64, LimitError> {
    let expected = "a number of at least 0, such as 3 or 0.25";
    rate::rounded_up(text).map_err(|_| LimitError::invalid("settle", text, expected))
}

pub(super) fn delay(text: &str) -> Result<u64, LimitError> {
    Ok(number("delay", text, 0, rate::whole)?)
}

/// `block=`, in µs.
pub(super) fn block(text: &str) -> Result<u64, LimitError> {
    let expected = "a time above 0 and up to 36500d, such as 10m";
    let time = micros(text).filter(|time| *time > 0);
    time.ok_or_else(|| LimitError::invalid("block", text, expected))
}

/// A time that Redis counts exactly, in µs.
pub(crate) fn micros(text: &str) -> Option<u64> {
    let time = value::milliseconds(text)?.checked_mul(MILLISECOND)?;
    (time <= MAX_TIME).then_some(time)
}

/// A number of at least `least`.
pub(crate) fn number(
    name: &'static str,
    text: &str,
    least: u64,
    digits: ReadDigits,
) -> Result<u64, UnusableValue> {
    let expected = || format!("it must be a number from {least} to {}", rate::MAX_EXACT);
    let number = digits(text).ok().filter(|number| *number >= least);
    number.ok_or_else(|| UnusableValue::invalid(name, text, expected()))
}
