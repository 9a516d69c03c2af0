//! The values of the directives that are neither limits nor stores.

use super::directive::{Directive, DirectiveError};
use super::value;
use crate::lease;
use crate::metrics::labels;
use crate::rate::{self, MILLISECOND};
use crate::text::fields::{Forms, Reset};
use crate::text::metrics;

labels! {
    /// The treatment of requests that Redis does not decide.
    OnError::ALL {
        /// They pass.
        Open = "open",
        /// They are rejected.
        Closed = "closed",
        /// They are decided locally, in the shared memory.
        Local = "local",
    }

    /// The treatment of requests with a rate, capacity, burst or cost that is unusable.
    OnInvalid::ALL {
        /// They are rejected.
        Reject = "reject",
        /// They pass.
        Pass = "pass",
    }

    /// Whether lines about decisions show the key, and in which form.
    LogKey::ALL {
        /// They show the client's own key.
        On = "on",
        /// They do not.
        Off = "off",
        /// They show its HMAC.
        Hmac = "hmac",
    }

    /// A level of NGINX's log.
    LogLevel::ALL {
        /// `info`.
        Info = "info",
        /// `notice`.
        Notice = "notice",
        /// `warn`.
        Warn = "warn",
        /// `error`.
        Error = "error",
    }
}

/// How rejections and delays are logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLimit {
    /// The level of rejections.
    pub level: LogLevel,
    /// How many lines a worker writes in a second.
    pub rate: u64,
}

/// The longest time that a request waits without a warning, in ms.
const LONG_TIMEOUT: u64 = 1_000;

/// A timeout that is long, perhaps as it has lost its unit.
pub(super) fn long_timeout(line: &Directive<'_>, timeout: u64) -> Option<String> {
    let effect = |seconds| format!("lets a request wait {seconds} s for its decision");
    if timeout > LONG_TIMEOUT { seconds(line, timeout, effect) } else { None }
}

/// The doubt that a time, in ms, is longer than was meant, as one that has lost its unit. `effect` is what the directive does with so many seconds.
pub(super) fn seconds(
    line: &Directive<'_>,
    time: u64,
    effect: impl FnOnce(f64) -> String,
) -> Option<String> {
    let (name, value) = line.name().ok().zip(line.value().ok())?;
    let effect = effect(time as f64 / 1_000.0);
    let has_unit = value.trim_end().ends_with(|last: char| !last.is_ascii_digit());
    let hint = if has_unit { "" } else { ", and a number without a unit is one of seconds" };
    Some(format!("\"{name} {value}\" {effect}{hint}"))
}

/// NGINX has 494 to 497 for errors of its own, for which it answers 400.
pub(super) fn status(line: &Directive<'_>) -> Result<u16, DirectiveError> {
    let value = line.value()?;
    match value.parse() {
        Ok(status @ (400..=493 | 498..=599)) if value.len() == 3 => Ok(status),
        _ => Err(line.invalid(value, "a number between 400 and 599, but not 494 to 497")),
    }
}

pub(super) fn header_forms(line: &Directive<'_>) -> Result<Forms, DirectiveError> {
    let names: Vec<_> = line.texts().collect::<Result<_, _>>()?;
    let mut forms = Forms { x_ratelimit: None, ratelimit: false, ietf: false };
    if names == ["off"] {
        return Ok(forms);
    }
    for name in names {
        let repeated = match name {
            "x-ratelimit" => forms.x_ratelimit.replace(Reset::Seconds).is_some(),
            "x-ratelimit-epoch" => forms.x_ratelimit.replace(Reset::Epoch).is_some(),
            "ratelimit" => std::mem::replace(&mut forms.ratelimit, true),
            "ietf" => std::mem::replace(&mut forms.ietf, true),
            _ => return Err(line.invalid(name, HEADER_FORMS)),
        };
        if repeated {
            return Err(line.invalid(name, HEADER_FORMS));
        }
    }
    Ok(forms)
}

const HEADER_FORMS: &str = "\"off\", or any of \"x-ratelimit\" or \"x-ratelimit-epoch\", \
                            \"ratelimit\" and \"ietf\", each once";

/// The length of a prefix of an address, which has so many bits.
pub(super) fn prefix<const BITS: u64>(line: &Directive<'_>) -> Result<u32, DirectiveError> {
    line.number::<1, BITS>().map(|bits| bits as u32)
}

/// How long a machine may hold units that it has taken ahead, in ms, if no time is given.
const USUAL_LEASE: u64 = 1_000;

/// And how long it may at most, in ms.
const LONGEST_LEASE: u64 = lease::MAX_SPAN / MILLISECOND;

pub(super) fn lease(line: &Directive<'_>) -> Result<u64, DirectiveError> {
    match line.value()? {
        "off" => Ok(0),
        "on" => Ok(USUAL_LEASE),
        value => match value::milliseconds(value) {
            Some(time @ 10..=LONGEST_LEASE) => Ok(time),
            _ => Err(line.invalid(value, "\"off\", \"on\" or a time between 10ms and 1m")),
        },
    }
}

/// The form of the metrics page; `None` if the client chooses it.
pub(super) fn page_form(line: &Directive<'_>) -> Result<Option<metrics::PageForm>, DirectiveError> {
    match line.arguments().next() {
        None => Ok(None),
        Some(_) => line.choice().map(Some),
    }
}

/// The least size of the memory that workers share, in bytes.
pub(super) const LEAST_MEMORY: u64 = 256 << 10;

/// The most keys of a limit that are kept as those that were rejected most.
pub const MOST_TOP_KEYS: usize = 100;

/// How many lines about rejections and delays a worker writes in a second.
pub(super) const USUAL_LOG_RATE: u64 = 1_000;

pub(super) fn log_limit(line: &Directive<'_>) -> Result<LogLimit, DirectiveError> {
    let mut words = line.texts();
    let level = line.choose(words.next().unwrap_or(Err(DirectiveError::Empty))?)?;
    let rate = words.next().transpose()?.map(|word| log_rate(line, word)).transpose()?;
    Ok(LogLimit { level, rate: rate.unwrap_or(USUAL_LOG_RATE) })
}

/// `rate=`: how many lines a worker writes in a second.
fn log_rate(line: &Directive<'_>, word: &str) -> Result<u64, DirectiveError> {
    let lines = word.strip_prefix("rate=").and_then(|rate| rate.strip_suffix("r/s"));
    match lines.map(rate::whole) {
        Some(Ok(lines @ 1..)) => Ok(lines),
        _ => Err(line.invalid(word, "\"rate=<n>r/s\" with n from 1, such as rate=1000r/s")),
    }
}
