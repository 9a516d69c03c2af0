//! A limit: one `rate_limit_redis` line.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;

use ngx::ffi::ngx_http_request_t;
use rate_limit_core::algorithm::BurstParameter;
use rate_limit_core::algorithm::leaky_bucket::Undelayed;
use rate_limit_core::client::Template;
use rate_limit_core::key::{self, Head};
use rate_limit_core::limit::{Algorithm, Quota};
use rate_limit_core::rate::{Rate, saturated};
use rate_limit_core::redis::script::{Check, Prepared};

use super::error::LimitError;
use super::parameter;
use super::store::Store;
use super::value::{ComplexValue, Setting};
use crate::client::SCRIPTS;
use crate::shm::{LimitRecord, Reservations, Shared};

/// When a limit decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// In the access phase.
    #[default]
    Access,
    /// In the precontent phase, when all access checks have passed.
    Precontent,
}

impl Phase {
    /// In the order of NGINX.
    pub(crate) const ALL: [Self; 2] = [Self::Access, Self::Precontent];
}

/// What the verdict of a limit does to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It rejects or delays the request.
    Enforced,
    /// It is counted, logged and shown.
    DryRun,
}

/// A limit as it was configured.
pub(crate) struct Limit {
    parameters: Parameters,
    /// If neither rate nor burst is a variable.
    quota: Option<Quota>,
    /// What depends on the store, once that is known.
    bound: OnceCell<Bound>,
    /// The counters of the limit, once they are used, and the zone that they are in.
    record: Cell<Option<(u64, &'static LimitRecord)>>,
    /// The same of its reservations.
    reservations: Cell<Option<(u64, Reservations)>>,
}

/// The line.
pub(crate) struct Parameters {
    pub(crate) key: ComplexValue,
    pub(crate) name: &'static str,
    pub(crate) algorithm: Algorithm,
    pub(crate) rate: Setting<Rate>,
    pub(crate) burst: Option<Setting<u64>>,
    pub(crate) cost: Setting<u64>,
    /// What a request has really cost, once that is known.
    pub(crate) settle: Option<ComplexValue>,
    /// How long a client that exceeds the limit is blocked, in µs; 0: not at all.
    pub(crate) block: u64,
    /// Of a leaky bucket: the part of the excess that is not delayed.
    pub(crate) undelayed: Option<Undelayed>,
    pub(crate) phase: Phase,
    pub(crate) effect: Effect,
    /// What the name stands for, apart from the store, as it was written.
    pub(crate) written: String,
    /// File and line.
    pub(crate) place: String,
}

/// What depends on the store of a limit.
struct Bound {
    /// The index of the store.
    store: usize,
    /// What its commands have in common.
    template: Rc<Template>,
    /// Identifies the limit in the memory of this machine.
    fingerprint: u64,
    corrections: Rc<Corrections>,
}

/// What changes the budgets of a limit besides its charges. It is known when all of the configuration is
/// read.
#[derive(Default)]
pub(super) struct Corrections {
    /// Whether a line of the limit has `settle`.
    pub(super) is_settled: Cell<bool>,
    /// Whether charges may be given back: by a settlement, or because another limit, in another slot of a
    /// cluster, rejects the request.
    pub(super) is_refundable: Cell<bool>,
}

impl Limit {
    /// A limit of these parameters; the quota is checked if it is known before the first request.
    pub(crate) fn new(parameters: Parameters) -> Result<Self, LimitError> {
        let burst = match &parameters.burst {
            Some(burst) => burst.literal().map(Some),
            None => Some(None),
        };
        let known = parameters.rate.literal().zip(burst);
        let quota = known.map(|(rate, burst)| parameters.quota(rate, burst)).transpose()?;
        let (record, reservations) = (Cell::new(None), Cell::new(None));
        Ok(Self { parameters, quota, bound: OnceCell::new(), record, reservations })
    }

    /// The cost and the limit, if every request costs more than the limit can hold.
    pub(crate) fn excessive_cost(&self) -> Option<(u64, u64)> {
        let (cost, limit) = (self.parameters.cost.literal()?, self.quota?.limit());
        (cost > limit).then_some((cost, limit))
    }

    /// The delay and the burst, if every request of the burst passes before the delay begins.
    pub(crate) fn excessive_delay(&self) -> Option<(u64, u64)> {
        let Some(Undelayed::UpTo(delay)) = self.parameters.undelayed else { return None };
        let burst = match &self.parameters.burst {
            Some(burst) => burst.literal()?,
            None => 0,
        };
        (delay > burst).then_some((delay, burst))
    }

    /// The name that identifies the limit.
    pub(crate) fn name(&self) -> &'static str {
        self.parameters.name
    }

    /// The algorithm.
    pub(crate) fn algorithm(&self) -> Algorithm {
        self.parameters.algorithm
    }

    /// The algorithm that counts, as far as it is known: windows of a month have one of their own.
    pub(super) fn known_algorithm(&self) -> Algorithm {
        self.quota.map_or(self.algorithm(), |quota| quota.algorithm())
    }

    /// Whether a machine can take units of it ahead. Not where a rejection blocks a client, nor where a
    /// settlement may leave it in debt: that is to hold for all machines at once.
    pub(crate) fn has_leases(&self) -> bool {
        self.algorithm().has_leases() && self.parameters.block == 0 && !self.is_settled()
    }

    /// Of a leaky bucket: the part of the excess that is not delayed.
    pub(crate) fn undelayed(&self) -> Option<Undelayed> {
        self.parameters.undelayed
    }

    /// When it decides.
    pub(crate) fn phase(&self) -> Phase {
        self.parameters.phase
    }

    /// What its verdict does to a request.
    pub(crate) fn effect(&self) -> Effect {
        self.parameters.effect
    }

    /// Whether its commands have no more than plain arguments.
    pub(super) fn is_plain(&self) -> bool {
        self.effect() == Effect::Enforced && self.parameters.block == 0
    }

    /// What the name stands for, apart from the store, as it was written.
    pub(super) fn written(&self) -> &str {
        &self.parameters.written
    }

    /// The place of the line: file and number.
    pub(super) fn place(&self) -> &str {
        &self.parameters.place
    }

    /// The counters of the limit.
    pub(crate) fn record(&self, shared: &Shared) -> &'static LimitRecord {
        of_zone(&self.record, shared, || shared.limit(self.name()))
    }

    /// Where this worker counts the reservations of the limit.
    pub(crate) fn reservations(&self, shared: &Shared) -> Reservations {
        of_zone(&self.reservations, shared, || shared.reservations(self.record(shared)))
    }
}

/// The store of a limit.
impl Limit {
    /// Binds the limit to the store of this index.
    pub(super) fn bind(
        &self,
        index: usize,
        store: &Store,
        corrections: Rc<Corrections>,
    ) -> Result<(), LimitError> {
        let name = self.name();
        let head = Head::new(store.prefix(), name).ok_or_else(|| LimitError::name(name))?;
        self.bound.get_or_init(|| {
            let fingerprint = key::fingerprint(&head);
            let known = self.quota.as_ref().zip(self.parameters.cost.literal());
            let command = known
                .map(|(quota, cost)| Prepared::new(&SCRIPTS, &Check::new(&head, b"", quota, cost)));
            let template = Rc::new(Template::new(head, command));
            Bound { store: index, template, fingerprint, corrections }
        });
        Ok(())
    }

    /// The index of the store, once the limit is bound.
    pub(super) fn store(&self) -> Option<usize> {
        self.bound.get().map(|bound| bound.store)
    }

    /// Whether what it charges may be given back, so that a rejection may end early.
    pub(crate) fn is_refundable(&self) -> bool {
        self.corrections().is_some_and(|it| it.is_refundable.get())
    }

    /// Whether what any line of the limit charges is settled when requests have ended.
    fn is_settled(&self) -> bool {
        self.corrections().is_some_and(|it| it.is_settled.get())
    }

    fn corrections(&self) -> Option<&Corrections> {
        self.bound.get().map(|bound| &*bound.corrections)
    }

    /// What the commands of the limit have in common, once it is bound.
    pub(crate) fn template(&self) -> Option<&Rc<Template>> {
        self.bound.get().map(|bound| &bound.template)
    }

    /// Identifies the limit in the memory of this machine.
    pub(crate) fn fingerprint(&self) -> u64 {
        self.bound.get().map_or(0, |bound| bound.fingerprint)
    }
}

/// The values of a limit for a request.
impl Limit {
    /// The key; `None` if NGINX is out of memory.
    pub(crate) fn key<'a>(&self, r: &'a mut ngx_http_request_t) -> Option<&'a [u8]> {
        self.parameters.key.evaluate(r)
    }

    /// What the client may spend, if neither rate nor burst is a variable.
    pub(crate) fn known_quota(&self) -> Option<&Quota> {
        self.quota.as_ref()
    }

    /// What the client may spend, by the variables of the request.
    pub(crate) fn quota(&self, r: &mut ngx_http_request_t) -> Result<Quota, LimitError> {
        let Parameters { algorithm, rate, burst, .. } = &self.parameters;
        let rate = rate.get(r, |text| parameter::rate(*algorithm, text))?;
        let burst = match burst {
            Some(burst) => {
                Some(burst.get(r, |text| parameter::burst(*algorithm, text, saturated))?)
            }
            None => None,
        };
        self.parameters.quota(rate, burst)
    }

    /// Whether what this line charges is settled when the request has ended.
    pub(crate) fn settles(&self) -> bool {
        self.parameters.settle.is_some()
    }

    /// What the request has really cost; `None` if what it was charged stands.
    pub(crate) fn real_cost(&self, r: &mut ngx_http_request_t) -> Result<Option<u64>, LimitError> {
        let Some(value) = self.parameters.settle else { return Ok(None) };
        match value.evaluate(r).ok_or(LimitError::OutOfMemory)? {
            b"" => Ok(None),
            bytes => parameter::settle(&String::from_utf8_lossy(bytes)).map(Some),
        }
    }

    /// What the request spends.
    pub(crate) fn cost(&self, r: &mut ngx_http_request_t) -> Result<u64, LimitError> {
        self.parameters.cost.get(r, |text| parameter::cost(text, saturated))
    }
}

/// What is kept of the zone that is mapped: made when the zone is another one than before.
fn of_zone<T: Copy>(kept: &Cell<Option<(u64, T)>>, shared: &Shared, make: impl FnOnce() -> T) -> T {
    match kept.get() {
        Some((zone, value)) if zone == shared.identity() => value,
        _ => {
            let value = make();
            kept.set(Some((shared.identity(), value)));
            value
        }
    }
}

impl Parameters {
    fn quota(&self, rate: Rate, burst: Option<u64>) -> Result<Quota, LimitError> {
        let parameter = self.algorithm.burst_parameter();
        let limit = match parameter {
            BurstParameter::Capacity | BurstParameter::None => burst.unwrap_or(rate.count()),
            BurstParameter::Burst => burst.unwrap_or(0).saturating_add(1),
        };
        let in_parameter = |error| {
            let (parameter, value) = match parameter.name().zip(burst) {
                Some((name, burst)) => (name, burst.to_string()),
                None => ("rate", rate.to_string()),
            };
            LimitError::Quota { parameter, value, error }
        };
        let quota = Quota::new(self.algorithm, rate, limit).map_err(in_parameter)?;
        if self.settle.is_some() {
            quota.check_settle().map_err(in_parameter)?;
        }
        Ok(quota.with_block(self.block))
    }
}
