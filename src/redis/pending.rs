//! One request's question to a node, and its answer.

use std::cell::Cell;
use std::ptr::NonNull;

use ngx::ffi::{ngx_event_t, ngx_log_t, ngx_msec_t, ngx_post_event, ngx_posted_events};
use rate_limit_core::algorithm::leaky_bucket;
use rate_limit_core::decision::{Shown, Verdict};
use rate_limit_core::redis::queue::Ticket;
use rate_limit_core::redis::reply::Integers;
use rate_limit_core::redis::script::{By, Question, Scripts};

use super::node::Node;
use crate::conf::Limit;
use crate::timer::Timer;

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
    /// Whether the limit answered, and allows the request.
    pub(crate) fn is_allowed(&self) -> bool {
        self.verdict.get().is_some_and(|verdict| verdict.allowed)
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

/// A question that waits for its answer.
///
/// The request, the queue of the node and NGINX's timer all refer to it, so everything that
/// changes is in a cell. It must not move while it waits.
pub(crate) struct Pending {
    asked: &'static [Asked],
    node: NonNull<Node>,
    ticket: Cell<Option<Ticket>>,
    by: Cell<By>,
    outcome: Cell<Option<Result<(), Trouble>>>,
    deadline: Timer,
    /// Posted when the outcome is known.
    wake: NonNull<ngx_event_t>,
}

impl Pending {
    /// A question to `node` that is not asked yet. `wake` is posted when the outcome is known.
    ///
    /// # Safety
    /// `node` and `wake` must outlive what is returned.
    pub(crate) unsafe fn new(
        asked: &'static [Asked],
        node: NonNull<Node>,
        wake: NonNull<ngx_event_t>,
    ) -> Self {
        Self {
            asked,
            node,
            ticket: Cell::new(None),
            by: Cell::new(By::Sha),
            outcome: Cell::new(None),
            deadline: Timer::new(),
            wake,
        }
    }

    /// All limits of the request: they are asked at once.
    pub(crate) fn asked(&self) -> &'static [Asked] {
        self.asked
    }

    /// What came of it, if that is known.
    pub(crate) fn outcome(&self) -> Option<Result<(), Trouble>> {
        self.outcome.get()
    }

    /// Asks, and gives up after `timeout` ms. The outcome is known at once if the node cannot be
    /// asked.
    ///
    /// # Safety
    /// `self` must stay where it is until it has an outcome or is cancelled, and no function of a
    /// node may be on the stack. `log` must be valid for as long.
    pub(crate) unsafe fn ask(&self, timeout: ngx_msec_t, log: *mut ngx_log_t) {
        // SAFETY: the node lives, and nothing else refers to it at this moment.
        match unsafe { (*self.node.as_ptr()).submit(NonNull::from(self)) } {
            Err(trouble) => return self.outcome.set(Some(Err(trouble))),
            // It could not even start to connect, and has said so.
            Ok(_) if self.outcome.get().is_some() => return,
            Ok(ticket) => self.ticket.set(Some(ticket)),
        }
        // SAFETY: it stays where it is, and is stopped with the outcome or in `cancel`.
        unsafe { self.deadline.start(timeout, Some(on_deadline), self, log) };
    }

    /// The request will not wait any longer: nothing refers to this question any more.
    ///
    /// # Safety
    /// No function of a node may be on the stack.
    pub(crate) unsafe fn cancel(&self) {
        self.deadline.stop();
        if let Some(ticket) = self.ticket.take() {
            // SAFETY: the node lives, and nothing else refers to it at this moment.
            unsafe { (*self.node.as_ptr()).cancel(ticket) };
        }
    }
}

/// What a node does to those who wait in its queue.
impl Pending {
    /// The question behind a pointer from the queue.
    pub(super) fn get<'a>(pending: NonNull<Self>) -> &'a Self {
        // SAFETY: a question is in the queue only until it is answered or cancelled, and until
        // then it lives and does not move.
        unsafe { &*pending.as_ptr() }
    }

    /// The outcome is known: the request goes on in this turn of the event loop.
    pub(super) fn finish(&self, outcome: Result<(), Trouble>) {
        self.deadline.stop();
        self.ticket.set(None);
        self.outcome.set(Some(outcome));
        // SAFETY: the event is that of the request's connection, which lives as long as the
        // request; NGINX removes it from the queue if the connection is closed first.
        unsafe { ngx_post_event(self.wake.as_ptr(), &raw mut ngx_posted_events) };
    }

    /// The server answered; whether that is an answer to this question.
    pub(super) fn answered(&self, mut integers: Integers<'_>) -> bool {
        for asked in self.asked {
            asked.verdict.set(integers.take_array().and_then(Verdict::from_reply));
        }
        let all = self.asked.iter().all(|asked| asked.verdict.get().is_some());
        let sound = all && integers.next().is_none();
        self.finish(if sound { Ok(()) } else { Err(Trouble::Refused) });
        sound
    }

    /// Whether the server has been told the script's source.
    pub(super) fn told_source(&self) -> bool {
        self.by.get() == By::Source
    }

    /// The server does not know the script: the question was queued again, to be asked by source.
    pub(super) fn resubmitted(&self, ticket: Ticket) {
        self.ticket.set(Some(ticket));
        self.by.set(By::Source);
    }

    /// Appends the question to what is sent.
    pub(super) fn encode(&self, scripts: &Scripts, out: &mut Vec<u8>) {
        scripts.ask(out, self.by.get(), self.asked.iter().map(|asked| asked.question));
    }
}

unsafe extern "C" fn on_deadline(event: *mut ngx_event_t) {
    // SAFETY: `ask` set the data, and the timer is removed before the question goes. The event
    // loop calls this, so no function of a node is on the stack.
    unsafe {
        let pending = &*(*event).data.cast::<Pending>();
        pending.cancel();
        pending.finish(Err(Trouble::Timeout));
        (*pending.node.as_ptr()).timed_out();
    }
}
