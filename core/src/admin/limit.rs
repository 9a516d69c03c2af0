//! Limits, as the admin interface knows them.

use super::AdminError;
use super::query_string::QueryString;
use crate::algorithm::BurstParameter;
use crate::conf::value::is_literal;
use crate::limit::{Algorithm, Quota, QuotaError};
use crate::rate::{self, Rate, RateError, ReadDigits};

/// A limit: what its name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagedLimit<'a> {
    /// The name of the limit.
    pub name: &'a str,
    /// The store, without a password.
    pub store: &'a str,
    /// The algorithm by its name.
    pub algorithm: Algorithm,
    /// `rate=`, as it is written.
    pub rate: &'a str,
    /// `capacity=` or `burst=`, as it is written.
    pub burst: Option<&'a str>,
    /// How long a client that exceeds it is blocked, in µs; 0: not at all.
    pub block: u64,
    /// Whether clients may have overrides.
    pub has_override: bool,
    /// Whether what requests have cost is settled when they have ended.
    pub is_settled: bool,
    /// Whether rejections of its clients may come from the deny cache of a machine.
    pub is_cached: bool,
    /// How long leases of its clients last at most, in µs; 0: its lines have none.
    pub lease: u64,
}

/// A value for a client: of the line, or of an argument.
#[derive(Debug)]
struct Given {
    /// The name of the parameter or argument.
    name: &'static str,
    text: String,
}

/// The names of a capacity, and of a burst: those of the parameter, and of the argument with its value for a client.
const CAPACITY: [&str; 2] = ["capacity", "base_capacity"];
const BURST: [&str; 2] = ["burst", "base_burst"];

impl ManagedLimit<'_> {
    /// The name of its parameter `capacity` or `burst`, if the algorithm has one of them.
    pub(crate) fn burst_name(&self) -> Option<&'static str> {
        self.algorithm.burst_parameter().name()
    }

    /// The value of that parameter, if it has no variable.
    pub(crate) fn known_burst(&self) -> Option<u64> {
        let parameter = self.algorithm.burst_parameter();
        let known = |text: &str| rate::whole(text).ok();
        match self.burst {
            Some(text) => known(text),
            None if parameter == BurstParameter::Capacity => {
                self.rate.parse::<Rate>().ok().map(Rate::count)
            }
            None => parameter.value(1),
        }
    }

    /// Fails if clients have no overrides.
    pub(super) fn check_override(&self) -> Result<(), AdminError> {
        match self.has_override {
            true => Ok(()),
            false => Err(AdminError::NoOverride(self.name.to_owned())),
        }
    }

    /// Fails if no client can be blocked for so long, in µs.
    pub(super) fn check_block(&self, span: u64) -> Result<(), AdminError> {
        match self.block > 0 && span > self.block && !self.has_override {
            true => Err(AdminError::Block(self.name.to_owned())),
            false => Ok(()),
        }
    }

    /// The quota of a client without an override, by the line and by what the arguments say of its variables: the same as that
    /// of a request with these values.
    pub(super) fn quota(&self, query: &mut QueryString) -> Result<Quota, AdminError> {
        let rate = Given::of_line(["rate", "base_rate"], self.rate, query)?;
        let names = self.burst_names().zip(self.burst);
        let burst = names.map(|(names, text)| Given::of_line(names, text, query)).transpose()?;
        let burst = burst.as_ref();
        let read = (rate.rate(Rate::saturating)?, self.units(burst, rate::saturated)?);
        Quota::saturating(read.0, read.1, |parsed, units| {
            self.quota_of(&rate, burst, parsed, units)
        })
    }

    /// The quota of a client with the override of the arguments.
    pub(super) fn override_of(&self, query: &mut QueryString) -> Result<Quota, AdminError> {
        self.check_override()?;
        let rate = Given::argument("rate", query)?.ok_or(AdminError::Missing("rate"))?;
        let burst = self.burst_names().map(|[name, _]| Given::argument(name, query));
        let burst = burst.transpose()?.flatten();
        let (parsed, units) = (rate.rate(str::parse)?, self.units(burst.as_ref(), rate::whole)?);
        self.quota_of(&rate, burst.as_ref(), parsed, units)
    }

    fn burst_names(&self) -> Option<[&'static str; 2]> {
        match self.algorithm.burst_parameter() {
            BurstParameter::Capacity => Some(CAPACITY),
            BurstParameter::Burst => Some(BURST),
            BurstParameter::None => None,
        }
    }

    /// The number of a capacity or burst, if there is one.
    fn units(&self, burst: Option<&Given>, read: ReadDigits) -> Result<Option<u64>, AdminError> {
        burst.map(|burst| burst.units(self.algorithm.burst_parameter(), read)).transpose()
    }

    /// The quota at this rate, with this capacity or burst, which were given like that.
    fn quota_of(
        &self,
        rate: &Given,
        burst: Option<&Given>,
        parsed: Rate,
        units: Option<u64>,
    ) -> Result<Quota, AdminError> {
        let too_much = |error| burst.unwrap_or(rate).too_much(error);
        let limit = self.algorithm.burst_parameter().limit(parsed, units);
        let quota = Quota::new(self.algorithm, parsed, limit).map_err(too_much)?;
        let quota = quota.with_block(self.block);
        let quota = if self.has_override { quota.with_override() } else { quota };
        if self.is_settled || self.has_override {
            quota.check_settle().map_err(too_much)?;
        }
        Ok(if self.is_settled { quota.with_settle() } else { quota })
    }
}

impl Given {
    /// The value of an argument, if it is there.
    fn argument(name: &'static str, query: &mut QueryString) -> Result<Option<Self>, AdminError> {
        Ok(query.text(name)?.map(|text| Self { name, text }))
    }

    /// The value of a parameter: as it is written, or as the argument says if that is a variable.
    fn of_line(
        [parameter, argument]: [&'static str; 2],
        written: &str,
        query: &mut QueryString,
    ) -> Result<Self, AdminError> {
        if is_literal(written) {
            return Ok(Self { name: parameter, text: written.to_owned() });
        }
        let given = Self::argument(argument, query)?;
        given.ok_or(AdminError::Variable { parameter, argument })
    }

    fn rate(&self, read: fn(&str) -> Result<Rate, RateError>) -> Result<Rate, AdminError> {
        read(&self.text).map_err(|error| self.invalid(&error.to_string()))
    }

    /// The number of a capacity or burst.
    fn units(&self, parameter: BurstParameter, read: ReadDigits) -> Result<u64, AdminError> {
        let least = u64::from(parameter != BurstParameter::Burst);
        let expected = || format!("it must be a number from {least} to {}", rate::MAX_EXACT);
        let number = read(&self.text).ok().filter(|number| *number >= least);
        number.ok_or_else(|| self.invalid(&expected()))
    }

    fn invalid(&self, reason: &str) -> AdminError {
        AdminError::invalid(self.name, &self.text, reason)
    }

    fn too_much(&self, error: QuotaError) -> AdminError {
        AdminError::Quota { name: self.name, value: self.text.clone(), error }
    }
}
