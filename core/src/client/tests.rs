//! One client, and a server that is played by the test. Long histories are left to the simulation.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::LazyLock;

use super::connection::SILENCE;
use super::*;
use crate::charge::{Charge, Effect, Template};
use crate::key::Head;
use crate::limit::{Algorithm, Quota};
use crate::metrics::ErrorKind;
use crate::rate::SECOND;
use crate::redis::cluster::slot;

mod addresses;
mod attempts;
mod breaker;
mod credentials;
mod leaving;
mod manage;
mod maps;
mod retired;
mod rounds;
mod sentinel;
mod trouble;
mod turn;

const TIMEOUT: u64 = 100 * MILLISECOND;

/// The reply of a script that found nothing stored.
const FOUND: &str = "$18\r\n1763683200 123456 \r\n";

struct Played {
    client: Client,
    /// Which of the connections is played.
    at: usize,
    now: u64,
    template: Rc<Template>,
    actions: Vec<Action>,
}

static SCRIPTS: LazyLock<Arc<Scripts>> = LazyLock::new(|| Arc::new(Scripts::new()));

static QUOTA: LazyLock<Quota> =
    LazyLock::new(|| Quota::new(Algorithm::Gcra, "1r/m".parse().unwrap(), 3).unwrap());

fn charge<'a>(template: &'a Rc<Template>, key: &'a str) -> Charge<'a> {
    let key = key.as_bytes();
    let digest = key.iter().fold(0, |sum, byte| sum * 31 + u128::from(*byte));
    Charge { digest: digest.into(), ..Charge::new(template, key, &QUOTA, 1) }
}

/// The configuration of a client of one server.
pub(super) fn config() -> Config {
    let account: Endpoint = "redis://10.0.0.1:6379".parse().unwrap();
    let target = Target::Ip(SocketAddr::from(([10, 0, 0, 1], 6_379)));
    Config {
        kind: Kind::Single,
        servers: vec![Server { endpoint: account.clone(), targets: vec![target] }],
        account,
        store: "test".to_owned(),
        client_name: "nginx".to_owned(),
        auth_interval: 0,
        connect_timeout: 250 * MILLISECOND,
        connections: 1,
        max_fails: 3,
        fail_timeout: 1_000 * MILLISECOND,
        longest_timeout: TIMEOUT,
        seed: 1,
    }
}

impl Played {
    fn new() -> Self {
        Self::with(|_| ())
    }

    fn with(change: impl FnOnce(&mut Config)) -> Self {
        let mut config = config();
        change(&mut config);
        let client = Client::new(config, Arc::clone(&SCRIPTS));
        let template = Rc::new(Template::new(Head::new("rl:", "a").unwrap(), None));
        Self { client, at: 0, now: 0, template, actions: Vec::new() }
    }

    /// Ends the turn, and takes the actions.
    fn turn(&mut self) -> Vec<Action> {
        self.take();
        if std::mem::take(&mut self.client.agenda.is_turn_end_due) {
            self.client.on_turn_end(self.now);
        }
        self.take();
        std::mem::take(&mut self.actions)
    }

    fn take(&mut self) {
        self.actions.extend(std::iter::from_fn(|| self.client.poll_action()));
    }

    fn submit(&mut self, key: &str) -> RequestKey {
        self.submit_for(&QUOTA, key)
    }

    fn submit_for(&mut self, quota: &Quota, key: &str) -> RequestKey {
        let template = Rc::clone(&self.template);
        let charge = Charge { quota, ..charge(&template, key) };
        self.client.submit(&[charge], TIMEOUT, self.now)
    }

    fn settle(&mut self, change: i64) {
        let template = Rc::clone(&self.template);
        let settlement = Settlement { since: 1_763_683_200_000_007, change, tag: 5 };
        self.client.settle(&charge(&template, "a"), settlement, self.now);
    }

    fn connection(&self) -> ConnectionKey {
        self.client.pool.connections.keys().nth(self.at).unwrap()
    }

    /// All that is to be sent.
    fn sent(&mut self) -> String {
        let (key, mut sent) = (self.connection(), Vec::new());
        loop {
            let bytes = self.client.output(key, self.now).to_vec();
            if bytes.is_empty() {
                return String::from_utf8(sent).unwrap();
            }
            self.client.on_sent(key, bytes.len());
            sent.extend(bytes);
        }
    }

    /// The keys of the limits whose commands are to be sent.
    fn sent_keys(&mut self) -> String {
        keys_in(&self.sent())
    }

    /// In pieces of three bytes.
    fn receive(&mut self, bytes: &str) {
        let key = self.connection();
        for piece in bytes.as_bytes().chunks(3) {
            let space = self.client.space(key);
            space[..piece.len()].copy_from_slice(piece);
            self.client.on_received(key, piece.len(), self.now);
        }
    }

    fn receive_at_once(&mut self, bytes: &str) {
        let key = self.connection();
        self.client.space(key)[..bytes.len()].copy_from_slice(bytes.as_bytes());
        self.client.on_received(key, bytes.len(), self.now);
    }

    fn accept_handshake(&mut self) {
        let key = self.connection();
        self.client.on_connected(key);
        self.answer_handshake();
    }

    fn answer_handshake(&mut self) {
        let sent = self.sent();
        let is_sha =
            |word: &&str| word.len() == 40 && word.bytes().all(|it| it.is_ascii_hexdigit());
        let shas = sent.split("\r\n").filter(is_sha).count();
        // It has all scripts.
        let replies = sent.split("\r\n").filter_map(|word| match word {
            "AUTH" | "SELECT" | "SETNAME" | "PING" => Some("+OK\r\n".to_owned()),
            "EXISTS" => Some(format!("*{shas}\r\n{}", ":1\r\n".repeat(shas))),
            _ => None,
        });
        self.receive(&replies.collect::<String>());
    }

    /// A client that is connected.
    fn ready() -> Self {
        let mut played = Self::new();
        played.client.start(0);
        played.accept_handshake();
        assert!(played.turn().contains(&Action::Up(played.node())));
        played
    }

    /// A client that is leaving, and whose server is down.
    fn leaving() -> Self {
        let mut played = Self::new();
        played.client.start(0);
        played.turn();
        played.lose();
        played.client.leave(None, played.now);
        played.turn();
        played
    }

    fn node(&self) -> NodeKey {
        self.client.nodes().next().unwrap()
    }

    fn find_or_add_node(&mut self, host: &str) -> NodeKey {
        let Client { pool, agenda, .. } = &mut self.client;
        pool.find_or_add_node(host, 6_379, agenda)
    }

    fn lose(&mut self) -> Vec<Action> {
        let key = self.connection();
        self.client.on_lost(key, &Fault::Closed("closed".to_owned()), self.now);
        self.turn()
    }

    /// One command, and its reply.
    fn exchange(&mut self) {
        let request = self.submit("any");
        self.turn();
        self.sent();
        self.receive(FOUND);
        self.client.release(request, false);
        self.turn();
    }

    fn wait(&mut self, micros: u64) -> Vec<Action> {
        self.now += micros;
        self.client.on_timer(self.now);
        self.turn()
    }

    fn is_connecting(actions: &[Action]) -> bool {
        actions.iter().any(|action| matches!(action, Action::Connect(..)))
    }
}

/// A proxy has connected to another server, say.
#[test]
fn a_connection_that_is_not_logged_in_any_more_logs_in_again() {
    let mut played = Played::with(|config| config.account.password = Some("p".to_owned()));
    played.client.start(0);
    played.turn();
    played.accept_handshake();
    played.exchange();
    let request = played.submit("a");
    played.turn();
    played.sent();
    played.receive("-NOAUTH Authentication required.\r\n");
    assert_eq!(played.client.outcome(request), Some(Err(Error::Refused)));
    played.client.release(request, false);
    let mut actions = played.turn();
    while !Played::is_connecting(&actions) {
        actions = played.wait(played.client.timer().expect("an attempt") - played.now);
    }
    assert!(played.now <= 20 * MILLISECOND);
    played.client.on_connected(played.connection());
    let output = played.client.output(played.connection(), played.now);
    assert!(output.starts_with(b"*2\r\n$4\r\nAUTH\r\n"));
    played.answer_handshake();
    played.exchange();
}

#[test]
fn commands_wait_for_the_handshake() {
    let mut played = Played::new();
    let first = played.submit("a");
    assert!(Played::is_connecting(&played.turn()));
    assert_eq!(played.sent(), "");
    played.accept_handshake();
    let second = played.submit("b");
    assert!(played.turn().contains(&Action::Send(played.connection())));
    assert_eq!(played.sent_keys(), "a b");
    played.receive(FOUND);
    assert_eq!(played.client.outcome(first), Some(Ok(())));
    assert_eq!(played.client.outcome(second), None);
    played.receive(FOUND);
    assert_eq!(played.turn(), [first, second].map(Action::Complete));
}

#[test]
fn a_good_connection_is_replaced_at_once_and_only_what_was_sent_is_lost() {
    let mut played = Played::ready();
    played.exchange();
    let sent = played.submit("a");
    played.turn();
    assert_eq!(played.sent_keys(), "a");
    let unsent = played.submit("b");
    assert!(Played::is_connecting(&played.lose()));
    assert_eq!(played.client.outcome(sent), Some(Err(Error::Lost)));
    assert_eq!(played.client.outcome(unsent), None);
    played.accept_handshake();
    played.turn();
    assert_eq!(played.sent_keys(), "b");
}

#[test]
fn a_command_that_was_held_does_not_connect_twice() {
    let mut played = Played::ready();
    played.exchange();
    let _both = [played.submit("a"), played.submit("a")];
    played.turn();
    assert_eq!(played.sent_keys(), "a");
    played.submit("a");
    let actions = played.lose();
    let connects = actions.iter().filter(|action| matches!(action, Action::Connect(..)));
    assert_eq!(connects.count(), 1, "{actions:?}");
}

/// The requests for which a script was to be sent once more have gone: what was held until their reply is sent at once.
#[test]
fn a_command_that_was_held_follows_one_that_is_dropped() {
    let mut played = Played::ready();
    let both = [played.submit("a"), played.submit("a")];
    played.turn();
    assert_eq!(played.sent_keys(), "a");
    played.submit("a");
    played.turn();
    assert_eq!(played.sent_keys(), "");
    played.receive_at_once("-NOSCRIPT No matching script.\r\n");
    both.into_iter().for_each(|request| played.client.release(request, false));
    played.turn();
    assert_eq!(played.sent_keys(), "a");
}

#[test]
fn patience_with_short_lives_ends() {
    let mut played = Played::ready();
    let mut replaced = 0;
    loop {
        played.exchange();
        if !Played::is_connecting(&played.lose()) {
            break;
        }
        replaced += 1;
        played.accept_handshake();
        played.turn();
    }
    assert_eq!(replaced, 5);
}

#[test]
fn handshakes_alone_do_not_end_the_backoff() {
    let mut played = Played::ready();
    let mut delays = Vec::new();
    for _ in 0..4 {
        assert!(!Played::is_connecting(&played.lose()));
        let delay = played.client.timer().unwrap() - played.now;
        delays.push(delay);
        assert!(Played::is_connecting(&played.wait(delay)));
        played.accept_handshake();
        played.turn();
    }
    assert!(delays.is_sorted() && delays[3] >= 80 * MILLISECOND, "{delays:?}");
}

#[test]
fn a_failed_attempt_fails_all_that_wait() {
    let mut played = Played::new();
    let first = played.submit("a");
    played.turn();
    let actions = played.lose();
    assert!(actions.contains(&Action::Down(played.node(), "closed".to_owned())));
    assert_eq!(played.client.outcome(first), Some(Err(Error::Lost)));
    let second = played.submit("b");
    assert_eq!(played.client.outcome(second), Some(Err(Error::Down)));
    let delay = played.client.timer().unwrap() - played.now;
    played.wait(delay);
    played.accept_handshake();
    assert!(played.turn().contains(&Action::Up(played.node())));
}

#[test]
fn a_refused_handshake_is_a_fault() {
    let mut played = Played::new();
    played.client.start(0);
    played.client.on_connected(played.connection());
    played.receive("-NOAUTH Authentication required.\r\n");
    let reason = "PING was refused: \"NOAUTH Authentication required.\"".to_owned();
    assert!(played.turn().contains(&Action::Down(played.node(), reason)));
}

#[test]
fn silence_ends_a_connection() {
    let mut played = Played::ready();
    played.exchange();
    played.submit("a");
    played.turn();
    played.sent();
    for _ in 0..10 {
        // The worker is not late.
        let due = played.client.timer().unwrap().min(SILENCE);
        let actions = played.wait(due - played.now);
        if actions.contains(&Action::Close(played.connection())) {
            assert_eq!(played.now, SILENCE);
            assert!(!Played::is_connecting(&actions), "it would not answer the next one either");
            return;
        }
    }
    panic!("still connected");
}

#[test]
fn a_reply_to_nothing_is_a_fault() {
    // The second one is for those that have subscribed to a channel.
    for surprise in ["+surprise\r\n", "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n"] {
        let mut played = Played::ready();
        played.receive(surprise);
        assert!(played.turn().contains(&Action::Close(played.connection())), "{surprise}");
    }
}

#[test]
fn waiting_requests_are_bounded() {
    let mut played = Played::ready();
    let requests: Vec<_> =
        (0..MAX_WAITING).map(|number| played.submit(&number.to_string())).collect();
    assert!(requests.iter().all(|request| played.client.outcome(*request).is_none()));
    let refused = played.submit("one more");
    assert_eq!(played.client.outcome(refused), Some(Err(Error::Overload)));
}

#[test]
fn a_large_batch_is_sent_in_parts() {
    let mut played = Played::ready();
    let _requests: Vec<_> = (0..2_000).map(|number| played.submit(&number.to_string())).collect();
    played.turn();
    let (key, mut parts) = (played.connection(), 0);
    loop {
        let length = played.client.output(key, 0).len();
        if length == 0 {
            break;
        }
        assert!(length < 65 * 1_024);
        parts += 1;
        // The rest of the batch comes first, and nothing is encoded behind it.
        played.client.on_sent(key, length - 1);
        assert_eq!(played.client.output(key, 0).len(), 1);
        played.client.on_sent(key, 1);
    }
    assert!(parts > 1);
}

#[test]
fn what_is_the_same_is_one_command_and_the_next_is_held() {
    let mut played = Played::ready();
    let requests: Vec<_> = (0..4).map(|_| played.submit("a")).collect();
    played.turn();
    assert_eq!(played.sent_keys(), "a");
    let held = played.submit("a");
    played.turn();
    assert_eq!(played.sent_keys(), "");
    played.receive(FOUND);
    let allowed = requests.iter().map(|request| played.client.answers(*request)[0].is_charged);
    assert_eq!(allowed.collect::<Vec<_>>(), [true, true, true, false], "in their order");
    played.turn();
    assert_eq!(played.sent_keys(), "a");
    assert_eq!(played.client.outcome(held), None);
}

/// The commands in flight behind one whose script is missing are sent again without the source.
#[test]
fn the_source_of_a_script_is_sent_once() {
    let mut played = Played::ready();
    let requests = ["a", "b", "c"].map(|key| played.submit(key));
    played.turn();
    assert_eq!(played.sent_keys(), "a b c");
    played.receive_at_once(&"-NOSCRIPT No matching script.\r\n".repeat(3));
    played.turn();
    let sent = played.sent();
    let counts = ["\r\nEVAL\r\n", "\r\nEVALSHA\r\n"].map(|name| sent.matches(name).count());
    assert_eq!(counts, [1, 2]);
    // It may have been another script.
    played.receive_at_once(&format!("{FOUND}{FOUND}-NOSCRIPT No matching script.\r\n"));
    played.turn();
    assert!(played.sent().contains("\r\nEVAL\r\n"));
    played.receive(FOUND);
    assert_eq!(requests.map(|request| played.client.outcome(request)), [Some(Ok(())); 3]);
}

/// A key about which only single requests are in flight is not busy.
#[test]
fn single_requests_do_not_wait_for_each_other() {
    let mut played = Played::ready();
    for _ in 0..5 {
        played.submit("a");
        played.turn();
        assert_eq!(played.sent_keys(), "a");
    }
}

#[test]
fn a_held_command_is_sent_in_time() {
    let mut played = Played::ready();
    let _both = [played.submit("a"), played.submit("a")];
    played.turn();
    played.sent();
    played.submit("a");
    played.turn();
    played.wait(TIMEOUT / 8);
    assert_eq!(played.sent_keys(), "a");
}

#[test]
fn a_released_request_is_not_sent_and_its_reply_is_swallowed() {
    let mut played = Played::ready();
    let (unsent, sent) = (played.submit("a"), played.submit("b"));
    played.client.release(unsent, false);
    played.turn();
    assert_eq!(played.sent_keys(), "b");
    played.client.release(sent, false);
    let next = played.submit("c");
    played.turn();
    played.sent();
    played.receive(FOUND);
    assert_eq!(played.client.outcome(next), None);
    played.receive(FOUND);
    assert_eq!(played.client.outcome(next), Some(Ok(())));
    played.client.release(next, false);
    assert!(played.client.is_idle());
}

/// The keys of the commands in what is sent.
fn keys_in(sent: &str) -> String {
    let keys = sent.split("\r\n").filter_map(|word| word.strip_prefix("rl:a:"));
    keys.collect::<Vec<_>>().join(" ")
}

/// A client whose breaker never opens.
fn tireless() -> Played {
    let mut played = Played::with(|config| config.max_fails = 0);
    played.client.start(0);
    played.accept_handshake();
    played.turn();
    played
}

/// Requests about these keys that are not decided in time, and are rejected.
fn reject_late(played: &mut Played, keys: &[&str]) {
    reject_late_for(&QUOTA, played, keys);
}

fn reject_late_for(quota: &Quota, played: &mut Played, keys: &[&str]) {
    let requests: Vec<_> = keys.iter().map(|key| played.submit_for(quota, key)).collect();
    played.turn();
    played.sent();
    played.wait(TIMEOUT);
    for request in requests {
        assert_eq!(played.client.outcome(request), Some(Err(Error::Timeout)));
        played.client.release(request, true);
    }
}

/// The keys of the refunds that are sent.
fn refunded(played: &mut Played) -> String {
    played.turn();
    let sent = played.sent();
    assert!(sent.is_empty() || sent.contains("$2\r\n-1\r\n"), "{sent}");
    keys_in(&sent)
}

/// A server that is slow gets no more than one at a time, however many it owes a reply to.
#[test]
fn late_refunds_are_sent_one_after_the_other() {
    let mut played = tireless();
    reject_late(&mut played, &["a", "b", "c"]);
    played.receive_at_once(&FOUND.repeat(3));
    for key in ["a", "b", "c"] {
        assert_eq!(refunded(&mut played), key);
        assert_eq!(refunded(&mut played), "");
        played.receive(FOUND);
    }
    assert_eq!(refunded(&mut played), "");
    assert!(played.client.is_idle());
}

/// The last one may be in flight when the worker goes, as any refund.
#[test]
fn a_worker_that_leaves_sends_the_late_refunds_that_wait() {
    let mut played = tireless();
    reject_late(&mut played, &["a", "b"]);
    leave(&mut played, None);
    played.receive_at_once(&FOUND.repeat(2));
    assert_eq!(refunded(&mut played), "a");
    assert!(played.client.keeps_worker());
    played.receive(FOUND);
    assert_eq!(refunded(&mut played), "b");
    assert!(!played.client.keeps_worker());
}

/// The refunds of one client are joined while they wait.
#[test]
fn late_refunds_of_one_client_are_one() {
    let mut played = tireless();
    reject_late(&mut played, &["a", "b"]);
    reject_late(&mut played, &["b"]);
    played.receive_at_once(&FOUND.repeat(3));
    assert_eq!(refunded(&mut played), "a");
    played.receive(FOUND);
    played.turn();
    let sent = played.sent();
    assert_eq!((keys_in(&sent).as_str(), sent.contains("\r\n$2\r\n-2\r\n")), ("b", true), "{sent}");
    played.receive(FOUND);
    assert_eq!(refunded(&mut played), "");
}

/// Were they joined, what a settled limit charged later than the first one would stay spent.
#[test]
fn late_refunds_of_different_times_come_back_alone_where_a_limit_is_settled() {
    let (mut played, quota) = (tireless(), QUOTA.with_settle());
    reject_late_for(&quota, &mut played, &["a", "b"]);
    reject_late_for(&quota, &mut played, &["b"]);
    played.receive_at_once(&FOUND.repeat(2));
    played.receive_at_once(&FOUND.replace("123456", "123457"));
    for key in ["a", "b", "b"] {
        assert_eq!(refunded(&mut played), key);
        played.receive(FOUND);
    }
    assert_eq!(refunded(&mut played), "");
}

/// A server that takes a millisecond for a command is at 60 % of its capacity, and stops for a moment. If each late request
/// led to one more command at once, it would never be on time again.
#[test]
fn a_server_that_was_late_is_on_time_again_beside_the_refunds() {
    let mut played = tireless();
    let (mut free_at, mut replies) = (450 * MILLISECOND, VecDeque::new());
    let (mut waiting, mut late) = (Vec::new(), 0);
    for step in 0..4_000 {
        if step % 5 < 3 {
            waiting.push(played.submit(&format!("k{step}")));
        }
        played.turn();
        for _ in keys_in(&played.sent()).split_whitespace() {
            free_at = played.now.max(free_at) + MILLISECOND;
            replies.push_back(free_at);
        }
        while replies.front().is_some_and(|at| *at <= played.now) {
            replies.pop_front();
            played.receive_at_once(FOUND);
        }
        waiting.retain(|request| {
            let Some(outcome) = played.client.outcome(*request) else { return true };
            late += usize::from(outcome.is_err());
            assert!(outcome.is_ok() || step < 3_000, "late in step {step}");
            played.client.release(*request, outcome.is_err());
            false
        });
        played.wait(MILLISECOND);
    }
    assert!(late > 200, "only {late} were late");
}

#[test]
fn no_more_late_refunds_wait_than_there_is_room_for() {
    let mut played = tireless();
    let keys: Vec<_> = (0..1_100).map(|number| format!("k{number}")).collect();
    reject_late(&mut played, &keys.iter().map(String::as_str).collect::<Vec<_>>());
    (0..1_100).for_each(|_| played.receive_at_once(FOUND));
    let mut sent = 0;
    while !refunded(&mut played).is_empty() {
        sent += 1;
        played.receive(FOUND);
    }
    assert_eq!(sent, 1_001);
}

#[test]
fn a_request_that_was_rejected_meanwhile_is_refunded_once() {
    let mut played = Played::ready();
    let request = played.submit("a");
    played.turn();
    played.sent();
    played.client.release(request, true);
    played.receive(FOUND);
    played.turn();
    let sent = played.sent();
    assert_eq!((sent.matches("rl:a:a").count(), sent.matches("$2\r\n-1\r\n").count()), (1, 1));
    // Since the moment of the charge, as the bucket was full before.
    assert!(sent.contains("\r\n1763683200123456\r\n"), "{sent}");
    played.receive(FOUND);
    played.turn();
    assert_eq!(played.sent(), "");
    assert!(played.client.is_idle());
}

#[test]
fn a_charge_is_settled_once() {
    for change in [3, -3] {
        let mut played = Played::ready();
        played.settle(change);
        played.turn();
        let sent = played.sent();
        assert!(sent.contains(&format!("\r\n{change}\r\n")), "{sent}");
        assert!(sent.contains("\r\n1763683200000007\r\n"), "{sent}");
        played.receive(FOUND);
        assert!(played.turn().contains(&Action::Settled { tag: 5, is_settled: true }));
        assert!(played.client.is_idle());
    }
}

#[test]
fn what_is_worth_its_charge_is_settled_without_a_command() {
    let mut played = Played::ready();
    played.settle(0);
    assert_eq!(played.turn(), [Action::Settled { tag: 5, is_settled: true }]);
    assert_eq!(played.sent(), "");
}

#[test]
fn a_settlement_whose_reply_is_lost_is_not_sent_again() {
    let mut played = Played::ready();
    played.settle(3);
    played.turn();
    played.sent();
    let connection = played.connection();
    played.client.on_lost(connection, &Fault::Closed("closed".to_owned()), played.now);
    assert!(played.turn().contains(&Action::Settled { tag: 5, is_settled: false }));
    assert!(played.client.is_idle());
}

#[test]
fn an_answer_has_the_time_of_the_charge() {
    let mut played = Played::ready();
    let request = played.submit("a");
    played.turn();
    played.sent();
    played.receive(FOUND);
    let [answer] = played.client.answers(request) else { panic!("one answer") };
    assert!(answer.is_charged && answer.now > 0, "{answer:?}");
}

/// The last request of the command is rejected by the reply.
#[test]
fn a_late_reply_does_not_change_an_outcome() {
    let mut played = Played::ready();
    let requests = [(); 4].map(|()| played.submit("a"));
    played.turn();
    played.sent();
    played.wait(TIMEOUT);
    let outcomes = |played: &Played| requests.map(|request| played.client.outcome(request));
    assert_eq!(outcomes(&played), [Some(Err(Error::Timeout)); 4]);
    played.receive(FOUND);
    let last = requests.last().map(|request| played.client.answers(*request)[0]);
    assert!(last.and_then(|answer| answer.verdict).is_some_and(|verdict| !verdict.allowed));
    assert_eq!(outcomes(&played), [Some(Err(Error::Timeout)); 4]);
}

#[test]
fn a_deadline_counts_from_the_end_of_the_turn() {
    let mut played = Played::ready();
    let request = played.submit("a");
    played.now += 50 * MILLISECOND;
    played.turn();
    played.sent();
    assert_eq!(played.wait(TIMEOUT - 1), []);
    assert!(played.wait(1).contains(&Action::Complete(request)));
    assert_eq!(played.client.outcome(request), Some(Err(Error::Timeout)));
}

#[test]
fn a_server_that_does_not_answer_is_blamed_but_not_for_the_lag_of_the_worker() {
    for lag in [0, 150 * MILLISECOND] {
        let mut played = Played::with(|config| config.max_fails = 1);
        played.client.start(0);
        played.accept_handshake();
        played.turn();
        played.submit("a");
        played.turn();
        played.sent();
        let actions = played.wait(TIMEOUT + lag);
        let is_down = actions.iter().any(|action| matches!(action, Action::Down(..)));
        assert_eq!(is_down, lag == 0, "{actions:?}");
    }
}

/// However long a worker was away, it soon finds a server that does not answer.
#[test]
fn a_worker_that_was_away_waits_for_half_of_the_patience() {
    let mut played = Played::ready();
    played.exchange();
    played.submit("a");
    played.turn();
    played.sent();
    let is_slow = |actions: &[Action]| actions.iter().any(|it| matches!(it, Action::Slow(..)));
    assert!(!is_slow(&played.wait(5 * TIMEOUT)));
    assert!(is_slow(&played.wait(TIMEOUT / 2)));
}

#[test]
fn a_worker_that_leaves_while_a_server_is_down_connects_for_the_next_request() {
    let mut played = Played::leaving();
    let request = played.submit("a");
    assert!(Played::is_connecting(&played.turn()));
    played.accept_handshake();
    played.turn();
    assert_eq!(played.sent_keys(), "a");
    played.receive(FOUND);
    assert_eq!(played.client.outcome(request), Some(Ok(())));
    played.client.release(request, false);
    assert!(played.turn().contains(&Action::Close(played.connection())));
}

#[test]
fn a_worker_that_leaves_while_a_server_is_down_does_not_connect_without_a_request() {
    let mut played = Played::leaving();
    for _ in 0..2 {
        let request = played.submit("a");
        assert!(Played::is_connecting(&played.turn()));
        played.lose();
        played.client.release(request, false);
        for _ in 0..10 {
            assert!(!Played::is_connecting(&played.wait(1_000 * MILLISECOND)));
        }
    }
}

/// A client that is connected, and would wait for replies for long.
fn patient() -> Played {
    let mut played = Played::with(|config| {
        config.longest_timeout = 15_000 * MILLISECOND;
        config.fail_timeout = 15_000 * MILLISECOND;
    });
    played.client.start(0);
    played.accept_handshake();
    played.turn();
    played
}

fn leave(played: &mut Played, limit: Option<u64>) {
    played.client.leave(limit.map(|limit| played.now + limit), played.now);
    played.turn();
}

/// For how long settlements still keep the worker: until the timer has expired.
fn kept(played: &mut Played) -> u64 {
    let start = played.now;
    while played.client.keeps_worker() {
        let timer = played.client.timer().expect("a timer");
        played.wait(timer - played.now);
    }
    played.now - start
}

#[test]
fn settlements_keep_a_worker_that_leaves_for_a_moment() {
    for (limit, expected) in [(None, 1_000), (Some(5_000), 1_000), (Some(300), 300)] {
        let mut played = patient();
        played.settle(3);
        played.turn();
        assert!(played.sent().contains("rl:a:a"));
        assert!(played.client.keeps_worker());
        played.wait(2_000 * MILLISECOND);
        assert!(played.client.keeps_worker(), "it is not leaving yet");
        leave(&mut played, limit.map(|limit| limit * MILLISECOND));
        assert_eq!(kept(&mut played), expected * MILLISECOND);
        // A later one has a moment of its own, up to the limit.
        played.now += 100 * MILLISECOND;
        played.settle(3);
        played.turn();
        let left = limit.map_or(u64::MAX, |limit| limit.saturating_sub(expected + 100));
        assert_eq!(kept(&mut played), left.min(1_000) * MILLISECOND);
        // A reply that still comes counts.
        played.sent();
        played.receive(&FOUND.repeat(2));
        let settled = Action::Settled { tag: 5, is_settled: true };
        assert_eq!(played.turn().iter().filter(|action| **action == settled).count(), 2);
    }
}

#[test]
fn a_worker_that_leaves_is_kept_no_longer_than_its_settlements_take() {
    let mut played = patient();
    played.settle(3);
    let request = played.submit("b");
    played.turn();
    played.sent();
    played.client.release(request, true);
    leave(&mut played, None);
    assert!(played.client.keeps_worker());
    played.receive(FOUND);
    assert!(played.client.keeps_worker(), "there may be something to refund");
    played.receive(FOUND);
    assert!(!played.client.keeps_worker());
}

#[test]
fn a_worker_that_leaves_serves_what_waits() {
    let mut played = patient();
    let template = Rc::clone(&played.template);
    let patience = 15_000 * MILLISECOND;
    let request = played.client.submit(&[charge(&template, "a")], patience, played.now);
    played.settle(3);
    played.turn();
    played.sent();
    leave(&mut played, Some(300 * MILLISECOND));
    played.wait(10_000 * MILLISECOND);
    assert!(played.client.keeps_worker());
    played.receive(FOUND);
    assert_eq!(played.client.outcome(request), Some(Ok(())));
    played.client.release(request, false);
    assert!(!played.client.keeps_worker());
}

/// They were received before the connection is ended for it.
#[test]
fn replies_behind_the_one_of_an_unfit_server_count() {
    for refusal in ["-LOADING dataset\r\n", "-READONLY replica\r\n"] {
        let mut played = Played::ready();
        let requests = ["a", "b", "c", "d"].map(|key| played.submit(key));
        played.turn();
        assert_eq!(played.sent_keys(), "a b c d");
        played.receive_at_once(&format!("{refusal}{FOUND}{refusal}"));
        assert!(is_down(&played.turn()));
        let outcomes = requests.map(|request| played.client.outcome(request).unwrap());
        let refused = Err(Error::Refused);
        assert_eq!(outcomes, [refused, Ok(()), refused, Err(Error::Lost)], "{refusal}");
        let may_have_run = requests.map(|request| played.client.answers(request)[0].may_have_run);
        assert_eq!(may_have_run, [false, true, false, true], "{refusal}");
    }
}

/// A server that has refused to write, and is connected again.
fn unfit() -> Played {
    let mut played = Played::ready();
    played.submit("a");
    played.turn();
    played.sent();
    played.receive("-MISCONF disk\r\n");
    assert!(is_down(&played.turn()));
    played.wait(8_000 * MILLISECOND);
    played.accept_handshake();
    played
}

/// A request may be charged when it has ended, and not before.
#[test]
fn an_unfit_server_is_up_again_when_it_has_charged_what_a_request_has_cost() {
    // A charge of more than the limit may be a debt that cannot grow: then nothing is written.
    for (change, is_up) in [(1_000_000, false), (3, true), (-3, false)] {
        let mut played = unfit();
        played.settle(change);
        let mut actions = played.turn();
        played.sent();
        played.receive(FOUND);
        actions.extend(played.turn());
        assert_eq!(actions.contains(&Action::Up(played.node())), is_up, "{change}: {actions:?}");
    }
}

/// A server that refuses to write decides on requests that it rejects.
#[test]
fn an_unfit_server_is_up_again_when_it_has_charged_a_request() {
    let mut played = unfit();
    let template = Rc::clone(&played.template);
    for (cost, is_up) in [(1_000_000, false), (0, false), (1, true), (1, false)] {
        let charge = Charge { cost, ..charge(&template, "a") };
        let request = played.client.submit(&[charge], TIMEOUT, played.now);
        let mut actions = played.turn();
        played.sent();
        played.receive(FOUND);
        actions.extend(played.turn());
        assert_eq!(played.client.outcome(request), Some(Ok(())));
        assert_eq!(actions.contains(&Action::Up(played.node())), is_up, "{cost}: {actions:?}");
    }
}

/// A node of a cluster with all slots.
fn cluster(change: impl FnOnce(&mut Config)) -> Played {
    let mut played = Played::with(|config| {
        config.kind = Kind::Cluster;
        change(config);
    });
    played.client.start(0);
    played.accept_handshake();
    played.turn();
    assert!(played.sent().contains("SLOTS"));
    played.receive("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$8\r\n10.0.0.1\r\n:6379\r\n");
    played.turn();
    for connection in 1..played.client.pool.connections.keys().count() {
        played.at = connection;
        played.accept_handshake();
        played.turn();
    }
    played.at = 0;
    played
}

/// Each slot is a range of its own: a map may be longer than any other reply.
#[test]
fn the_map_of_a_large_cluster() {
    let mut played = Played::with(|config| config.kind = Kind::Cluster);
    played.client.start(0);
    played.accept_handshake();
    played.turn();
    assert!(played.sent().contains("SLOTS"));
    let node = format!("*3\r\n$8\r\n10.0.0.1\r\n:6379\r\n$40\r\n{}\r\n", "f".repeat(40));
    let range = |slot| format!("*3\r\n:{slot}\r\n:{slot}\r\n{node}");
    let map = format!("*16384\r\n{}", (0..16_384).map(range).collect::<String>());
    assert!(map.len() > crate::redis::reply::MAX_REPLY);
    played.receive(&map);
    played.turn();
    played.submit("a");
    played.turn();
    assert_eq!(played.sent_keys(), "a");
}

/// A request whose limits have keys in these slots.
fn submit_all(played: &mut Played, keys: &[&'static str]) -> RequestKey {
    let template = Rc::clone(&played.template);
    let charges: Vec<_> = keys.iter().map(|key| charge(&template, key)).collect();
    played.client.submit(&charges, TIMEOUT, played.now)
}

/// Where another slot may reject a request. The second one shares the commands of the first.
#[test]
fn what_a_limit_holds_without_a_charge_is_known() {
    let mut played = cluster(|_| ());
    let requests = [(); 2].map(|()| submit_all(&mut played, &["a", "b"]));
    played.turn();
    assert_eq!(played.sent_keys(), "a b");
    played.receive(FOUND);
    let held = requests.map(|request| {
        let charged = played.client.answers(request)[0].verdict.unwrap();
        let unspent = played.client.unspent(request, 0).unwrap();
        [charged, unspent].map(|verdict| (verdict.remaining, verdict.reset / MILLISECOND))
    });
    assert_eq!(held, [[(2, 60_000), (3, 0)], [(1, 120_000), (2, 60_000)]]);
    assert_eq!(requests.map(|request| played.client.unspent(request, 1)), [None; 2]);
}

/// Limits of a dry run need not answer, if there are others.
#[test]
fn a_limit_of_a_dry_run_without_a_reply_fails_no_request() {
    use Effect::{DryRun, Enforced};
    for (effects, replies, expected) in [
        ([Enforced, DryRun], FOUND, Ok(())),
        ([Enforced, DryRun], "", Err(Error::Timeout)),
        ([DryRun, Enforced], FOUND, Err(Error::Timeout)),
        ([DryRun, DryRun], FOUND, Err(Error::Timeout)),
    ] {
        let mut played = cluster(|_| ());
        let template = Rc::clone(&played.template);
        let [mut one, mut other] = ["a", "b"].map(|key| charge(&template, key));
        [one.effect, other.effect] = effects;
        let request = played.client.submit(&[one, other], TIMEOUT, played.now);
        played.turn();
        assert_eq!(played.sent_keys(), "a b");
        played.receive(replies);
        assert!(played.wait(TIMEOUT).contains(&Action::Complete(request)));
        assert_eq!(played.client.outcome(request), Some(expected), "{effects:?}, {replies:?}");
    }
}

fn is_down(actions: &[Action]) -> bool {
    actions.iter().any(|action| matches!(action, Action::Down(..)))
}

/// Five slots of one node are five commands. If none is answered, that is one failure of the node.
#[test]
fn the_commands_of_one_request_are_one_failure() {
    let mut played = cluster(|config| config.max_fails = 2);
    for (round, goes_down) in [false, true].into_iter().enumerate() {
        submit_all(&mut played, &["a", "b", "c", "d", "e"]);
        played.turn();
        assert_eq!(played.sent_keys(), "a b c d e");
        assert_eq!(is_down(&played.wait(TIMEOUT)), goes_down, "round {round}");
    }
}

#[test]
fn the_commands_of_a_request_that_has_gone_are_one_failure() {
    let mut played = cluster(|config| {
        config.max_fails = 2;
        config.longest_timeout = 3 * TIMEOUT;
    });
    let request = submit_all(&mut played, &["a", "b", "c"]);
    played.turn();
    assert_eq!(played.sent_keys(), "a b c");
    assert!(played.wait(TIMEOUT).contains(&Action::Complete(request)));
    played.client.release(request, false);
    assert!(!is_down(&played.wait(2 * TIMEOUT)));
}

#[test]
fn the_commands_of_one_request_on_several_connections_are_one_failure() {
    let mut played = cluster(|config| {
        config.max_fails = 2;
        config.connections = 3;
    });
    submit_all(&mut played, &["a", "b", "c", "d", "e", "f", "g", "h", "i"]);
    played.turn();
    for connection in 0..3 {
        played.at = connection;
        assert_ne!(played.sent_keys(), "", "connection {connection}");
    }
    assert!(!is_down(&played.wait(TIMEOUT)));
}

#[test]
fn connections_that_are_lost_together_are_one_line() {
    let mut played = cluster(|config| config.connections = 3);
    let is_line = |action: &Action| matches!(action, Action::Log(Level::Notice, _));
    let lines = [0, 1, 2].map(|connection| {
        played.at = connection;
        played.lose().iter().filter(|action| is_line(action)).count()
    });
    assert_eq!(lines, [1, 0, 0]);
}

#[test]
fn a_redirection_counts_though_the_request_has_gone() {
    let mut played = cluster(|_| ());
    let request = played.submit("a");
    played.turn();
    let slot = slot(b"rl:a:", b"a");
    assert_eq!(played.sent_keys(), "a");
    played.client.release(request, false);
    played.receive(&format!("-MOVED {slot} 10.0.0.2:6379\r\n"));
    let is_warning = |action: &Action| matches!(action, Action::Warn(..));
    assert!(!played.turn().iter().any(is_warning));
    let owner =
        played.client.discovery.topology.route(slot).and_then(|key| played.client.node(key));
    assert_eq!(owner.map(Node::name), Some("10.0.0.2:6379"));
}

#[test]
fn a_slot_without_a_master_is_an_error_and_a_reason_to_query_the_topology() {
    let replies = ["-CLUSTERDOWN Hash slot not served\r\n", "-MOVED 1 ?:6379\r\n"];
    for (has_gone, reply) in replies.into_iter().flat_map(|it| [(false, it), (true, it)]) {
        let mut played = cluster(|_| ());
        // The topology was queried just now, which is done only so often.
        played.wait(200 * MILLISECOND);
        let request = played.submit("a");
        played.turn();
        assert_eq!(played.sent_keys(), "a");
        if has_gone {
            played.client.release(request, false);
        }
        played.receive(reply);
        played.wait(0);
        let counts = played.client.take_counts(played.node()).unwrap();
        assert_eq!(counts.errors[ErrorKind::Unfit as usize], 1);
        assert!(played.sent().contains("SLOTS"), "{has_gone} {reply}");
    }
}

/// Two masters, each of half of the slots.
const HALVES: &str = "*2\r\n*3\r\n:0\r\n:8191\r\n*2\r\n$8\r\n10.0.0.1\r\n:6379\r\n\
                   *3\r\n:8192\r\n:16383\r\n*2\r\n$8\r\n10.0.0.2\r\n:6379\r\n";

/// Both are connected. And a key of the first one.
fn halves() -> (Played, &'static str) {
    let mut played = cluster(|_| ());
    played.wait_for_query();
    played.at = 1;
    played.accept_handshake();
    played.turn();
    let is_first = |key: &&str| slot(b"rl:a:", key.as_bytes()) < 8_192;
    (played, ["a", "b", "c", "d", "e"].into_iter().find(is_first).expect("a key"))
}

/// The first and the last slot of each range, and the last byte of its master's address.
fn map(ranges: &[(u16, u16, u8)]) -> String {
    let range = |&(first, last, host): &(u16, u16, u8)| {
        format!("*3\r\n:{first}\r\n:{last}\r\n*2\r\n$8\r\n10.0.0.{host}\r\n:6379\r\n")
    };
    let count = ranges.len();
    format!("*{count}\r\n{}", ranges.iter().map(range).collect::<String>())
}

impl Played {
    /// The name of the node that has a slot; empty if there is none.
    fn owner(&self, slot: u16) -> &str {
        let owner =
            self.client.discovery.topology.route(slot).and_then(|key| self.client.node(key));
        owner.map_or("", Node::name)
    }

    /// Which of two nodes is queried for the topology now.
    fn queried(&mut self) -> Option<usize> {
        (0..2).find(|at| {
            self.at = *at;
            self.sent().contains("SLOTS")
        })
    }

    /// Lets time pass until one of two nodes is queried, and has replied; which one.
    fn wait_for_query(&mut self) -> usize {
        self.wait(13_000 * MILLISECOND);
        let queried = self.queried().expect("a query");
        self.receive(HALVES);
        self.turn();
        queried
    }

    fn submit_to_first(&mut self, key: &str) -> RequestKey {
        let request = self.submit(key);
        self.turn();
        self.at = 0;
        assert_eq!(self.sent_keys(), key);
        request
    }
}

/// It goes on to list itself.
#[test]
fn a_node_that_its_cluster_has_cut_off_is_queried_last() {
    let (mut played, key) = halves();
    let both = |played: &mut Played| {
        let queried: BTreeSet<_> = [(); 4].map(|()| played.wait_for_query()).into();
        assert_eq!(queried, [0, 1].into());
    };
    both(&mut played);
    played.submit_to_first(key);
    played.receive("-CLUSTERDOWN Hash slot not served\r\n");
    assert_eq!([(); 4].map(|()| played.wait_for_query()), [1; 4]);
    played.submit_to_first(key);
    played.receive(FOUND);
    both(&mut played);
}

/// It has just joined, and knows itself only.
#[test]
fn a_map_that_lacks_slots_does_not_count_beside_a_whole_one() {
    let (mut played, _) = halves();
    while played.wait_for_query() != 1 {}
    played.wait(13_000 * MILLISECOND);
    assert_eq!(played.queried(), Some(0));
    played.receive(&map(&[(0, 8_191, 1)]));
    played.turn();
    assert_eq!(played.owner(16_383), "10.0.0.2:6379");
    assert_eq!(played.queried(), Some(1));
    played.receive(HALVES);
    played.turn();
    assert_eq!(played.owner(16_383), "10.0.0.2:6379");
    assert!(played.client.pool.nodes.retired().is_empty());
}

#[test]
fn the_map_that_lacks_the_fewest_slots_counts_if_there_is_no_whole_one() {
    let maps = [map(&[(0, 8_191, 1)]), map(&[(0, 8_191, 1), (8_192, 16_382, 3)])];
    for order in [[0, 1], [1, 0]] {
        let (mut played, _) = halves();
        played.wait(13_000 * MILLISECOND);
        let mut actions = Vec::new();
        for number in order {
            assert_eq!(played.owner(16_383), "10.0.0.2:6379");
            played.queried().expect("a query");
            played.receive(&maps[number]);
            actions = played.turn();
        }
        assert_eq!([8_192, 16_383].map(|slot| played.owner(slot)), ["10.0.0.3:6379", ""]);
        let line = "cluster \"test\": 1 slots have no node".to_owned();
        assert!(actions.contains(&Action::Log(Level::Error, line)), "{actions:?}");
    }
}

/// A slot that had no node is given to one, which the other node does not know.
#[test]
fn a_map_that_lacks_slots_as_all_did_before_does_not_count_beside_a_whole_one() {
    let (mut played, _) = halves();
    let without = map(&[(0, 8_191, 1), (8_192, 16_382, 2)]);
    let mut query = |replies: &[(usize, &str)]| {
        played.wait(13_000 * MILLISECOND);
        let mut owners = Vec::new();
        while let Some(at) = played.queried() {
            played.receive(replies.iter().find(|(node, _)| *node == at).expect("a reply").1);
            played.turn();
            owners.push(played.owner(16_383).to_owned());
        }
        owners
    };
    assert_eq!(query(&[(0, &without), (1, &without)]).last().map(String::as_str), Some(""));
    let second = "10.0.0.2:6379".to_owned();
    let now = [(); 6].map(|()| query(&[(0, HALVES), (1, &without)]));
    let since = now.iter().flatten().skip_while(|owner| **owner != second);
    assert!(since.clone().count() >= 6 && since.clone().all(|owner| *owner == second), "{now:?}");
}

#[test]
fn the_map_of_a_node_counts_if_no_other_replies() {
    let (mut played, _) = halves();
    while played.wait_for_query() != 1 {}
    played.wait(13_000 * MILLISECOND);
    assert_eq!(played.queried(), Some(0));
    played.receive(&map(&[(0, 8_191, 1)]));
    played.turn();
    played.at = 1;
    played.lose();
    assert_eq!([0, 16_383].map(|slot| played.owner(slot)), ["10.0.0.1:6379", ""]);
}

#[test]
fn the_map_of_the_only_node_counts_at_once() {
    let mut played = Played::with(|config| config.kind = Kind::Cluster);
    played.client.start(0);
    played.accept_handshake();
    played.turn();
    assert!(played.sent().contains("SLOTS"));
    played.receive(&map(&[(0, 16_382, 1)]));
    assert_eq!([16_382, 16_383].map(|slot| played.owner(slot)), ["10.0.0.1:6379", ""]);
}

/// The replies of the first node to commands do not change the order.
#[test]
fn each_node_is_queried_once_in_a_round() {
    let (mut played, key) = halves();
    while played.wait_for_query() != 1 {}
    // The first one is next. It is queried while it owes a reply.
    loop {
        let request = played.submit_to_first(key);
        played.wait(20 * MILLISECOND);
        if played.queried() == Some(0) {
            break;
        }
        played.at = 0;
        played.receive(FOUND);
        played.client.release(request, false);
    }
    played.receive("-CLUSTERDOWN Hash slot not served\r\n-ERR no\r\n");
    played.turn();
    assert_eq!(played.queried(), Some(1));
}

/// The whole machine stood still, and the socket of the first one is read before that of the second one.
#[test]
fn a_node_whose_reply_is_not_read_yet_is_not_silent() {
    let (mut played, _) = halves();
    while played.wait_for_query() != 1 {}
    let numbers = (0..).map(|number: u32| number.to_string());
    let key = { numbers }.find(|key| slot(b"rl:a:", key.as_bytes()) >= 8_192).unwrap();
    played.wait(13_000 * MILLISECOND);
    assert_eq!(played.queried(), Some(0));
    let request = played.submit(&key);
    played.turn();
    played.at = 1;
    assert_eq!(played.sent_keys(), key);
    let second = played.connection();
    played.now += 2 * SILENCE;
    played.at = 0;
    played.receive("-ERR no\r\n");
    assert!(!played.turn().contains(&Action::Close(second)));
    played.at = 1;
    assert!(!played.sent().contains("SLOTS"));
    played.receive(FOUND);
    assert_eq!(played.client.outcome(request), Some(Ok(())));
}

#[test]
fn a_command_whose_next_node_has_no_name_is_sent_again() {
    let mut played = cluster(|_| ());
    played.submit("a");
    played.turn();
    assert_eq!(played.sent_keys(), "a");
    played.receive("-ASK 1 ?:6379\r\n");
    played.wait(3 * MILLISECOND);
    assert_eq!(played.sent_keys(), "a");
}

#[test]
fn a_command_is_tried_again_ever_more_rarely() {
    let mut played = cluster(|_| ());
    let template = Rc::clone(&played.template);
    played.client.submit(&[charge(&template, "a")], 1_000 * MILLISECOND, 0);
    played.turn();
    assert_eq!(played.sent_keys(), "a");
    let mut delays = Vec::new();
    for _ in 0..7 {
        played.receive("-ASK 1 ?:6379\r\n");
        let began = played.now;
        delays.push(loop {
            played.wait(MILLISECOND);
            let sent = played.sent_keys();
            if sent == "a" {
                break (played.now - began) / MILLISECOND;
            }
        });
    }
    assert_eq!(delays, [2, 4, 8, 16, 32, 50, 50]);
}

#[test]
fn a_command_that_is_tried_again_soon_does_not_wait_for_another() {
    let mut played = cluster(|_| ());
    played.submit("a");
    played.turn();
    for delay in [2, 4] {
        assert_eq!(played.sent_keys(), "a");
        played.receive("-TRYAGAIN no\r\n");
        played.wait(delay * MILLISECOND);
    }
    assert_eq!(played.sent_keys(), "a");
    played.receive("-TRYAGAIN no\r\n");
    played.submit("b");
    played.turn();
    assert_eq!(played.sent_keys(), "b");
    played.receive("-TRYAGAIN no\r\n");
    played.wait(2 * MILLISECOND);
    assert_eq!(played.sent_keys(), "b");
    played.wait(6 * MILLISECOND);
    assert_eq!(played.sent_keys(), "a");
}

#[test]
fn a_node_that_was_retired_is_used_again() {
    let mut played = cluster(|_| ());
    let other = played.find_or_add_node("10.0.0.2");
    let seed = played.node();
    played.client.pool.nodes.retire_others(&[seed], 0);
    assert_eq!(played.client.pool.nodes.retired(), [other]);
    assert_eq!(played.find_or_add_node("10.0.0.2"), other);
    assert!(played.client.pool.nodes.retired().is_empty());
    played.wait(10_000 * MILLISECOND);
    assert!(played.client.node(other).is_some());
}

/// Requests for one key share a command, and leave before the connection is made.
#[test]
fn requests_that_have_gone_are_not_kept() {
    let mut played = Played::new();
    for _ in 0..10_000 {
        let request = played.submit("a");
        played.turn();
        played.client.release(request, false);
    }
    assert!(played.client.commands.members() <= 4);
}

/// The time for which a worker does not read is no fault of a timeout.
#[test]
fn a_timeout_is_too_short_only_if_the_reply_came_too_late() {
    for is_read_in_time in [true, false] {
        let mut played = Played::with(|config| config.longest_timeout = 10 * TIMEOUT);
        played.client.start(0);
        played.accept_handshake();
        let request = played.submit("a");
        played.turn();
        played.sent();
        played.now += 2 * TIMEOUT;
        if !is_read_in_time {
            played.client.on_timer(played.now);
        }
        played.receive(FOUND);
        let actions = played.turn();
        let has_warned = actions.iter().any(|action| matches!(action, Action::Warn(..)));
        assert_eq!(has_warned, !is_read_in_time, "{actions:?}");
        assert_eq!(played.client.outcome(request).map(|it| it.is_ok()), Some(is_read_in_time));
    }
}

/// A reply that comes too late for any request is no fault of a timeout.
#[test]
fn a_timeout_is_not_too_short_for_a_server_that_is_too_slow() {
    let mut played = Played::ready();
    played.submit("a");
    played.turn();
    played.sent();
    let mut actions = played.wait(2 * TIMEOUT);
    played.receive(FOUND);
    actions.extend(played.turn());
    let is_blamed =
        |action: &Action| matches!(action, Action::Warn(_, what) if what.contains("too short"));
    assert!(!actions.iter().any(is_blamed), "{actions:?}");
}

#[test]
fn either_connection_takes_the_place_of_the_other() {
    for lost in 0..2 {
        let mut played = Played::with(|config| config.connections = 2);
        played.client.start(0);
        for connection in 0..2 {
            played.at = connection;
            played.accept_handshake();
            played.turn();
        }
        played.at = lost;
        played.lose();
        let keys = ["a", "b", "c", "d"];
        let slots: BTreeSet<_> = keys.map(|key| slot(b"rl:a:", key.as_bytes()) % 2).into();
        assert_eq!(slots.len(), 2, "keys of both");
        let _requests = keys.map(|key| played.submit(key));
        played.turn();
        played.at = 1 - lost;
        assert_eq!(played.sent_keys(), "a b c d");
    }
}

/// A node that has stopped to answer may have been replaced: others know.
#[test]
fn a_breaker_that_opens_is_a_reason_to_query_the_topology() {
    let (mut played, _) = halves();
    played.wait_for_query();
    let numbers = (0..).map(|number: u32| number.to_string());
    let there = numbers.filter(|key| slot(b"rl:a:", key.as_bytes()) >= 8_192);
    for key in there.take(3) {
        played.submit(&key);
    }
    played.turn();
    played.at = 1;
    assert_eq!(played.sent_keys().split(' ').count(), 3);
    played.wait(TIMEOUT);
    played.wait(TIMEOUT);
    played.at = 0;
    assert!(played.sent().contains("SLOTS"));
}
