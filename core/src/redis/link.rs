//! One connection to one server, as a state machine without a socket.
//!
//! Its owner tells it what happens (connected, bytes came, bytes went, lost) and asks it what to
//! do (what to send, who is answered, when to connect again). Times are in ms of any monotonic
//! clock.
//!
//! ```text
//!          connect()          connected()          greeted
//!   Idle ─────────▶ Connecting ─────────▶ Greeting ───────▶ Ready
//!    ▲                  │  ▲                  │               │
//!    │                  │  └─── delay ─── Down ◀── lost() ────┤ too young
//!    └────────────── close() / lost() after a useful life ────┘
//! ```

use redis::Value;

use crate::text::log::Escaped;

use super::backoff::Backoff;
use super::greeting::{Greeting, Step};
use super::queue::{Queue, Ticket};
use super::reply::{self, ProtocolError, Refusal, RefusalKind, Reply};

/// How many requests may wait on one connection; more are refused at once.
pub const MAX_WAITING: usize = 65_536;

/// A server that owes replies and sends nothing for so many ms is taken for dead.
pub const SILENCE: u64 = 1_000;

/// A connection that was ready for so many ms was a good one: when it is lost, the next is tried
/// at once.
const USEFUL_LIFE: u64 = 1_000;

/// How many connections in a row may be replaced at once that lived less, if they answered at all.
const PATIENCE: u32 = 50;

/// How much is encoded ahead of the socket, in bytes; the rest can still be cancelled.
const SEND_AHEAD: usize = 64 * 1024;

/// How much is received at once, in bytes.
const RECEIVE: usize = 16 * 1024;

/// A connection on which waiters `W` ask and are answered.
#[derive(Debug)]
pub struct Link<W> {
    greeting: Greeting,
    state: State,
    /// The last attempt failed, and none has succeeded since.
    down: bool,
    backoff: Backoff,
    queue: Queue<W>,
    output: Vec<u8>,
    output_sent: usize,
    input: Vec<u8>,
    input_start: usize,
    input_end: usize,
    /// Since when the server has been silent, if it owes anything.
    heard: u64,
    answered: bool,
    /// How many more short-lived connections are replaced at once.
    patience: u32,
    /// A connection came to nothing after its greeting, and no question was answered since.
    distrusted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Connecting,
    Greeting { step: usize },
    Ready { since: u64 },
    Down,
}

/// What came of the bytes that were received.
#[derive(Debug)]
pub enum Event<'a, W> {
    /// The greeting is over.
    Ready,
    /// A reply, and whose it is.
    Answer(W, Reply<'a>),
    /// A message of a channel that was subscribed to.
    Message(Value),
}

/// Why a question is not even queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The server is known to be down.
    Down,
    /// [`MAX_WAITING`] others wait.
    Overload,
}

/// Why a connection was lost or never made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The system could not connect: its error, as text.
    #[error("{0}")]
    Connect(String),
    /// Neither connected nor greeted in time.
    #[error("timed out while connecting")]
    ConnectTimeout,
    /// Reading or writing failed, or the server closed the connection.
    #[error("{0}")]
    Closed(String),
    /// The server owed replies for [`SILENCE`] ms.
    #[error("no reply for {SILENCE} ms")]
    Silent,
    /// The server does not speak the protocol.
    #[error("{0}")]
    Protocol(#[from] ProtocolError),
    /// The server refused a part of the greeting.
    #[error("{} was refused: \"{}\"", .0.command(), Escaped(.1.text.as_bytes()))]
    Greeting(Step, Refusal),
    /// The server answers, but cannot decide for now: it is loading, or a replica.
    #[error("it cannot decide: \"{}\"", Escaped(.0.as_bytes()))]
    Unfit(String),
}

/// What to do about a lost connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It was a good one: connect again at once. Nobody who has not been sent is told.
    Connect {
        /// Whether it is the first in a row; the others are not worth a line in a log.
        first: bool,
    },
    /// Connect again after so many ms.
    Wait {
        /// The delay in ms.
        delay: u64,
    },
}

impl<W: Copy> Link<W> {
    /// An idle link that will introduce itself with `greeting`.
    pub fn new(greeting: Greeting) -> Self {
        Self {
            greeting,
            state: State::Idle,
            down: false,
            backoff: Backoff::default(),
            queue: Queue::new(),
            output: Vec::new(),
            output_sent: 0,
            input: Vec::new(),
            input_start: 0,
            input_end: 0,
            heard: 0,
            answered: false,
            patience: PATIENCE,
            distrusted: false,
        }
    }

    /// Whether a connection is to be made before anything can be sent.
    pub fn is_idle(&self) -> bool {
        self.state == State::Idle
    }

    /// Whether a connection is being made.
    pub fn is_connecting(&self) -> bool {
        self.state == State::Connecting
    }

    /// Whether questions can be sent.
    pub fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready { .. })
    }

    /// Whether the server can be said to be back: it greets, and, if that alone came to nothing
    /// before, has answered a question since.
    pub fn is_sound(&self) -> bool {
        self.is_ready() && !self.distrusted
    }

    /// Whether nobody waits and no reply is owed.
    pub fn is_quiet(&self) -> bool {
        self.queue.is_empty() && self.output.is_empty()
    }

    /// How many wait, with those who have gone.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Adds a waiter; its question is encoded when it can be sent.
    pub fn submit(&mut self, waiter: W) -> Result<Ticket, Refused> {
        if self.down {
            return Err(Refused::Down);
        }
        if self.queue.len() >= MAX_WAITING {
            return Err(Refused::Overload);
        }
        Ok(self.queue.push(waiter))
    }

    /// Forgets a waiter: its question is not sent if it has not been, and its answer is dropped.
    pub fn cancel(&mut self, ticket: Ticket) {
        self.queue.cancel(ticket);
    }

    /// Puts another waiter, of the same question, in the place of one.
    pub fn replace(&mut self, ticket: Ticket, waiter: W) {
        self.queue.replace(ticket, waiter);
    }

    /// A connection is being made.
    pub fn connecting(&mut self) {
        self.state = State::Connecting;
    }

    /// The connection is made; the greeting can be sent.
    pub fn connected(&mut self) {
        self.state = State::Greeting { step: 0 };
        self.answered = false;
        self.output.clear();
        self.output.extend_from_slice(self.greeting.bytes());
        self.output_sent = 0;
        self.input_start = 0;
        self.input_end = 0;
    }

    /// What to send now: what is left of the last batch, else the questions of all who wait, each
    /// appended by `encode`. Empty if there is nothing.
    pub fn output(&mut self, now: u64, mut encode: impl FnMut(W, &mut Vec<u8>)) -> &[u8] {
        if self.output.is_empty() && self.is_ready() && self.queue.has_unsent() {
            if !self.queue.is_owed() {
                self.heard = now;
            }
            while self.output.len() < SEND_AHEAD
                && let Some(waiter) = self.queue.send_next()
            {
                encode(waiter, &mut self.output);
            }
        }
        self.output.get(self.output_sent..).unwrap_or_default()
    }

    /// `count` bytes of the output were sent.
    pub fn sent(&mut self, count: usize) {
        self.output_sent = self.output_sent.saturating_add(count);
        if self.output_sent >= self.output.len() {
            self.output.clear();
            self.output_sent = 0;
        }
    }

    /// Where to put received bytes; never empty.
    pub fn space(&mut self) -> &mut [u8] {
        if self.input_start == self.input_end {
            self.input_start = 0;
            self.input_end = 0;
        } else if self.input_start > 0 {
            self.input.copy_within(self.input_start..self.input_end, 0);
            self.input_end = self.input_end.saturating_sub(self.input_start);
            self.input_start = 0;
        }
        let wanted = self.input_end.saturating_add(RECEIVE);
        if self.input.len() < wanted {
            self.input.resize(wanted, 0);
        }
        self.input.get_mut(self.input_end..).unwrap_or_default()
    }

    /// `count` bytes were put into the [`space`](Self::space).
    pub fn received(&mut self, count: usize, now: u64) {
        self.input_end = self.input_end.saturating_add(count).min(self.input.len());
        self.heard = now;
    }

    /// What the received bytes say, one event a call; `None` when more bytes are needed.
    pub fn next_event(&mut self, now: u64) -> Result<Option<Event<'_, W>>, Fault> {
        loop {
            let bytes = self.input.get(self.input_start..self.input_end).unwrap_or_default();
            let Some(length) = reply::frame(bytes)? else { return Ok(None) };
            let start = self.input_start;
            self.input_start = start.saturating_add(length);
            let frame = self.input.get(start..self.input_start).unwrap_or_default();
            // Before its owner is taken from the queue: if this fails, the owner is told.
            let reply = reply::parse(frame)?;

            if let State::Greeting { step } = self.state {
                let Some(current) = self.greeting.steps().get(step) else {
                    return Err(ProtocolError::Unexpected.into());
                };
                let current = *current;
                let checked = self.greeting.check(current, &reply);
                checked.map_err(|refusal| Fault::Greeting(current, refusal))?;
                let step = step.saturating_add(1);
                self.state = State::Greeting { step };
                if step == self.greeting.steps().len() {
                    self.state = State::Ready { since: now };
                    self.down = false;
                    return Ok(Some(Event::Ready));
                }
                continue;
            }

            let reply = match reply {
                Reply::Other(value) if is_message(&value) => {
                    return Ok(Some(Event::Message(value)));
                }
                reply => reply,
            };
            let owner = self.queue.receive().ok_or(ProtocolError::Unexpected)?;
            self.answered = true;
            self.distrusted = false;
            if let Some(waiter) = owner {
                return Ok(Some(Event::Answer(waiter, reply)));
            }
        }
    }

    /// Whether the server must be taken for dead.
    pub fn is_silent(&self, now: u64) -> bool {
        self.queue.is_owed() && now.saturating_sub(self.heard) >= SILENCE
    }

    /// The connection is gone, or could not be made. `lost` gets all who wait in vain: those
    /// whose question may have been sent, and, unless a new connection is to be tried at once,
    /// all others too; it is told whether the question may have been sent. `fit` says that the
    /// server could decide. `random` is any number that differs between processes.
    pub fn lost(
        &mut self,
        now: u64,
        random: u64,
        fit: bool,
        mut lost: impl FnMut(W, bool),
    ) -> Next {
        self.output.clear();
        self.output_sent = 0;
        let hopeless = !fit || self.is_silent(now);
        let (ready, long) = match self.state {
            State::Ready { since } => (true, now.saturating_sub(since) >= USEFUL_LIFE),
            _ => (false, false),
        };
        if long {
            self.backoff.succeeded();
            self.patience = PATIENCE;
        }
        self.queue.drain_sent().for_each(|waiter| lost(waiter, true));
        if ready && (long || self.answered) && self.patience > 0 && !hopeless {
            let first = self.patience == PATIENCE;
            self.patience = self.patience.saturating_sub(1);
            self.state = State::Idle;
            return Next::Connect { first };
        }
        self.distrusted |= ready;
        self.state = State::Down;
        self.queue.drain().for_each(|waiter| lost(waiter, false));
        self.down = true;
        Next::Wait { delay: self.backoff.failed(random) }
    }

    /// The connection was closed on purpose while it was quiet; the next question opens it again.
    pub fn close(&mut self) {
        self.state = State::Idle;
        self.output.clear();
        self.output_sent = 0;
    }
}

/// Whether a value is a message of a channel; no reply to a command of ours looks like one.
fn is_message(value: &Value) -> bool {
    matches!(value, Value::Array(words) if words.len() == 3
        && matches!(words.first(), Some(Value::BulkString(kind)) if kind == b"message"))
}

impl Step {
    fn command(self) -> &'static str {
        match self {
            Self::Auth => "AUTH",
            Self::Select => "SELECT",
            Self::SetName => "CLIENT SETNAME",
            Self::LoadScript => "SCRIPT LOAD",
        }
    }
}

impl Fault {
    /// Whether the server was able to decide when the connection was lost.
    pub fn is_fit(&self) -> bool {
        !matches!(self, Self::Unfit(_))
    }

    /// Whether the server is there, but will not have us: a matter for the administrator.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Greeting(_, refusal) if refusal.kind != RefusalKind::NotReady)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::script::Scripts;

    type Asked = Link<char>;

    fn encode(waiter: char, out: &mut Vec<u8>) {
        out.push(waiter as u8);
    }

    fn link() -> Asked {
        let endpoint = "redis://127.0.0.1".parse().unwrap();
        Link::new(Greeting::new(&endpoint, "nginx", Scripts::new().all()))
    }

    fn receive(link: &mut Asked, bytes: &[u8], now: u64) {
        for chunk in bytes.chunks(3) {
            link.space()[..chunk.len()].copy_from_slice(chunk);
            link.received(chunk.len(), now);
        }
    }

    /// Sends all there is to send.
    fn flush(link: &mut Asked, now: u64) -> String {
        let bytes = link.output(now, encode).to_vec();
        link.sent(bytes.len());
        String::from_utf8(bytes).unwrap()
    }

    fn answer(link: &mut Asked, now: u64) -> Option<char> {
        match link.next_event(now).unwrap() {
            Some(Event::Answer(waiter, _)) => Some(waiter),
            Some(other) => panic!("{other:?}"),
            None => None,
        }
    }

    fn accept_greeting(link: &mut Asked, now: u64) {
        let steps = link.greeting.steps().len();
        receive(link, &b"+OK\r\n".repeat(steps), now);
    }

    fn greet(link: &mut Asked, now: u64) {
        link.connecting();
        link.connected();
        flush(link, now);
        accept_greeting(link, now);
        assert!(matches!(link.next_event(now), Ok(Some(Event::Ready))));
    }

    fn lose(link: &mut Asked, now: u64) -> (Next, String) {
        let mut lost = String::new();
        let next = link.lost(now, 0, true, |waiter, _| lost.push(waiter));
        (next, lost)
    }

    #[test]
    fn questions_wait_for_the_greeting() {
        let mut link = link();
        link.submit('a').unwrap();
        link.connecting();
        assert_eq!(link.output(0, encode), b"");
        link.connected();
        link.submit('b').unwrap();
        assert!(flush(&mut link, 0).contains("SETNAME"));
        assert_eq!(flush(&mut link, 0), "");
        accept_greeting(&mut link, 1);
        assert!(matches!(link.next_event(1), Ok(Some(Event::Ready))));
        assert_eq!(flush(&mut link, 1), "ab");
        receive(&mut link, b"+x\r\n+y\r\n", 2);
        let answers = [answer(&mut link, 2), answer(&mut link, 2), answer(&mut link, 2)];
        assert_eq!(answers, [Some('a'), Some('b'), None]);
        assert!(link.is_quiet());
    }

    #[test]
    fn a_good_connection_is_replaced_at_once_and_only_the_sent_are_lost() {
        let mut link = link();
        greet(&mut link, 0);
        link.submit('a').unwrap();
        flush(&mut link, 0);
        receive(&mut link, b"+x\r\n", 0);
        answer(&mut link, 0);
        link.submit('b').unwrap();
        flush(&mut link, 1);
        link.submit('c').unwrap();
        assert_eq!(lose(&mut link, 2), (Next::Connect { first: true }, "b".to_owned()));
        greet(&mut link, 3);
        assert_eq!(flush(&mut link, 3), "c");
    }

    #[test]
    fn patience_with_short_lives_ends() {
        let mut link = link();
        let mut replaced = 0;
        loop {
            greet(&mut link, 0);
            link.submit('a').unwrap();
            flush(&mut link, 0);
            receive(&mut link, b"+x\r\n", 0);
            answer(&mut link, 0);
            match lose(&mut link, 1).0 {
                Next::Connect { first } => assert_eq!(first, replaced == 0),
                Next::Wait { .. } => break,
            }
            replaced += 1;
        }
        assert_eq!(replaced, PATIENCE);
        greet(&mut link, 0);
        assert_eq!(lose(&mut link, USEFUL_LIFE).0, Next::Connect { first: true });
    }

    #[test]
    fn greetings_alone_do_not_end_the_backoff() {
        let mut link = link();
        let mut delays = Vec::new();
        for _ in 0..4 {
            greet(&mut link, 0);
            if let (Next::Wait { delay, .. }, _) = lose(&mut link, 5) {
                delays.push(delay);
            }
        }
        assert_eq!(delays, [10, 20, 40, 80]);
    }

    #[test]
    fn a_connection_that_never_answers_is_not_replaced_in_a_loop() {
        let mut link = link();
        greet(&mut link, 0);
        let (next, _) = lose(&mut link, 5);
        assert_eq!(next, Next::Wait { delay: 10 });
        assert_eq!(link.submit('a'), Err(Refused::Down));
        greet(&mut link, 10);
        assert!(matches!(lose(&mut link, 2_000), (Next::Connect { .. }, _)));
    }

    #[test]
    fn a_failed_attempt_fails_all_and_the_state_changes_once() {
        let mut link = link();
        link.submit('a').unwrap();
        link.connecting();
        let (next, lost) = lose(&mut link, 0);
        assert_eq!((next, lost.as_str()), (Next::Wait { delay: 10 }, "a"));
        link.connecting();
        assert_eq!(link.submit('b'), Err(Refused::Down));
        assert!(matches!(lose(&mut link, 0).0, Next::Wait { delay: 20 }));
        link.connecting();
        link.connected();
        accept_greeting(&mut link, 1);
        assert!(matches!(link.next_event(1), Ok(Some(Event::Ready))));
        assert!(link.submit('c').is_ok());
    }

    #[test]
    fn a_refused_greeting_is_a_fault() {
        let mut link = link();
        link.connecting();
        link.connected();
        receive(&mut link, b"-NOAUTH Authentication required.\r\n", 0);
        let fault = link.next_event(0).unwrap_err();
        assert!(fault.is_refusal());
        assert_eq!(
            fault.to_string(),
            "CLIENT SETNAME was refused: \"NOAUTH Authentication required.\""
        );
    }

    #[test]
    fn silence_is_noticed() {
        let mut link = link();
        greet(&mut link, 0);
        assert!(!link.is_silent(9_999));
        link.submit('a').unwrap();
        flush(&mut link, 10_000);
        assert!(!link.is_silent(10_999));
        assert!(link.is_silent(11_000));
        let (next, lost) = lose(&mut link, 11_000);
        assert!(matches!(next, Next::Wait { .. }));
        assert_eq!(lost, "a");
        // To greet again is not enough to be trusted.
        greet(&mut link, 11_100);
        assert!(link.is_ready() && !link.is_sound());
        link.submit('b').unwrap();
        flush(&mut link, 11_200);
        receive(&mut link, b"+x\r\n", 11_300);
        assert_eq!(answer(&mut link, 11_300), Some('b'));
        assert!(link.is_sound());
    }

    #[test]
    fn a_reply_to_nothing_is_a_fault() {
        let mut link = link();
        greet(&mut link, 0);
        receive(&mut link, b"+surprise\r\n", 0);
        assert_eq!(link.next_event(0).unwrap_err(), ProtocolError::Unexpected.into());
    }

    #[test]
    fn waiters_are_bounded() {
        let mut link = link();
        for _ in 0..MAX_WAITING {
            link.submit('a').unwrap();
        }
        assert_eq!(link.submit('a'), Err(Refused::Overload));
    }

    #[test]
    fn a_large_batch_is_sent_in_parts() {
        fn encode_wide(_: char, out: &mut Vec<u8>) {
            out.extend_from_slice(b"abcdefgh");
        }
        let mut link = link();
        greet(&mut link, 0);
        for _ in 0..SEND_AHEAD / 8 + 5 {
            link.submit('a').unwrap();
        }
        assert_eq!(link.output(0, encode_wide).len(), SEND_AHEAD);
        link.sent(SEND_AHEAD - 1);
        assert_eq!(link.output(0, encode_wide), b"h");
        link.sent(1);
        assert_eq!(link.output(0, encode_wide).len(), 40);
    }
}
