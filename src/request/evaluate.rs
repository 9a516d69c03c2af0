//! The keys, quotas and costs of a request.

use std::ptr;
use std::rc::Rc;

use rate_limit_core::charge::{Charge, Effect};
use rate_limit_core::decision::Status;
use rate_limit_core::key::{self, Digest, KeyHmac};
use rate_limit_core::limit::Quota;
use rate_limit_core::request::OwnQuota;

use crate::conf::{Bound, EvaluateError, LimitConf};
use crate::log::unusable;
use crate::machine::Evaluated;
use crate::nginx::{OutOfMemory, Request};
use crate::shm::Shared;

/// Why the limits of a request cannot be evaluated.
pub(super) enum Unevaluated {
    /// NGINX is out of memory.
    OutOfMemory,
    /// A limit has no store.
    Unbound,
    /// A variable of a limit of this effect has a value that cannot be used.
    Unusable(Effect),
}

impl From<OutOfMemory> for Unevaluated {
    fn from(_: OutOfMemory) -> Self {
        Self::OutOfMemory
    }
}

/// Evaluates keys and parameters; limits with an empty key are left out. So are those of a dry run with
/// an unusable value, if any others are left.
pub(super) fn evaluate<'r>(
    r: Request<'r>,
    limits: &'r [Rc<LimitConf>],
    shared: &Shared,
) -> Result<&'r [Evaluated<'r>], Unevaluated> {
    let mut is_unusable = false;
    let each = limits.iter().filter_map(|limit| match evaluate_one(r, limit, shared) {
        Err(Unevaluated::Unusable(Effect::DryRun)) => {
            is_unusable = true;
            None
        }
        evaluated => evaluated.transpose(),
    });
    let evaluated: &[_] = r.keep_all(limits.len(), each)?;
    if is_unusable && evaluated.is_empty() {
        return Err(Unevaluated::Unusable(Effect::DryRun));
    }
    if is_unusable {
        count_undecided(r, limits, evaluated, Status::ErrorPassed, shared);
    }
    Ok(evaluated)
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
    let bound = limit.bound().ok_or(Unevaluated::Unbound)?;
    let key = stored(r, key, bound.key_hmac())?;
    let (quota, cost) = match quota_and_cost(r, limit, bound) {
        Ok(values) => values,
        Err(EvaluateError::OutOfMemory(OutOfMemory)) => return Err(Unevaluated::OutOfMemory),
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

/// Counts a request for the limits that apply to it and are not among those evaluated: they will have no
/// verdict. `status` is what becomes of the request; a dry run lets it pass.
#[cold]
pub(super) fn count_undecided(
    r: Request<'_>,
    limits: &[Rc<LimitConf>],
    evaluated: &[Evaluated<'_>],
    status: Status,
    shared: &Shared,
) {
    let is_evaluated = |limit: &LimitConf| evaluated.iter().any(|it| ptr::eq(it.line, limit));
    for limit in limits.iter().filter(|limit| !is_evaluated(limit)) {
        if limit.key(r).is_ok_and(|key| !key.is_empty()) {
            limit.record(shared).count_request(match limit.line.effect {
                Effect::Enforced => status,
                Effect::DryRun => Status::ErrorPassed,
            });
        }
    }
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
