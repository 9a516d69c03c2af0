//! Limits, as the admin interface knows them.

use super::AdminError;
use super::query_string::QueryString;
use crate::algorithm::BurstParameter;
use crate::conf::limit::{Definition, UnusableValue, ValueError, parameter};
use crate::conf::value::is_literal;
use crate::limit::Quota;
use crate::rate::{self, Rate, ReadDigits};

/// A limit of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagedLimit<'a> {
    /// The definition that its name stands for.
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
        let rate = Given::of_line("rate", self.definition.rate, query)?;
        let burst = self.burst_name().zip(self.definition.burst);
        let burst = burst.map(|(name, text)| Given::of_line(name, text, query)).transpose()?;
        Ok(self.definition.corrected(self.quota_of(&rate, burst.as_ref(), true)?))
    }

    /// The quota of a client with the override of the arguments.
    pub(super) fn override_of(&self, query: &mut QueryString) -> Result<Quota, AdminError> {
        self.check_override()?;
        let rate = Given::argument("rate", query)?.ok_or(AdminError::Missing("rate"))?;
        let burst = self.burst_name().map(|name| Given::argument(name, query));
        Ok(self.quota_of(&rate, burst.transpose()?.flatten().as_ref(), false)?)
    }

    /// The quota of these values, whose digits saturate as those of a request do, or do not.
    fn quota_of(
        &self,
        rate: &Given,
        burst: Option<&Given>,
        saturates: bool,
    ) -> Result<Quota, UnusableValue> {
        let (read, digits): (fn(&str) -> _, ReadDigits) = match saturates {
            true => (Rate::saturating, rate::saturated),
            false => (str::parse, rate::whole),
        };
        let Definition { algorithm, ref is_settled, .. } = *self.definition;
        let count = rate.read(|text| parameter::rate(algorithm, text, read))?;
        let most = burst.map(|it| it.read(|text| parameter::burst(algorithm, text, digits)));
        let most = most.transpose()?;
        let quota = |count, most| self.definition.quota(count, most, is_settled.get());
        let quota = match saturates {
            true => Quota::saturating(count, most, quota),
            false => quota(count, most),
        };
        quota.map_err(|error| {
            let Given { name, text } = burst.unwrap_or(rate);
            UnusableValue { name, value: text.clone(), error: ValueError::Quota(error) }
        })
    }
}

impl Given {
    /// The value of an argument, if it is there.
    fn argument(name: &'static str, query: &mut QueryString) -> Result<Option<Self>, AdminError> {
        Ok(query.text(name)?.map(|text| Self { name, text }))
    }

    /// The value of a parameter: as it is written, or as the argument says if that is a variable.
    fn of_line(
        parameter: &'static str,
        written: &str,
        query: &mut QueryString,
    ) -> Result<Self, AdminError> {
        if is_literal(written) {
            return Ok(Self { name: parameter, text: written.to_owned() });
        }
        let argument = match parameter {
            "rate" => "base_rate",
            "capacity" => "base_capacity",
            _ => "base_burst",
        };
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
}
