//! Limits, as the admin interface knows them.

use super::AdminError;
use super::query_string::QueryString;
use crate::algorithm::BurstParameter;
use crate::conf::limit::{Definition, UnusableValue, ValueError, parameter};
use crate::conf::value::is_literal;
use crate::limit::{Quota, QuotaError};
use crate::rate::{self, Rate, RateError, ReadDigits};

/// A limit of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagedLimit<'a> {
    /// What its name stands for.
    pub definition: &'a Definition<'a>,
    /// The store, without a password.
    pub store: &'a str,
}

/// A value for a client: of the line, or of an argument.
#[derive(Debug)]
struct Given {
    /// The name of the parameter or argument.
    name: &'static str,
    text: String,
}

impl ManagedLimit<'_> {
    /// The name of its parameter `capacity` or `burst`, if the algorithm has one of them.
    pub(crate) fn burst_name(&self) -> Option<&'static str> {
        self.definition.algorithm.burst_parameter().name()
    }

    /// The value of that parameter, if it has no variable.
    pub(crate) fn known_burst(&self) -> Option<u64> {
        let Definition { rate, burst, .. } = *self.definition;
        let parameter = self.definition.algorithm.burst_parameter();
        match burst {
            Some(text) => rate::whole(text).ok(),
            None if parameter == BurstParameter::Capacity => {
                rate.parse::<Rate>().ok().map(Rate::count)
            }
            None => parameter.value(1),
        }
    }

    /// Fails if clients have no overrides.
    pub(super) fn check_override(&self) -> Result<(), AdminError> {
        match self.definition.has_override {
            true => Ok(()),
            false => Err(AdminError::NoOverride(self.definition.name.to_owned())),
        }
    }

    /// Fails if no client can be blocked for so long, in µs.
    pub(super) fn check_block(&self, span: u64) -> Result<(), AdminError> {
        let Definition { name, block, has_override, .. } = *self.definition;
        match block > 0 && span > block && !has_override {
            true => Err(AdminError::Block(name.to_owned())),
            false => Ok(()),
        }
    }

    /// The quota of a client without an override, by the line and by what the arguments say of its variables: the same as that
    /// of a request with these values.
    pub(super) fn quota(&self, query: &mut QueryString) -> Result<Quota, AdminError> {
        let definition = self.definition;
        let rate = Given::of_line(["rate", "base_rate"], definition.rate, query)?;
        let names = self.burst_names().zip(definition.burst);
        let burst = names.map(|(names, text)| Given::of_line(names, text, query)).transpose()?;
        let burst = burst.as_ref();
        let (count, most) = self.numbers(&rate, burst, Rate::saturating, rate::saturated)?;
        let quota = Quota::saturating(count, most, |count, most| self.quota_of(count, most));
        Ok(definition.corrected(quota.map_err(|error| burst.unwrap_or(&rate).too_much(error))?))
    }

    /// The quota of a client with the override of the arguments.
    pub(super) fn override_of(&self, query: &mut QueryString) -> Result<Quota, AdminError> {
        self.check_override()?;
        let rate = Given::argument("rate", query)?.ok_or(AdminError::Missing("rate"))?;
        let burst = self.burst_name().map(|name| Given::argument(name, query));
        let burst = burst.transpose()?.flatten();
        let (count, most) = self.numbers(&rate, burst.as_ref(), str::parse, rate::whole)?;
        let too_much = |error| burst.as_ref().unwrap_or(&rate).too_much(error);
        self.quota_of(count, most).map_err(too_much)
    }

    /// The names of that parameter, and of the argument with its value for a client.
    fn burst_names(&self) -> Option<[&'static str; 2]> {
        match self.definition.algorithm.burst_parameter() {
            BurstParameter::Capacity => Some(["capacity", "base_capacity"]),
            BurstParameter::Burst => Some(["burst", "base_burst"]),
            BurstParameter::None => None,
        }
    }

    /// The rate, and the capacity or burst if there is one.
    fn numbers(
        &self,
        rate: &Given,
        burst: Option<&Given>,
        read: fn(&str) -> Result<Rate, RateError>,
        digits: ReadDigits,
    ) -> Result<(Rate, Option<u64>), UnusableValue> {
        let algorithm = self.definition.algorithm;
        let count = rate.read(|text| parameter::rate(algorithm, text, read))?;
        let most = burst.map(|it| it.read(|text| parameter::burst(algorithm, text, digits)));
        Ok((count, most.transpose()?))
    }

    fn quota_of(&self, rate: Rate, burst: Option<u64>) -> Result<Quota, QuotaError> {
        self.definition.quota(rate, burst, self.definition.is_settled.get())
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

    /// Reads it as a parameter, whose name is another one if it is of an argument.
    fn read<T>(
        &self,
        read: impl FnOnce(&str) -> Result<T, UnusableValue>,
    ) -> Result<T, UnusableValue> {
        read(&self.text).map_err(|error| UnusableValue { name: self.name, ..error })
    }

    fn too_much(&self, error: QuotaError) -> AdminError {
        let (name, value) = (self.name, self.text.clone());
        UnusableValue { name, value, error: ValueError::Quota(error) }.into()
    }
}
