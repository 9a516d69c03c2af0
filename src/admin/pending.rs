//! The command that was submitted for a request.

use std::cell::Cell;
use std::ffi::c_void;

use ngx::ffi::NGX_LOG_NOTICE;
use rate_limit_core::charge::Charge;
use rate_limit_core::client::Error;
use rate_limit_core::manage::{Change, ClientState};

use crate::client::Driver;
use crate::log::{Log, log};
use crate::machine::Submission;
use crate::nginx::cleanup::{self, CleanUp};
use crate::nginx::{OutOfMemory, Request};

/// The command that was submitted for a request. It lies in the pool of the request as the data of a cleanup, by which it
/// is found, and which releases it if the request ends before the reply.
pub(super) struct Pending<'r> {
    submission: Cell<Option<Submission>>,
    /// The text of a change for the log, if it is one.
    change: Option<&'r [u8]>,
    /// The log of the connection.
    log: Log<'r>,
}

impl<'r> Pending<'r> {
    /// The command that was submitted for a request, if it has not been answered yet.
    pub(super) fn find(r: Request<'r>) -> Option<&'r Self> {
        // SAFETY: the pool is that of the request. What our function cleans up is of this type, and lives as long.
        let pending: &Self = unsafe { cleanup::find(r.pool(), RELEASE)?.as_ref() };
        pending.submission.get().map(|_| pending)
    }

    /// Prepares for a submission, so that none is without its cleanup. `change` is what the log is to say of a change, if it
    /// is one.
    pub(super) fn create(
        r: Request<'r>,
        change: Option<&'r [u8]>,
    ) -> Result<&'r Self, OutOfMemory> {
        let pending = Self { submission: Cell::new(None), change, log: r.log() };
        // SAFETY: the pool is that of the request, and the function takes this type.
        unsafe { Ok(cleanup::add(r.pool(), pending, RELEASE).ok_or(OutOfMemory)?.as_ref()) }
    }

    /// Submits a change of a client. Returns whether the request waits for its outcome.
    pub(super) fn submit(
        &self,
        r: Request<'_>,
        driver: &'static Driver,
        charge: &Charge<'_>,
        change: Change,
        timeout: u64,
    ) -> bool {
        // SAFETY: the event is that of the client's connection, which lives as long as the request; the submission is
        // released when the request goes.
        let (key, waits) = unsafe { driver.manage(charge, change, timeout, r.write_event()) };
        self.submission.set(Some(Submission { driver, key }));
        waits
    }

    /// Takes the outcome, once there is one: what the client has then, or why that is not known.
    pub(super) fn take_outcome(&self) -> Option<Result<ClientState, Error>> {
        let Submission { driver, key } = self.submission.get()?;
        let outcome = driver.read(|client| client.outcome(key))?;
        let state = driver.read(|client| client.state(key));
        let state = outcome.and_then(|()| state.ok_or(Error::Refused));
        self.release();
        match &state {
            Ok(_) => self.log_change("changed"),
            Err(Error::Timeout | Error::Lost) => self.log_change("may have changed"),
            Err(Error::Down | Error::Overload | Error::Refused) => {}
        }
        Some(state)
    }

    fn log_change(&self, what: &str) {
        if let Some(change) = self.change {
            let change = String::from_utf8_lossy(change);
            log!(NGX_LOG_NOTICE, self.log, "{what} a client: {change}");
        }
    }

    fn release(&self) {
        if let Some(Submission { driver, key }) = self.submission.take() {
            driver.release(key, false, None);
        }
    }
}

/// By its address it is found among the cleanups of a pool.
static RELEASE: CleanUp = release;

/// The request ends, perhaps while it waits.
unsafe extern "C" fn release(data: *mut c_void) {
    // SAFETY: the data is a value of this type, whose memory NGINX frees after this, without dropping it. Requests are
    // freed by NGINX, never while a driver borrows its state.
    let pending = unsafe { &*data.cast::<Pending<'_>>() };
    if pending.submission.get().is_some() {
        pending.log_change("may have changed");
    }
    pending.release();
}
