//! One connection to one server, as a state machine without a socket. Times are in µs.
//!
//! ```text
//!   Idle ──▶ Resolving ──▶ Connecting ──▶ Securing ──▶ Handshake ──▶ Ready
//!    ▲ │                     ▲ ▲ │            ▲            ▲           │
//!    │ └──── no host name ───┘ │ └────────────┴─ no TLS ───┘           │
//!    │                         │                                       │
//!    │                         └─ backoff ── Down ◀── failed, or lost ─┤
//!    └────────────────── closed, or lost after a useful life ──────────┘
//! ```

use std::collections::VecDeque;
use std::rc::Rc;

use super::channel::Channel;
use super::fault::{Backoff, Fault, Pace, doubled};
use super::handshake::{Abilities, Handshake, Step};
use super::in_flight::{InFlight, Sent};
use super::input::Input;
use super::slab::{NodeKey, Recycle};
use crate::rate::SECOND;
use crate::redis::refusal::Refusal;
use crate::redis::reply::{self, ProtocolError, Reply};

/// A server that owes replies and sends nothing for this long, or for the store's patience if that
/// is longer, is considered dead, unless a request has a longer timeout and still waits.
pub(super) const SILENCE: u64 = SECOND;

/// A connection that was ready for this long was a good one: when it is lost, the next attempt
/// starts at once.
const USEFUL_LIFE: u64 = SECOND;

/// How many connections in a row may be replaced at once that lived less, if they answered at all. A server that ends each
/// of them costs a fleet so many handshakes a worker before the attempts slow down.
const MAX_REPLACEMENTS: u32 = 5;

/// How long connecting may take at most, in µs, where the server accepts no connection.
const LONGEST_CONNECT: u64 = 2 * SECOND;

/// How long a server that has accepted a connection may take longer than others wait for it, in µs.
pub(super) const PATIENCE_WHEN_ACCEPTED: u64 = 8 * SECOND;

/// How much is encoded ahead of the socket, in bytes; the rest can still be cancelled.
const SEND_AHEAD: usize = 64 * 1024;

/// How often in a row the time for which the worker was away is taken off before a silent server is
/// considered dead.
const MAX_EXCUSES: u32 = 4;

/// A connection.
#[derive(Debug)]
pub struct Connection {
    /// Where it leads.
    pub(super) node: NodeKey,
    handshake: Rc<Handshake>,
    /// The steps of the handshake that are not answered yet.
    steps: VecDeque<Step>,
    /// Whether one was answered.
    is_greeted: bool,
    /// Which steps the server accepts, as far as was known when it was connected.
    abilities: Abilities,
    pub(super) state: ConnectionState,
    /// The last attempt failed or is late, and none has succeeded since.
    is_down: bool,
    /// When the attempt began.
    begun: u64,
    /// The attempt takes longer than it may, and is waited for nevertheless.
    is_late: bool,
    /// How many attempts in a row have timed out.
    timeouts: u32,
    backoff: Backoff,
    pub(super) queue: InFlight,
    output: Vec<u8>,
    output_sent: usize,
    pub(super) input: Input,
    pub(super) channel: Channel,
    /// When the server last sent something, or last began to owe a reply.
    active: u64,
    /// Until then a request may wait for a reply.
    awaited: u64,
    /// Until then the server is not considered dead.
    excused: u64,
    excuses: u32,
    has_answered: bool,
    /// How many short-lived connections in a row were replaced at once.
    replacements: u32,
    /// A connection was lost soon after its handshake, and nothing was answered since.
    is_distrusted: bool,
    /// The end of an attempt to connect, or the start of the next one.
    pub(super) timer: Option<u64>,
    /// Which of the node's addresses is used.
    pub(super) address: usize,
    /// How many addresses were tried in this attempt.
    pub(super) tried: usize,
    /// It is to be flushed at the end of this turn.
    pub(super) is_flush_due: bool,
    /// Its use, as the node has counted it.
    pub(super) counted: Usable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionState {
    Idle,
    Resolving,
    Connecting,
    Securing,
    Handshake,
    Ready { since: u64 },
    Down,
}

/// The uses that a connection has now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usable {
    /// It is made, or being made, or will be after a pause.
    pub(super) is_wanted: bool,
    /// Commands can be sent.
    pub(super) is_ready: bool,
    /// It shows that the server is back: it is ready, and, if an earlier one was lost soon after
    /// its handshake, a command was answered since.
    pub(super) is_sound: bool,
}

/// A reply and its owner.
#[derive(Debug)]
pub(super) enum Incoming {
    /// A step of the handshake is answered, and whether it was the last.
    Step(Step, bool),
    /// A message of a channel.
    Message,
    /// The reply to this command, which may have been overdue.
    Reply(Sent, bool),
}

/// The next step after the loss of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Connect again at once. What was not sent waits for it.
    Connect {
        /// Whether it is the first in a row; the others are not worth a line in a log.
        is_first: bool,
    },
    /// Connect again after this delay.
    Wait(u64),
}

impl Recycle for Connection {
    fn recycle(&mut self) {
        *self = Self::new(self.node, Rc::clone(&self.handshake));
    }
}

impl Connection {
    pub(super) fn new(node: NodeKey, handshake: Rc<Handshake>) -> Self {
        Self {
            node,
            handshake,
            steps: VecDeque::new(),
            is_greeted: false,
            abilities: Abilities::default(),
            state: ConnectionState::Idle,
            is_down: false,
            begun: 0,
            is_late: false,
            timeouts: 0,
            backoff: Backoff::default(),
            queue: InFlight::default(),
            output: Vec::new(),
            output_sent: 0,
            input: Input::default(),
            channel: Channel::default(),
            active: 0,
            awaited: 0,
            excused: 0,
            excuses: 0,
            has_answered: false,
            replacements: 0,
            is_distrusted: false,
            timer: None,
            address: 0,
            tried: 0,
            is_flush_due: false,
            counted: Usable::default(),
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.state == ConnectionState::Idle
    }

    /// Whether commands can be sent.
    pub(super) fn is_ready(&self) -> bool {
        matches!(self.state, ConnectionState::Ready { .. })
    }

    /// Whether bytes can be exchanged.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, ConnectionState::Handshake | ConnectionState::Ready { .. })
    }

    /// Whether commands can be queued: they can be sent, or will be soon.
    pub(super) fn accepts(&self) -> bool {
        !self.is_down
    }

    pub(super) fn usable(&self) -> Usable {
        let is_ready = self.is_ready();
        let is_sound = is_ready && !self.is_distrusted;
        Usable { is_wanted: !self.is_idle(), is_ready, is_sound }
    }

    /// Whether nothing waits and no reply is owed.
    pub(super) fn is_quiet(&self) -> bool {
        self.queue.is_empty() && self.output.is_empty()
    }
}

/// Connecting.
impl Connection {
    /// An attempt begins at `now`. Returns when it ends unless the server has accepted it: after the
    /// `usual` time, and twice as long after each attempt in a row that has timed out.
    pub(super) fn begin_attempt(&mut self, usual: u64, now: u64) -> u64 {
        let end = now.saturating_add(doubled(usual, self.timeouts, LONGEST_CONNECT.max(usual)));
        self.is_late = false;
        self.begun = now;
        self.timer = Some(end);
        end
    }

    /// For how long it has been made.
    pub(super) fn age(&self, now: u64) -> u64 {
        now.saturating_sub(self.begun)
    }

    /// The attempt takes longer than it may. Returns whether it was in time before: then it is waited
    /// for once more, but by no command.
    pub(super) fn on_late(&mut self) -> bool {
        self.is_down = true;
        !std::mem::replace(&mut self.is_late, true)
    }

    /// When to try again after this fault.
    fn pace(&self, fault: &Fault) -> Pace {
        match (self.state, fault) {
            (ConnectionState::Resolving | ConnectionState::Connecting, _)
            | (_, Fault::ConnectTimeout | Fault::SecureTimeout | Fault::Silent(_)) => Pace::Soon,
            (_, Fault::Handshake(_, refusal)) if !refusal.is_passing() => Pace::Rarely,
            _ => Pace::Later,
        }
    }
}

/// Sending.
impl Connection {
    /// The transport to a server with these abilities is connected. The handshake is sent first.
    pub(super) fn on_connected(&mut self, handshake: Rc<Handshake>, abilities: Abilities) {
        self.handshake = handshake;
        self.abilities = abilities;
        self.is_greeted = false;
        self.excuses = 0;
        self.awaited = 0;
        self.state = ConnectionState::Handshake;
        self.has_answered = false;
        self.drop_buffers();
        self.steps = self.handshake.begin(&abilities, &mut self.output);
        self.channel = Channel::default();
    }

    /// Whether more commands are to be encoded.
    pub(super) fn has_room(&self) -> bool {
        self.is_ready() && self.output.len() < SEND_AHEAD && self.queue.has_unsent()
    }

    /// Whether all that was encoded is sent.
    pub(super) fn is_flushed(&self) -> bool {
        self.output.is_empty()
    }

    /// Commands are about to be sent: if none is in flight, the server begins to owe replies.
    pub(super) fn begin_batch(&mut self, now: u64) {
        if !self.queue.is_owed() {
            self.active = now;
        }
    }

    /// Requests wait for a reply until then.
    pub(super) fn await_until(&mut self, deadline: u64) {
        self.awaited = self.awaited.max(deadline);
    }

    /// Where commands are encoded.
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// The rest of the output.
    pub(super) fn output(&self) -> &[u8] {
        self.output.get(self.output_sent..).unwrap_or_default()
    }

    /// `count` bytes of the output were sent.
    pub(super) fn on_sent(&mut self, count: usize) {
        self.output_sent = self.output_sent.saturating_add(count);
        if self.output_sent >= self.output.len() {
            self.output.clear();
            self.output_sent = 0;
        }
    }
}

/// Receiving.
impl Connection {
    pub(super) fn on_received(&mut self, now: u64) {
        self.active = now;
        self.excuses = 0;
    }

    /// The bytes of the next reply, if it is complete.
    pub(super) fn next_frame<'a>(
        &mut self,
        input: &'a [u8],
    ) -> Result<Option<&'a [u8]>, ProtocolError> {
        self.input.next_frame(input, || self.queue.owes_topology())
    }

    pub(super) fn parse<'a>(&self, frame: &'a [u8]) -> Result<Reply<'a>, ProtocolError> {
        match self.state {
            // The reply to SCRIPT EXISTS looks like one of a script.
            ConnectionState::Handshake => reply::parse_other(frame),
            _ => reply::parse(frame),
        }
    }

    /// Removes the passwords from a refusal, before anything else is made of it: those of its own handshake, and of the
    /// `latest` one of its node.
    #[cold]
    pub(super) fn hide_secrets(&self, latest: &Handshake, refusal: &mut Refusal) {
        self.handshake.hide_secrets(latest, refusal);
    }

    /// Finds the owner of a reply.
    pub(super) fn on_reply(&mut self, reply: &Reply<'_>, now: u64) -> Result<Incoming, Fault> {
        if self.state == ConnectionState::Handshake {
            return self.on_step(reply, now);
        }
        if self.channel.on_reply(reply, now)? {
            return Ok(Incoming::Message);
        }
        let (sent, was_overdue) = self.queue.next_reply().ok_or(ProtocolError::Unexpected)?;
        self.has_answered = true;
        self.is_distrusted = false;
        Ok(Incoming::Reply(sent, was_overdue))
    }

    fn on_step(&mut self, reply: &Reply<'_>, now: u64) -> Result<Incoming, Fault> {
        let step = self.steps.pop_front().ok_or(ProtocolError::Unexpected)?;
        self.is_greeted = true;
        let next = self.handshake.on_reply(step, reply, &self.abilities, &mut self.output);
        self.steps.extend(next.map_err(|refusal| Fault::Handshake(step, refusal))?);
        if !self.steps.is_empty() {
            return Ok(Incoming::Step(step, false));
        }
        self.state = ConnectionState::Ready { since: now };
        self.is_down = false;
        self.timeouts = 0;
        self.timer = None;
        self.tried = 0;
        Ok(Incoming::Step(step, true))
    }

    /// The step of the handshake that is to be answered next, if one was answered before.
    pub(super) fn unanswered_step(&self) -> Option<Step> {
        let is_it = self.is_greeted && self.state == ConnectionState::Handshake;
        self.steps.front().copied().filter(|_| is_it)
    }
}

/// Blame and loss.
impl Connection {
    /// The worker was away for this long, and perhaps the server with it. The time is taken off, up
    /// to half of the `patience` at a time, and only a few times in a row: a busy worker must find
    /// a dead server too.
    pub(super) fn excuse(&mut self, away: u64, patience: u64, now: u64) {
        let is_awaited = self.queue.is_owed() || self.timer.is_some();
        if is_awaited && self.excuses < MAX_EXCUSES {
            self.excuses = self.excuses.saturating_add(1);
            self.excused = now.saturating_add(away.min(patience / 2));
            if let Some(end) = self.timer.filter(|_| self.state != ConnectionState::Down) {
                self.timer = Some(end.max(self.excused));
            }
        }
    }

    /// When the oldest command in flight that is not overdue will be.
    pub(super) fn overdue_at(&self, patience: u64) -> Option<u64> {
        let oldest = self.queue.oldest()?;
        Some(oldest.at.saturating_add(patience).max(self.excused))
    }

    /// For how long the server may owe a reply and send nothing: for the `usual` time, and as long as
    /// a request waits for it, for which that is at most the `longest`.
    pub(super) fn silence(&self, usual: u64, longest: u64) -> u64 {
        self.awaited.saturating_sub(self.active).min(longest).max(usual)
    }

    /// When the server will be considered dead after so long a silence, if it owes a reply.
    pub(super) fn silent_at(&self, silence: u64) -> Option<u64> {
        self.queue.is_owed().then(|| self.active.saturating_add(silence).max(self.excused))
    }

    /// The connection is gone, or could not be made. The queue is left to the caller.
    pub(super) fn on_lost(&mut self, fault: &Fault, now: u64, random: u64) -> Next {
        self.drop_buffers();
        let is_hopeless = matches!(fault, Fault::Unfit(_) | Fault::Silent(_));
        if matches!(fault, Fault::ConnectTimeout | Fault::SecureTimeout) {
            self.timeouts = self.timeouts.saturating_add(1);
        }
        let (was_ready, was_useful) = match self.state {
            ConnectionState::Ready { since } => (true, now.saturating_sub(since) >= USEFUL_LIFE),
            _ => (false, false),
        };
        if was_useful {
            self.backoff.succeeded();
            self.replacements = 0;
        }
        self.timer = None;
        let is_good = was_ready && (was_useful || self.has_answered);
        if is_good && self.replacements < MAX_REPLACEMENTS && !is_hopeless {
            let is_first = self.replacements == 0;
            self.replacements = self.replacements.saturating_add(1);
            self.state = ConnectionState::Idle;
            return Next::Connect { is_first };
        }
        self.is_distrusted |= was_ready;
        let pace = self.pace(fault);
        self.state = ConnectionState::Down;
        self.is_down = true;
        Next::Wait(self.backoff.failed(pace, random))
    }

    /// The connection was closed on purpose while it was idle; the next command opens it again.
    pub(super) fn on_closed(&mut self) {
        self.state = ConnectionState::Idle;
        self.is_down = false;
        self.timer = None;
        self.drop_buffers();
    }

    fn drop_buffers(&mut self) {
        self.output.clear();
        self.output_sent = 0;
        self.input = Input::default();
    }
}
