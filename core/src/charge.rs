//! The charge of one limit to a request: Redis, the leases of this machine and its local table decide about it.

use std::rc::Rc;

use crate::decision::Verdict;
use crate::key::{Digest, Head, RedisKey};
use crate::lease::Lease;
use crate::limit::Quota;
use crate::text::number;

/// The charge of one limit to a request.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// The template of the limit's commands.
    pub template: &'a Rc<Template>,
    /// The client, as the second part of the Redis key.
    pub key: &'a [u8],
    /// The quota of the client.
    pub quota: &'a Quota,
    /// The cost of the request.
    pub cost: u64,
    /// The effect of the limit's verdict on the request.
    pub effect: Effect,
    /// Identifies key, limit and quota in the memory of this machine.
    pub digest: Digest,
    /// The lease arguments of the command, if it has any.
    pub lease: Option<&'a Lease>,
}

impl<'a> Charge<'a> {
    /// A charge of an enforced limit, which has neither a digest nor a lease.
    pub fn new(template: &'a Rc<Template>, key: &'a [u8], quota: &'a Quota, cost: u64) -> Self {
        let (effect, digest) = (Effect::Enforced, Digest::default());
        Self { template, key, quota, cost, effect, digest, lease: None }
    }

    /// The Redis key.
    pub(crate) fn redis_key(&self) -> RedisKey<'a> {
        RedisKey { head: self.template.head(), key: self.key }
    }

    /// Identifies key and limit in the memory of this machine, whatever the quota is.
    #[inline]
    pub fn client(&self) -> u128 {
        self.digest.number() ^ u128::from(self.quota.fingerprint())
    }
}

/// The effect of a limit's verdict on a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effect {
    /// It rejects or delays the request.
    #[default]
    Enforced,
    /// It is counted, logged and shown. The limit spends if it allows the request, but lets it pass in any case.
    DryRun,
}

impl Effect {
    /// Whether a limit of this effect lets a request pass with its verdict.
    pub fn lets_pass(self, verdict: &Verdict) -> bool {
        match self {
            Self::Enforced => verdict.allowed,
            Self::DryRun => true,
        }
    }
}

/// The common part of the commands of a line of the configuration.
#[derive(Clone, Debug)]
pub struct Template {
    head: Head,
    prepared: Option<Prepared>,
}

impl Template {
    /// The limit whose Redis keys start with `head`. Keys are made only from a [`Head`].
    pub fn new(head: Head, prepared: Option<Prepared>) -> Self {
        Self { head, prepared }
    }

    /// The part of the Redis key that all clients have in common.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// The command, where all but the client's key is known beforehand.
    pub(crate) fn prepared(&self) -> Option<&Prepared> {
        self.prepared.as_ref()
    }
}

/// The end of a line.
const END: &[u8] = b"\r\n";

/// The command that charges any client of one limit. What is the same each time is encoded once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// All before the length of the key.
    before_length: Vec<u8>,
    /// The end of that line, and the head of the key.
    head: Vec<u8>,
    after_key: Vec<u8>,
}

impl Prepared {
    /// The command with these words before the key, and with these arguments, as they are sent.
    pub(crate) fn new(words: &[u8], head: &Head, arguments: &[u8]) -> Self {
        let (before_length, after_key) = ([words, b"$"].concat(), [END, arguments].concat());
        Self { before_length, head: [END, &head[..]].concat(), after_key }
    }

    /// Appends the command that charges the client of this key to `out`: the same that
    /// [`Scripts::encode_charges`](crate::redis::script::Scripts::encode_charges) makes.
    pub fn encode(&self, out: &mut Vec<u8>, key: &[u8]) {
        let length = self.head.len().saturating_sub(END.len()).saturating_add(key.len());
        out.extend_from_slice(&self.before_length);
        number::push(out, length as u64);
        out.extend_from_slice(&self.head);
        out.extend_from_slice(key);
        out.extend_from_slice(&self.after_key);
    }
}

/// A charge that may be corrected later: when it was made, and what its verdict showed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Charged {
    /// The time of the charge, in µs, by the clock of what decided.
    pub at: u64,
    /// See [`Verdict::remaining`].
    pub remaining: u64,
    /// See [`Verdict::reset`].
    pub reset: u64,
}

impl Charged {
    /// A charge with this verdict.
    pub fn new(at: u64, verdict: &Verdict) -> Self {
        Self { at, remaining: verdict.remaining, reset: verdict.reset }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    thread_local! {
        static TEMPLATE: &'static Rc<Template> =
            Box::leak(Box::new(Rc::new(Template::new(Head::new("rl:", "a").unwrap(), None))));
    }

    /// The template of a limit `a`, which lives as long as the test.
    pub(crate) fn template() -> &'static Rc<Template> {
        TEMPLATE.with(|template| *template)
    }
}
