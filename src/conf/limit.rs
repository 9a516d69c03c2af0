//! A limit: one `rate_limit_redis` line.

use std::cell::OnceCell;
use std::rc::Rc;

use rate_limit_core::algorithm::Undelayed;
use rate_limit_core::charge::{Effect, Template};
use rate_limit_core::conf::Directive;
use rate_limit_core::conf::limit::{LimitError, LimitLine};
use rate_limit_core::key::{self, Head, KeyHmac};
use rate_limit_core::limit::Quota;
use rate_limit_core::redis::script::{Scripts, Variant};
use rate_limit_core::request::ConfiguredLimit;

use super::store::Store;
use super::value::{ComplexValue, evaluate};
use super::{BindError, EvaluateError};
use crate::nginx::{OutOfMemory, Request};
use crate::shm::{LimitRecord, Reservations, Shared, Sketch, TopZone};

/// A limit as it was configured.
pub(crate) struct LimitConf {
    /// The line as it is written.
    pub(crate) directive: Directive<'static>,
    /// The parameters of the line.
    pub(crate) line: LimitLine<'static, ComplexValue>,
    /// The place of the line: file and number.
    pub(crate) place: String,
    /// The values that depend on the store, once that is known.
    bound: OnceCell<Bound>,
    /// The counters of the limit, once they are used.
    record: OnceCell<&'static LimitRecord>,
    /// The reservations of the limit, once they are used.
    reservations: OnceCell<Reservations>,
    /// Where its keys that were rejected most are kept, once one was.
    sketch: OnceCell<Sketch>,
}

/// The values that depend on the store of a limit.
pub(crate) struct Bound {
    /// The index of the store.
    pub(crate) store: usize,
    /// The template of its commands.
    pub(crate) template: Rc<Template>,
    /// The HMAC of clients' keys in Redis, if there is one.
    pub(crate) key_hmac: Option<Rc<KeyHmac>>,
    /// Identifies the limit in the memory of this machine.
    pub(crate) fingerprint: u64,
    /// The quota of a client, if neither rate nor burst is a variable.
    pub(crate) known_quota: Option<Quota>,
}

impl LimitConf {
    /// The limit of a line at this place.
    pub(crate) fn new(
        directive: Directive<'static>,
        line: LimitLine<'static, ComplexValue>,
        place: String,
    ) -> Self {
        let (bound, record, reservations, sketch) = Default::default();
        Self { directive, line, place, bound, record, reservations, sketch }
    }

    /// The name that identifies the limit.
    pub(crate) fn name(&self) -> &'static str {
        self.line.definition.name
    }

    /// The counters of the limit.
    pub(crate) fn record(&self, shared: &Shared) -> &'static LimitRecord {
        self.record.get_or_init(|| shared.limit(self.name()))
    }

    /// Where this worker counts the reservations of the limit.
    pub(crate) fn reservations(&self, shared: &Shared) -> Reservations {
        *self.reservations.get_or_init(|| shared.reservations(self.record(shared)))
    }

    /// Where its keys that were rejected most are kept.
    pub(crate) fn sketch(&self, top: &TopZone) -> Sketch {
        *self.sketch.get_or_init(|| top.sketch(self.name()))
    }
}

impl ConfiguredLimit for LimitConf {
    fn name(&self) -> &str {
        self.line.definition.name
    }

    fn effect(&self) -> Effect {
        self.line.effect
    }

    fn has_leases(&self) -> bool {
        self.line.definition.has_leases()
    }

    fn is_refundable(&self) -> bool {
        self.line.definition.is_refundable.get()
    }

    fn settles(&self) -> bool {
        self.line.settle.is_some()
    }

    fn undelayed(&self) -> Option<Undelayed> {
        self.line.undelayed
    }

    fn known_quota(&self) -> Option<&Quota> {
        self.bound.get().and_then(|bound| bound.known_quota.as_ref())
    }
}

/// The store of a limit.
impl LimitConf {
    /// Binds the limit to the store of this index.
    pub(super) fn bind(
        &self,
        index: usize,
        store: &Store,
        scripts: &Scripts,
    ) -> Result<(), BindError> {
        let name = self.name();
        let head = Head::new(&store.keys.prefix, name).ok_or_else(|| LimitError::name(name))?;
        self.bound.get_or_init(|| {
            let fingerprint = key::fingerprint(&head);
            let known_quota =
                self.line.known_quota.map(|quota| self.line.definition.corrected(quota));
            let known = known_quota.as_ref().zip(self.line.cost.literal());
            let template = Rc::new(scripts.template(head, known));
            let key_hmac = store.keys.hmac.clone();
            Bound { store: index, template, key_hmac, fingerprint, known_quota }
        });
        Ok(())
    }

    /// How it is counted.
    pub(super) fn variant(&self) -> Variant {
        let definition = &self.line.definition;
        let variant = Variant::new(definition.algorithm, definition.is_settled.get());
        if definition.has_override { variant.with_override() } else { variant }
    }

    /// The values that depend on its store, once it is bound.
    pub(crate) fn bound(&self) -> Option<&Bound> {
        self.bound.get()
    }

    /// The HMAC of clients' keys in Redis, if there is one.
    pub(crate) fn key_hmac(&self) -> Option<&KeyHmac> {
        self.bound()?.key_hmac.as_deref()
    }
}

/// The values of a limit for a request.
impl LimitConf {
    /// The key.
    #[inline]
    pub(crate) fn key<'r>(&self, r: Request<'r>) -> Result<&'r [u8], OutOfMemory> {
        self.line.key.evaluate(r)
    }

    /// The quota of the client, by the variables of the request.
    pub(crate) fn quota(&self, r: Request<'_>) -> Result<Quota, EvaluateError> {
        let line = &self.line;
        let rate = evaluate(&line.rate, r, |text| line.read_rate(text))?;
        let burst = line.burst.as_ref();
        let burst = burst.map(|it| evaluate(it, r, |text| line.read_burst(text))).transpose()?;
        Ok(line.definition.corrected(line.quota_of_request(rate, burst)?))
    }

    /// The real cost of the request; `None` if its charge stands.
    pub(crate) fn real_cost(&self, r: Request<'_>) -> Result<Option<u64>, EvaluateError> {
        let Some(value) = self.line.settle else { return Ok(None) };
        match value.evaluate(r)? {
            b"" => Ok(None),
            bytes => Ok(Some(self.line.read_settle(&String::from_utf8_lossy(bytes))?)),
        }
    }

    /// The cost of the request.
    pub(crate) fn cost(&self, r: Request<'_>) -> Result<u64, EvaluateError> {
        evaluate(&self.line.cost, r, |text| self.line.read_cost(text))
    }
}
