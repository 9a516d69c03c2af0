//! The values of parameters.

use super::LimitError;
use crate::algorithm::BurstParameter;
use crate::conf::value;
use crate::limit::Algorithm;
use crate::rate::{self, MAX_TIME, MILLISECOND, Rate, RateError, ReadDigits};

/// `rate=`, at which the algorithm can count. `read` is how a literal is read, or a variable.
pub(super) fn rate(
    algorithm: Algorithm,
    text: &str,
    read: fn(&str) -> Result<Rate, RateError>,
) -> Result<Rate, LimitError> {
    let (parameter, value) = ("rate", || text.to_owned());
    let rate = read(text).map_err(|error| {
        let reason = error.to_string();
        LimitError::Invalid { parameter, value: value(), reason }
    })?;
    let counted = algorithm.check_rate(rate).map(|()| rate);
    counted.map_err(|error| LimitError::Quota { parameter, value: value(), error })
}

/// `burst=` or `capacity=`, as the algorithm has it.
pub(super) fn burst(
    algorithm: Algorithm,
    text: &str,
    digits: ReadDigits,
) -> Result<u64, LimitError> {
    match algorithm.burst_parameter() {
        BurstParameter::Burst => number("burst", text, 0, digits),
        BurstParameter::Capacity | BurstParameter::None => number("capacity", text, 1, digits),
    }
}

/// `cost=`.
pub(super) fn cost(text: &str, digits: ReadDigits) -> Result<u64, LimitError> {
    number("cost", text, 0, digits)
}

/// `settle=`.
pub(super) fn settle(text: &str) -> Result<u64, LimitError> {
    let expected = "a number of at least 0, such as 3 or 0.25";
    rate::rounded_up(text).map_err(|_| LimitError::invalid("settle", text, expected))
}

/// `delay=`.
pub(super) fn delay(text: &str) -> Result<u64, LimitError> {
    number("delay", text, 0, rate::whole)
}

/// `block=`, in µs.
pub(super) fn block(text: &str) -> Result<u64, LimitError> {
    let time = value::milliseconds(text).and_then(|time| time.checked_mul(MILLISECOND));
    let expected = "a time above 0 and up to 36500d, such as 10m";
    time.filter(|time| (1..=MAX_TIME).contains(time))
        .ok_or_else(|| LimitError::invalid("block", text, expected))
}

fn number(
    parameter: &'static str,
    text: &str,
    least: u64,
    digits: ReadDigits,
) -> Result<u64, LimitError> {
    match digits(text) {
        Ok(number) if number >= least => Ok(number),
        _ => {
            let expected = format!("a number from {least} to {}", rate::MAX_EXACT);
            Err(LimitError::invalid(parameter, text, &expected))
        }
    }
}
