//! The parameters of a limit, as they are read from the configuration or from a variable.

use rate_limit_core::algorithm::BurstParameter;
use rate_limit_core::limit::Algorithm;
use rate_limit_core::rate::{self, Rate, RateError};

use super::error::LimitError;

/// How digits are read: those of a literal by [`rate::whole`], those of a variable by [`rate::saturated`].
type Digits = fn(&str) -> Result<u64, RateError>;

/// `rate=`, at which the algorithm can count.
pub(crate) fn rate(algorithm: Algorithm, text: &str) -> Result<Rate, LimitError> {
    let (parameter, value) = ("rate", || text.to_owned());
    let rate: Rate = text.parse().map_err(|error: RateError| {
        let reason = error.to_string();
        LimitError::Invalid { parameter, value: value(), reason }
    })?;
    let counted = algorithm.at(rate).map(|_| rate);
    counted.map_err(|error| LimitError::Quota { parameter, value: value(), error })
}

/// `burst=` or `capacity=`, as the algorithm has it.
pub(crate) fn burst(algorithm: Algorithm, text: &str, digits: Digits) -> Result<u64, LimitError> {
    match algorithm.burst_parameter() {
        BurstParameter::Burst => number("burst", text, 0, digits),
        _ => number("capacity", text, 1, digits),
    }
}

/// `cost=`.
pub(crate) fn cost(text: &str, digits: Digits) -> Result<u64, LimitError> {
    number("cost", text, 0, digits)
}

/// `settle=`.
pub(crate) fn settle(text: &str) -> Result<u64, LimitError> {
    let expected = "a number of at least 0, such as 3 or 0.25";
    rate::rounded_up(text).map_err(|_| LimitError::invalid("settle", text, expected))
}

/// `delay=`.
pub(crate) fn delay(text: &str) -> Result<u64, LimitError> {
    number("delay", text, 0, rate::whole)
}

fn number(
    parameter: &'static str,
    text: &str,
    least: u64,
    digits: Digits,
) -> Result<u64, LimitError> {
    match digits(text) {
        Ok(number) if number >= least => Ok(number),
        _ => {
            let expected = format!("a number from {least} to {}", rate::MAX_EXACT);
            Err(LimitError::invalid(parameter, text, &expected))
        }
    }
}
