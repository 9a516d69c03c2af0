//! One request's questions, and their answers.

use std::cell::Cell;
use std::ptr::{self, NonNull};

use ngx::ffi::{ngx_event_t, ngx_log_t, ngx_msec_t, ngx_post_event, ngx_posted_events};
use rate_limit_core::algorithm::leaky_bucket;
use rate_limit_core::decision::{Shown, Verdict};
use rate_limit_core::key;
use rate_limit_core::redis::script::Question;

use super::gift::Gift;
use super::part::{Owner, Part};
use crate::conf::Limit;
use crate::event::Timer;

/// Why a question has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The server was known to be down.
    Down,
    /// Too many others wait.
    Overload,
    /// No answer came in time.
    Timeout,
    /// The connection was lost while waiting.
    Lost,
    /// The server answered with an error, or not to the question.
    Refused,
}

/// One limit that is asked, and what it said.
pub(crate) struct Asked {
    /// The line of the configuration.
    pub(crate) limit: &'static Limit,
    /// What is asked. It lies in the memory of the request and of the configuration, which both
    /// outlive the question.
    pub(crate) question: Question<'static>,
    /// The answer, once there is one.
    pub(crate) verdict: Cell<Option<Verdict>>,
}

impl Asked {
    /// The same question, not asked yet, with its key at another place.
    pub(super) fn with_key(&self, key: &'static [u8]) -> Self {
        let question = Question { key, ..self.question };
        Self { limit: self.limit, question, verdict: Cell::new(None) }
    }

    /// What stands for the limit and the key, in this process.
    pub(super) fn fingerprint(&self) -> u64 {
        key::memory_digest(self.limit.fingerprint(), self.question.key) as u64
    }

    /// Whether the limit answered, and allows the request.
    pub(crate) fn is_allowed(&self) -> bool {
        self.verdict.get().is_some_and(|verdict| verdict.allowed)
    }

    /// Whether the limit answered, and does not allow the request.
    pub(crate) fn is_violated(&self) -> bool {
        self.verdict.get().is_some_and(|verdict| !verdict.allowed)
    }

    /// How long the limit makes an allowed request wait for its turn, in µs.
    pub(crate) fn delay(&self) -> u64 {
        match (self.verdict.get(), self.limit.undelayed()) {
            (Some(verdict), Some(undelayed)) => {
                leaky_bucket::delay(&verdict, &self.question.quota, self.question.cost, undelayed)
            }
            _ => 0,
        }
    }

    /// The limit and its answer, as they are shown.
    pub(crate) fn show(&self) -> Option<Shown<'static>> {
        let verdict = self.verdict.get()?;
        Some(Shown { name: self.limit.name(), quota: self.question.quota, verdict })
    }
}

/// A request's questions, which wait for their answers.
///
/// Its parts and NGINX's timer refer to it, so everything that changes is in a cell. It must not
/// move while it waits.
pub(crate) struct Pending {
    asked: &'static [Asked],
    /// Together they ask all that is asked.
    parts: &'static [Part],
    /// How many of them are not settled.
    waiting: Cell<usize>,
    outcome: Cell<Option<Result<(), Trouble>>>,
    timeout: ngx_msec_t,
    timer: Timer,
    /// Posted when the outcome is known.
    wake: NonNull<ngx_event_t>,
}

impl Pending {
    /// Questions that are not asked yet, and may wait for `timeout` ms. `wake` is posted when the
    /// outcome is known.
    ///
    /// # Safety
    /// `parts` must be those of `asked`, and `wake` outlive what is returned.
    pub(crate) unsafe fn new(
        asked: &'static [Asked],
        parts: &'static [Part],
        timeout: ngx_msec_t,
        wake: NonNull<ngx_event_t>,
    ) -> Self {
        Self {
            asked,
            parts,
            waiting: Cell::new(parts.iter().filter(|part| !part.is_spare()).count()),
            outcome: Cell::new(None),
            timeout,
            timer: Timer::new(),
            wake,
        }
    }

    /// All limits of the request: they are asked at once.
    pub(crate) fn asked(&self) -> &'static [Asked] {
        self.asked
    }

    /// The timer of the request, which is free once the outcome is known.
    pub(crate) fn timer(&self) -> &Timer {
        &self.timer
    }

    /// What came of it, if that is known.
    pub(crate) fn outcome(&self) -> Option<Result<(), Trouble>> {
        self.outcome.get()
    }

    /// Counts for each server that has decided how long the request waited, in µs.
    pub(crate) fn count_wait(&self, wait: u64) {
        for record in self.parts.iter().filter_map(Part::decided_by) {
            record.count_wait(wait);
        }
    }

    /// Asks. The outcome is known at once if nobody can be asked.
    ///
    /// # Safety
    /// `self` must stay where it is until it has an outcome or is cancelled, and no function of a
    /// connection may be on the stack. `log` must be valid for as long.
    pub(crate) unsafe fn ask(&self, log: *mut ngx_log_t) {
        for part in self.parts.iter().filter(|part| !part.is_spare()) {
            part.ask(Owner::Request(NonNull::from(self)));
        }
        if self.outcome.get().is_none() {
            // SAFETY: it stays where it is, and is stopped with the outcome or in `cancel`.
            unsafe { self.timer.start(self.timeout, Some(on_deadline), self, log) };
        }
    }

    /// The request will not wait any longer: nothing refers to this any more.
    ///
    /// # Safety
    /// No function of a connection may be on the stack.
    pub(crate) unsafe fn cancel(&self) {
        self.timer.stop();
        for part in self.parts {
            // SAFETY: passed on.
            unsafe { part.cancel() };
        }
    }

    /// Gives back what limits have spent for a request that is not to be served after all.
    pub(crate) fn give_back(&self) {
        self.spent().for_each(|(asked, part)| Gift::give(asked, part));
    }

    /// The verdicts are as if that had not been spent.
    pub(crate) fn forget_spent(&self) {
        for (asked, _) in self.spent() {
            let returned = |verdict: Verdict| {
                verdict.given_back(asked.question.cost, asked.question.quota.limit())
            };
            asked.verdict.set(asked.verdict.get().map(returned));
        }
    }

    /// What has been spent in Redis, and the parts by which.
    fn spent(&self) -> impl Iterator<Item = (&'static Asked, &'static Part)> {
        let spenders = self.parts.iter().filter(|part| part.has_spent());
        spenders.flat_map(|part| part.asked().iter().map(move |asked| (asked, part)))
    }

    /// Has each limit of `part` asked on its own, a moment later.
    pub(super) fn divide(&self, part: &Part) {
        let asked = part.asked();
        let parts = self.parts.iter().skip_while(|other| !ptr::eq(*other, part));
        for (part, asked) in parts.zip(asked.chunks(1)) {
            part.ask_later(asked, Owner::Request(NonNull::from(self)));
        }
        let spares = asked.len().saturating_sub(1);
        self.waiting.set(self.waiting.get().saturating_add(spares));
    }

    /// One of the parts has its result.
    pub(super) fn part_is_settled(&self) {
        let waiting = self.waiting.get().saturating_sub(1);
        self.waiting.set(waiting);
        if waiting == 0 && self.outcome.get().is_none() {
            self.finish();
        }
    }

    /// The outcome is known.
    fn finish(&self) {
        self.timer.stop();
        self.outcome.set(Some(self.sum_up()));
        self.wake();
    }

    /// The request goes on in this turn of the event loop.
    pub(crate) fn wake(&self) {
        // SAFETY: the event is that of the request's connection, which lives as long as the
        // request; NGINX removes it from the queue if the connection is closed first.
        unsafe { ngx_post_event(self.wake.as_ptr(), &raw mut ngx_posted_events) };
    }

    /// What the results come to: one limit's no is enough, else all must have answered.
    fn sum_up(&self) -> Result<(), Trouble> {
        if self.asked.iter().any(Asked::is_violated) {
            return Ok(());
        }
        let mut used = self.parts.iter().filter(|part| !part.is_spare());
        used.try_for_each(|part| part.result().unwrap_or(Err(Trouble::Timeout)))
    }

    /// The request has waited long enough.
    fn time_out(&self) {
        for part in self.parts {
            // SAFETY: the event loop calls this, so no function of a connection is on the stack.
            if let Some(connection) = unsafe { part.cancel() } {
                // SAFETY: as above; a connection with a question in its queue lives.
                unsafe { connection.as_ref() }.node().timed_out(self.timeout);
            }
        }
        if self.outcome.get().is_none() {
            self.finish();
        }
    }
}

unsafe extern "C" fn on_deadline(event: *mut ngx_event_t) {
    // SAFETY: `ask` set the data, and the timer is removed before the questions go.
    unsafe { &*(*event).data.cast::<Pending>() }.time_out();
}
