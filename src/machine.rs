//! The machine that requests are decided with: the shared memory, the clock, and the clients of the stores.

use ngx::ffi::ngx_cycle;
use ngx::http::HttpModuleMainConf;
use rate_limit_core::charge::Charge;
use rate_limit_core::client::{Answer, Error, RequestKey};
use rate_limit_core::decision::Verdict;
use rate_limit_core::lease::Granted;
use rate_limit_core::overrides::Override;
use rate_limit_core::request;

use crate::Module;
use crate::client::Driver;
use crate::conf::LimitConf;
use crate::shm::Shared;

/// A limit, evaluated for a request.
pub(crate) type Evaluated<'a> = request::Evaluated<'a, LimitConf>;
/// The limits of a request that decide in one phase, and their decision.
pub(crate) type LimitedRequest<'r> = request::LimitedRequest<'r, Shared>;
/// The decisions on a request, as one.
pub(crate) type Decisions<'r> = request::Decisions<'r, Shared>;

/// The memory that the workers of this machine share.
pub(crate) fn memory() -> Option<&'static Shared> {
    // SAFETY: a worker has a cycle.
    unsafe { Module::main_conf(&*ngx_cycle)?.shared.get() }
}

/// A request at the client of its store.
#[derive(Clone, Copy)]
pub(crate) struct Submission {
    pub(crate) driver: &'static Driver,
    pub(crate) key: RequestKey,
}

impl request::Submission for Submission {
    #[inline]
    fn take_outcome(&self, take: impl FnOnce(&[Answer])) -> Option<Result<(), Error>> {
        self.driver.read(|client| {
            let outcome = client.outcome(self.key)?;
            take(client.answers(self.key));
            Some(outcome)
        })
    }

    fn with_answers(&self, act: impl FnOnce(&[Answer])) {
        self.driver.read(|client| act(client.answers(self.key)));
    }

    fn granted(&self, charge: usize) -> Granted {
        self.driver.read(|client| client.granted(self.key, charge))
    }

    fn own(&self, charge: usize) -> Option<Override> {
        self.driver.read(|client| client.own(self.key, charge))
    }

    fn unspent(&self, charge: usize) -> Option<Verdict> {
        self.driver.read(|client| client.unspent(self.key, charge))
    }

    fn reserve(&self) {
        self.driver.reserve();
    }

    fn stand(&self) {
        self.driver.stand();
    }

    fn release(&self, refund: bool, wait: Option<u64>) {
        self.driver.release(self.key, refund, wait);
    }

    fn refund(&self, charge: &Charge<'_>, since: u64) {
        self.driver.refund(charge, since);
    }
}
