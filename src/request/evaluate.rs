//! The keys, quotas and costs of a request.

use std::rc::Rc;

use rate_limit_core::charge::{Charge, Effect};
use rate_limit_core::key::{self, Digest, KeyHmac};
use rate_limit_core::limit::Quota;
use rate_limit_core::request::{OwnQuota, Remaining, Unevaluated};

use crate::conf::{Bound, EvaluateError, LimitConf};
use crate::log::unusable;
use crate::machine::Evaluated;
use crate::nginx::{OutOfMemory, Request};
use crate::shm::Shared;

impl From<OutOfMemory> for Unevaluated {
    fn from(_: OutOfMemory) -> Self {
        Self::Failed
    }
}

/// Evaluates keys and parameters. Returns the limits to charge, and the effect of those that are left out, if any have an
/// unusable value. Limits with an empty key do not apply.
pub(super) fn evaluate<'r>(
    r: Request<'r>,
    limits: &'r [Rc<LimitConf>],
    shared: &Shared,
) -> Result<(&'r [Evaluated<'r>], Option<Effect>), Unevaluated> {
    let mut remaining = Remaining::default();
    let each = limits.iter().filter_map(|limit| remaining.keep(evaluate_one(r, limit, shared)));
    let kept = r.keep_all(limits.len(), each);
    remaining.conclude(kept)
}

/// Evaluates one limit; `None` if its key is empty.
#[inline(always)]
fn evaluate_one<'r>(
    r: Request<'r>,
    limit: &'r LimitConf,
    shared: &Shared,
) -> Result<Option<Evaluated<'r>>, Unevaluated> {
    let key = limit.key(r)?;
    if key.is_empty() {
        return Ok(None);
    }
    let bound = limit.bound().ok_or(Unevaluated::Failed)?;
    let key = stored(r, key, bound.key_hmac.as_deref())?;
    let (quota, cost) = match quota_and_cost(r, limit, bound) {
        Ok(values) => values,
        Err(EvaluateError::OutOfMemory(OutOfMemory)) => return Err(Unevaluated::Failed),
        Err(EvaluateError::Unusable(error)) => {
            unusable(r.log(), &error, limit.name());
            return Err(Unevaluated::Unusable(limit.line.effect));
        }
    };
    let client = shared.client_digest(bound.fingerprint, key);
    let (effect, digest) = (limit.line.effect, Digest::new(client, quota));
    let (quota, digest, own) = match quota.has_override() {
        true => find_own(r, client, (quota, digest), shared)?,
        false => (quota, digest, None),
    };
    let charge = Charge { effect, digest, ..Charge::new(&bound.template, key, quota, cost) };
    Ok(Some(Evaluated::new(limit, charge, own)))
}

/// The quota that a client has of its own, if this machine knows of one that has not ended, or else that of the line; and
/// the digest with it.
#[cold]
fn find_own<'r>(
    r: Request<'r>,
    client: u128,
    (quota, digest): (&'r Quota, Digest),
    shared: &Shared,
) -> Result<(&'r Quota, Digest, Option<&'r OwnQuota<'r>>), OutOfMemory> {
    let line: Option<&_> = Some(r.keep(OwnQuota::new(quota, digest))?);
    let known = shared.known_override(client).and_then(|own| own.quota(quota));
    let Some(own) = known else { return Ok((quota, digest, line)) };
    Ok((r.keep(own)?, Digest::new(client, &own), line))
}

/// The limits that apply to the request, evaluated or not.
pub(super) fn applying<'r>(
    r: Request<'r>,
    limits: &'r [Rc<LimitConf>],
) -> impl Iterator<Item = &'r LimitConf> {
    let applies = move |limit: &&LimitConf| limit.key(r).is_ok_and(|key| !key.is_empty());
    limits.iter().map(Rc::as_ref).filter(applies)
}

fn quota_and_cost<'r>(
    r: Request<'r>,
    limit: &LimitConf,
    bound: &'r Bound,
) -> Result<(&'r Quota, u64), EvaluateError> {
    let quota = match &bound.known_quota {
        Some(quota) => quota,
        None => r.keep(limit.quota(r)?)?,
    };
    Ok((quota, limit.cost(r)?))
}

/// The key as it stands in Redis. Everything that this machine keeps of a client is found by it as well, so with an HMAC
/// nothing of the client's own key is in the shared memory either.
pub(super) fn stored<'r>(
    r: Request<'r>,
    key: &'r [u8],
    hmac: Option<&KeyHmac>,
) -> Result<&'r [u8], OutOfMemory> {
    match key::replacement(key, hmac) {
        None => Ok(key),
        Some(replacement) => r.copy(replacement.as_bytes()),
    }
}
