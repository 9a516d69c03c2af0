//! Quotas from an input.

use rate_limit_core::limit::{Algorithm, Quota};
use rate_limit_core::rate::{MAX_TIME, Rate};

use crate::input::Input;

/// A quota that the input makes, if it makes one.
pub fn quota(input: &mut Input<'_>) -> Option<Quota> {
    let algorithm = Algorithm::ALL[input.below(Algorithm::ALL.len())];
    let (is_monthly, blocks) = (input.flag(), input.flag());
    let (count, limit) = (input.number(), input.number());
    let rate = match is_monthly {
        true => Rate::monthly(count),
        false => Rate::new(count, input.number()),
    };
    let quota = Quota::new(algorithm, rate.ok()?, limit).ok()?;
    Some(quota.with_block(if blocks { input.number().min(MAX_TIME) } else { 0 }))
}
