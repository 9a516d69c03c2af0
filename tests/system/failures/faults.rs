//! Whatever happens to Redis: no request hangs, each policy applies, no request waits longer than
//! the timeout, none waits once Redis is down, no command runs twice, and Redis is found again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};

use harness::{
    ALLOWED, Act, Command, Conf, Entry, Fake, Journal, Mode, Nginx, PATIENCE, Proxy, Redis, Remote,
    wait_until,
};

/// Longer than a Redis that is well needs, on a busy machine.
const TIMEOUT: Duration = Duration::from_millis(300);

/// More than a busy machine adds to that, and less than the timeouts of tests that are patient. The
/// simulation measures to the µs how long requests wait, and how soon all is well again; here it is shown
/// that they do not wait for something else.
const LATE: Duration = Duration::from_secs(3);

/// Later than a worker reads that stands still when the timeout ends, and sooner than a server is taken
/// for dead that sends nothing.
const TOO_LATE: Duration = Duration::from_millis(900);

/// The units that a client may spend locally.
const QUOTA: usize = 10;

/// The effect of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// Requests wait until they need not any more, because the server is known to be down.
    Silence,
    /// The connection is lost: the server is down.
    Loss,
    /// The server is there, but refuses to decide.
    Refusal,
}
use crate::seen::{StartConnected as _, tokens};

use Effect::{Loss, Refusal, Silence};

const POLICIES: [&str; 3] = ["open", "closed", "local"];

/// A location for each policy; how many failures open the breaker is up to the test. An attempt to
/// connect that the fault keeps waiting is given up soon, so that all is well soon after the fault.
fn limited(url: &str, max_fails: usize) -> Conf {
    limited_within(url, max_fails, TIMEOUT, Duration::from_secs(1), Duration::from_secs(1))
}

/// A configuration with times so generous that a busy machine does not reach them.
fn patient(url: &str, max_fails: usize) -> Conf {
    let timeout = Duration::from_secs(5);
    limited_within(url, max_fails, timeout, Duration::from_secs(30), timeout)
}

/// A configuration whose requests do not wait for long, though their connection may be silent for longer: it is kept
/// for the longest timeout, as `fail_timeout` is as long. No breaker opens.
fn kept(url: &str) -> Conf {
    limited_within(url, 0, TIMEOUT, Duration::from_secs(30), Duration::from_secs(30))
        .server("location /patient { rate_limit_redis k rate=1r/h; rate_limit_redis_timeout 30s; }")
}

fn limited_within(
    url: &str,
    max_fails: usize,
    timeout: Duration,
    connect: Duration,
    fail_timeout: Duration,
) -> Conf {
    let location = |policy| {
        format!(
            "location /{policy} {{ rate_limit_redis $arg_k rate=1r/h capacity={QUOTA} \
             name={policy}; rate_limit_redis_on_error {policy}; try_files /index.html =404; }}"
        )
    };
    let conf = Conf::new().workers(2).decisions().journal().set("redis", url).http(&format!(
        "rate_limit_redis_store redis {{
             server {{redis}}; max_fails {max_fails}; fail_timeout {}ms; connect_timeout {}ms;
         }}
         rate_limit_redis_pass redis;
         rate_limit_redis_log_level info;
         rate_limit_redis_timeout {}ms;",
        fail_timeout.as_millis(),
        connect.as_millis(),
        timeout.as_millis()
    ));
    POLICIES.into_iter().fold(conf, |conf, policy| conf.server(&location(policy)))
}

/// A key that was not used before.
fn new_key() -> usize {
    static KEYS: AtomicUsize = AtomicUsize::new(0);
    KEYS.fetch_add(1, Ordering::Relaxed)
}

fn is_decided_by_redis(nginx: &Nginx) -> bool {
    nginx.get(&format!("/closed?k={}", new_key())).decision() == "PASSED redis"
}

/// Requests of each policy, `number` on each of two connections, all at the same time. Those of
/// `open` and `closed` have a key of their own each, those of `local` are of one client.
#[track_caller]
fn requests(nginx: &Nginx, number: usize) -> Journal {
    // nginx may not have written yet of those before.
    let mark = format!("&round={}", new_key());
    scope(|scope| {
        let client = |policy| {
            let mut http = nginx.http();
            for _ in 0..number {
                let key = if policy == "local" { "c".into() } else { new_key().to_string() };
                http.get(&format!("/{policy}?k={key}{mark}"));
            }
        };
        let clients: Vec<_> = POLICIES
            .into_iter()
            .chain(POLICIES)
            .map(|policy| scope.spawn(move || client(policy)))
            .collect();
        clients.into_iter().for_each(|client| client.join().expect("a client"));
    });
    let mut journal = Journal(Vec::new());
    let written = || {
        journal = nginx.journal();
        journal.0.retain(|entry| entry.uri.ends_with(&mark));
        journal.0.len() == 6 * number
    };
    wait_until(PATIENCE, written, "all requests in the journal");
    journal
}

/// Every request was decided as its policy requires.
#[track_caller]
fn is_as_the_policies_say(fault: &str, round: &Journal) {
    for entry in &round.0 {
        let policy = entry.uri[1..].split('?').next().unwrap();
        let outcome = (entry.status, entry.decision.as_str(), entry.source.as_str());
        let expected: &[_] = match policy {
            "open" => &[(200, "ERROR_PASSED", "none")],
            "closed" => &[(503, "ERROR_REJECTED", "none")],
            _ => &[(200, "PASSED", "local"), (429, "REJECTED", "local")],
        };
        assert!(expected.contains(&outcome), "{fault}: {entry:?}");
    }
}

#[track_caller]
fn is_within(fault: &str, timeout: Duration, round: &Journal) {
    let last = round.percentile(100);
    assert!(last <= timeout + LATE, "{fault}: one waited {last:?}");
}

#[track_caller]
fn nobody_waits(fault: &str, round: &Journal) {
    let half = round.percentile(50);
    assert!(half < TIMEOUT - Duration::from_millis(20), "{fault}: waited {half:?}");
    is_within(fault, TIMEOUT, round);
}

/// Sees that all goes well from the beginning of a fault to its end.
#[track_caller]
fn endures(fault: &str, effect: Effect, nginx: &Nginx, begin: impl FnOnce(), end: impl FnOnce()) {
    wait_until(PATIENCE, || is_decided_by_redis(nginx), "decisions before the fault");
    let workers = nginx.worker_pids();
    begin();
    let first = requests(nginx, 8);
    is_as_the_policies_say(fault, &first);
    is_within(fault, TIMEOUT, &first);
    if effect == Refusal {
        nobody_waits(fault, &first);
        assert_eq!(nginx.logged("is down"), Vec::<String>::new(), "{fault}");
    } else {
        nginx.wait_for_error_log("is down");
    }

    let then = requests(nginx, 25);
    is_as_the_policies_say(fault, &then);
    nobody_waits(fault, &then);
    let spent = |round: &Journal| {
        round.0.iter().filter(|entry| entry.source == "local" && entry.status == 200).count()
    };
    assert_eq!(spent(&first) + spent(&then), QUOTA, "{fault}: spent locally");

    end();
    recovers(fault, nginx);
    assert_eq!(nginx.worker_pids(), workers, "{fault}");
    assert!(nginx.logged("[error]").len() <= 5, "{fault}: {:#?}", nginx.logged("[error]"));
}

#[track_caller]
fn recovers(fault: &str, nginx: &Nginx) {
    wait_until(PATIENCE, || is_decided_by_redis(nginx), &format!("{fault}: recovery"));
}

/// A fake Redis that acts strangely while the switch is on.
fn fake(act: impl Fn(&Command) -> Act + Send + Sync + 'static) -> (Fake, Arc<AtomicBool>) {
    let switch = Arc::new(AtomicBool::new(false));
    let is_on = Arc::clone(&switch);
    let fake = Fake::start(move |command| match is_on.load(Ordering::SeqCst) {
        true => act(command),
        false => Act::Usual,
    });
    (fake, switch)
}

/// Each of these commands was sent at most once for each client's key.
#[track_caller]
fn nothing_was_sent_twice(fault: &str, fake: &Fake) {
    let twice = sent_again(fake);
    assert!(twice.is_empty(), "{fault}: sent twice: {twice:?}");
}

/// The keys for which a command was sent more than once, and how often. A refund is another command: the reply to its charge
/// has come late.
fn sent_again(fake: &Fake) -> Vec<(String, u32)> {
    let mut sent = BTreeMap::new();
    for command in fake.received() {
        let is_refund = command.words.iter().any(|word| word == "-1");
        if let Some(key) = command.key().filter(|key| *key != "c" && !is_refund) {
            *sent.entry((key.to_owned(), command.name())).or_insert(0) += 1;
        }
    }
    let again = sent.into_iter().filter(|(_, times)| *times > 1);
    again.map(|((key, _), times)| (key, times)).collect()
}

#[track_caller]
fn endures_fake(
    fault: &str,
    effect: Effect,
    act: impl Fn(&Command) -> Act + Send + Sync + 'static,
) {
    let (fake, switch) = fake(act);
    let nginx = limited(&fake.url(), 3).start();
    let set = |on| switch.store(on, Ordering::SeqCst);
    endures(fault, effect, &nginx, || set(true), || set(false));
    nothing_was_sent_twice(fault, &fake);
}

/// Does so about every question, and else what a Redis would.
#[track_caller]
fn endures_answer(fault: &str, effect: Effect, act: Act) {
    endures_fake(fault, effect, move |command| match command.key() {
        Some(_) => act.clone(),
        None => Act::Usual,
    });
}

fn half() -> Vec<u8> {
    ALLOWED.as_bytes()[..ALLOWED.len() / 2].into()
}

#[test]
fn what_is_no_reply_is_endured() {
    for (fault, bytes) in [
        ("another protocol", &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..]),
        ("zeroes", &[0; 100]),
        ("every byte", &std::array::from_fn::<u8, 256, _>(|byte| byte as u8)),
        ("RESP3", b"%1\r\n+a\r\n:1\r\n"),
        ("a wrong line end", b":1\n:2\n:3\n"),
        ("no number", b"*x\r\n"),
        ("a negative length", b"$-2\r\n"),
        ("a huge array", b"*999999999\r\n"),
        ("a number that overflows", b":99999999999999999999999\r\n"),
        ("deep arrays", &b"*1\r\n".repeat(1_000)),
    ] {
        endures_answer(fault, Loss, Act::Reply(bytes.into()));
    }
}

#[test]
fn what_is_no_answer_is_endured() {
    let (fake, switch) = fake(|command| match command.key().and_then(|key| key.parse().ok()) {
        Some::<usize>(key) => Act::Reply(STRANGE[key % STRANGE.len()].into()),
        None if command.key().is_some() => Act::line("+OK"),
        None => Act::Usual,
    });
    const STRANGE: [&str; 12] = [
        "+OK\r\n",
        ":1\r\n",
        "$-1\r\n",
        "*-1\r\n",
        "*0\r\n",
        "$5\r\nhello\r\n",
        "*3\r\n:1\r\n:2\r\n:3\r\n",
        "*5\r\n:1\r\n:2\r\n:3\r\n:4\r\n:5\r\n",
        "*4\r\n:1\r\n:2\r\n$1\r\n3\r\n:4\r\n",
        "*4\r\n:1\r\n:-2\r\n:3\r\n:4\r\n",
        "*4\r\n:7\r\n:2\r\n:3\r\n:4\r\n",
        "*1\r\n*4\r\n:1\r\n:2\r\n:3\r\n:4\r\n",
    ];
    let nginx = patient(&fake.url(), 0).start();
    let set = |on| switch.store(on, Ordering::SeqCst);
    endures("strange replies", Refusal, &nginx, || set(true), || set(false));
    assert_eq!(nginx.logged("sent an invalid reply to a script").len(), 1);
    nothing_was_sent_twice("strange replies", &fake);
}

/// Errors that concern a question, not the server.
#[test]
fn refusals_of_a_question_are_endured() {
    const ERRORS: [&str; 21] = [
        "ERR something",
        "ERR Error running script (call to f_0): @user_script:1: oops",
        "ERR unknown command 'FOO'",
        "ERR wrong number of arguments for 'evalsha' command",
        "OOM command not allowed when used memory > 'maxmemory'.",
        "NOPERM this user has no permissions to run the 'evalsha' command",
        "WRONGPASS invalid username-password pair or user is disabled.",
        "WRONGTYPE Operation against a key holding the wrong kind of value",
        "BUSY Redis is busy running a script. You can only call SCRIPT KILL.",
        "BUSYKEY Target key name already exists.",
        "UNKILLABLE Sorry the script already executed write commands",
        "EXECABORT Transaction discarded because of previous errors.",
        "NOTBUSY No scripts in execution right now.",
        "CROSSSLOT Keys in request don't hash to the same slot",
        // A single Redis has no other nodes.
        "MOVED 1 127.0.0.1:1",
        "ASK 1 127.0.0.1:1",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "CLUSTERDOWN Hash slot not served",
        // Again, when it is sent by its source.
        "NOSCRIPT No matching script. Please use EVAL.",
        "",
        "\u{1}\u{1b}[31m\u{fe}",
    ];
    let error = |key: &str| ERRORS[key.parse().unwrap_or(0_usize) % ERRORS.len()];
    let (fake, switch) = fake(move |command| match command.key() {
        Some(key) => Act::line(&format!("-{}", error(key))),
        None => Act::Usual,
    });
    let nginx = patient(&fake.url(), 0).start();
    let set = |on| switch.store(on, Ordering::SeqCst);
    endures("refusals", Refusal, &nginx, || set(true), || set(false));
    assert_eq!(nginx.logged("refused to decide").len(), 1);
    assert_eq!(fake.count(""), 2, "each worker keeps its connection");
    // While another command brings the source, one that lacks its script is sent by its hash once more.
    let is_due = |(key, times): &(String, u32)| *times == 2 && error(key).starts_with("NOSCRIPT");
    let again = sent_again(&fake);
    assert!(again.iter().all(is_due), "sent again: {again:?}");
}

/// Errors of a server that cannot decide now.
#[test]
fn refusals_of_a_server_are_endured() {
    for error in [
        "LOADING Redis is loading the dataset in memory",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "READONLY You can't write against a read only replica.",
        "ERR Error running script: @user_script:1: -READONLY You can't write against a replica.",
        "NOREPLICAS Not enough good replicas to write.",
        "NOAUTH Authentication required.",
        "MISCONF Redis is configured to save RDB snapshots, but it cannot",
        "DENIED Redis is running in protected mode",
        "ERR max number of clients reached",
    ] {
        endures_answer(error, Loss, Act::line(&format!("-{error}")));
    }
}

#[test]
fn silence_is_endured_within_the_timeout() {
    endures_answer("no reply", Silence, Act::Hush(Vec::new()));
    endures_answer("half a reply", Silence, Act::Hush(half()));
    let byte_by_byte = format!("-ERR {}\r\n", "slow".repeat(300)).into();
    endures_answer("one byte a millisecond", Silence, Act::Trickle(byte_by_byte));
    endures_fake("not a word to anything", Silence, |_| Act::Hush(Vec::new()));
    let late = Act::After(TOO_LATE, Box::new(Act::Usual));
    endures_fake("all too late", Silence, move |command| match command.words.is_empty() {
        true => Act::Usual,
        false => late.clone(),
    });
}

/// It is no fault if it is in time.
#[test]
fn one_byte_at_a_time_is_no_fault_in_time() {
    let fake = Fake::answering(|_| Act::Trickle(ALLOWED.into()));
    let nginx = patient(&fake.url(), 3).start();
    for _ in 0..5 {
        assert!(is_decided_by_redis(&nginx));
    }
    assert_eq!(nginx.logged("[error]"), Vec::<String>::new());
}

#[test]
fn a_loss_of_connections_is_endured() {
    endures_answer("closed", Loss, Act::Close(Vec::new()));
    endures_answer("half a reply, and closed", Loss, Act::Close(half()));
    endures_answer("reset", Loss, Act::Reset);
    endures_fake("reset after accept", Loss, |_| Act::Reset);
    endures_fake("closed after accept", Loss, |_| Act::Close(Vec::new()));
    endures_answer("an endless string", Loss, Act::Endless);
}

/// A greeting that is answered with anything but what it should be.
#[test]
fn bad_greetings_are_endured() {
    for (fault, reply) in [
        ("garbage", "hello\r\n"),
        ("too many replies", &"+OK\r\n".repeat(100)),
        ("loading", "-LOADING Redis is loading the dataset in memory\r\n"),
        ("no account", "-NOAUTH Authentication required.\r\n"),
    ] {
        let act = Act::Reply(reply.into());
        // The connection that there is has to go for another greeting.
        endures_fake(fault, Loss, move |command| match command.key() {
            Some(_) => Act::Reset,
            None if command.words.is_empty() => Act::Usual,
            None => act.clone(),
        });
    }
}

/// A reply too many cannot be told from the next one's: it is a reason to part as soon as it is
/// known for one.
#[test]
fn surplus_replies_end_the_connection() {
    let (fake, switch) = fake(|command| match command.key() {
        Some(_) => Act::Reply(ALLOWED.repeat(3).into()),
        None => Act::Usual,
    });
    let nginx = patient(&fake.url(), 3).start();
    let workers = nginx.worker_pids();
    assert!(is_decided_by_redis(&nginx));
    switch.store(true, Ordering::SeqCst);
    let round = requests(&nginx, 20);
    assert!(round.count("PASSED") > 0);
    is_within("surplus replies", Duration::ZERO, &round);
    assert!(nginx.error_log().contains("a reply to no command"), "{}", nginx.error_log());
    switch.store(false, Ordering::SeqCst);
    recovers("surplus replies", &nginx);
    assert_eq!(nginx.worker_pids(), workers);
    nothing_was_sent_twice("surplus replies", &fake);
}

/// Replies of another shape than their question's are known for what they are.
#[test]
fn replies_in_the_wrong_order_are_known() {
    // The time, and that nothing was stored for either limit.
    let two = "*3\r\n:1763683200000000\r\n$-1\r\n$-1\r\n";
    let fake = Fake::start(move |command| {
        let answer = match (command.key(), command.words.get(2).map(String::as_str)) {
            (None, _) => return Act::Usual,
            (_, Some("2")) => two,
            _ => ALLOWED,
        };
        let act = Act::Reply(answer.into());
        match command.key() {
            Some("swap") => Act::AfterNext(Box::new(act)),
            _ => act,
        }
    });
    // Both are sent over one connection.
    let nginx = patient(&fake.url(), 3)
        .workers(1)
        .server("location = /two { rate_limit_redis $arg_k rate=9r/m name=one;")
        .server("rate_limit_redis $arg_k rate=9r/m name=two;")
        .server("rate_limit_redis_on_error closed; try_files /index.html =404; }")
        .server("location = /one { rate_limit_redis $arg_k rate=9r/m name=three;")
        .server("rate_limit_redis_on_error closed; try_files /index.html =404; }")
        .start();
    for (first, second) in [("/one", "/two"), ("/two", "/one")] {
        let (mut early, mut late) = (nginx.http(), nginx.http());
        early.send("GET", &format!("{first}?k=swap"), &[]);
        let is_sent = || fake.received().iter().any(|command| command.key() == Some("swap"));
        wait_until(PATIENCE, is_sent, "the first command");
        late.send("GET", &format!("{second}?k=other"), &[]);
        for http in [&mut early, &mut late] {
            assert_eq!(http.read_response().decision(), "ERROR_REJECTED none");
        }
        // All are in step again.
        for path in [first, second] {
            assert_eq!(nginx.get(&format!("{path}?k=a")).decision(), "PASSED redis");
        }
    }
}

#[test]
fn a_stopped_redis_is_endured() {
    let mut redis = Redis::start();
    let nginx = limited(&redis.url(), 3).start();
    let redis = std::cell::RefCell::new(&mut redis);
    let (stop, go_on) = (|| redis.borrow_mut().stop_signal(), || redis.borrow_mut().cont());
    endures("stopped", Silence, &nginx, stop, go_on);
}

#[test]
fn a_killed_redis_is_endured() {
    let mut redis = Redis::start();
    for url in [redis.url(), redis.unix_url()] {
        let nginx = limited(&url, 3).start();
        let redis = std::cell::RefCell::new(&mut redis);
        let (kill, restart) = (|| redis.borrow_mut().kill9(), || redis.borrow_mut().restart());
        endures("killed", Loss, &nginx, kill, restart);
    }
}

/// Every request waits as long as the fault lasts, if no breaker opens, but not longer than its timeout.
#[test]
fn without_a_breaker_all_wait_for_the_timeout() {
    let mut redis = Redis::start();
    let nginx = kept(&redis.url()).start_connected(&redis);
    redis.stop_signal();
    let round = requests(&nginx, 8);
    is_as_the_policies_say("no breaker", &round);
    is_within("no breaker", TIMEOUT, &round);
    let mut journal = round;
    // A client that has spent all of its local quota is not checked in Redis.
    journal.0.retain(|entry| entry.decision != "REJECTED");
    assert!(journal.percentile(10) >= TIMEOUT - Duration::from_millis(2), "somebody did not wait");
    redis.cont();
    recovers("no breaker", &nginx);
    assert_eq!(nginx.logged("is down"), Vec::<String>::new());
}

/// Redis runs a command, and the reply is lost: the command is not sent again.
#[test]
fn what_may_have_run_is_not_repeated() {
    let redis = Redis::start();
    for mode in [Mode::DropReplies, Mode::CloseAtReply, Mode::Slow(TOO_LATE)] {
        let proxy = Proxy::to(&redis);
        let nginx = kept(&proxy.url()).workers(1).start();
        wait_until(PATIENCE, || is_decided_by_redis(&nginx), "decisions before the fault");
        let calls = || redis.calls("evalsha") + redis.calls("eval");
        let before = calls();
        proxy.set(mode);
        let clients: Vec<_> = POLICIES
            .into_iter()
            .cycle()
            .take(30)
            .map(|policy| {
                let (mut http, key) = (nginx.http(), new_key());
                http.send("GET", &format!("/{policy}?k={key}"), &[]);
                (http, policy, key)
            })
            .collect();
        let mut undecided = 0;
        for (mut http, policy, _) in clients {
            let response = http.read_response();
            undecided += u64::from(response.decision() != "PASSED redis");
            assert_eq!(response.status, if policy == "closed" { 503 } else { 200 }, "{mode:?}");
        }
        assert_eq!(undecided, 30, "{mode:?}");
        match mode {
            // Later requests found the connection lost, and the next one lost too.
            Mode::CloseAtReply => {
                let ran = calls() - before;
                assert!((1..=30).contains(&ran), "{mode:?}: {ran} ran");
            }
            _ => wait_until(PATIENCE, || calls() - before == 30, "the commands that were sent"),
        }
        proxy.set(Mode::Pass);
        proxy.cut();
        recovers(&format!("{mode:?}"), &nginx);
        let twice = |key: &String| tokens(&redis, key) != Some(QUOTA as u64 - 1);
        let twice: Vec<String> =
            redis.command::<Vec<String>>(&["KEYS", "*"]).into_iter().filter(twice).collect();
        assert!(twice.is_empty(), "{mode:?}: charged twice: {twice:?}");
    }
}

/// One answer is lost, and all is well again before the request has waited for long.
#[test]
fn what_may_have_run_is_not_repeated_though_it_could_be() {
    let losses = [Act::Close(Vec::new()), Act::Close(half()), Act::Reset, Act::line("garbage")];
    let number = losses.len();
    let fake = Fake::answering(move |key| {
        let lost = key.strip_prefix("lost-").and_then(|number| number.parse::<usize>().ok());
        lost.map_or(Act::Usual, |number| losses[number].clone())
    });
    let nginx = patient(&fake.url(), 3).workers(1).start();
    for lost in 0..number {
        assert!(is_decided_by_redis(&nginx));
        let key = format!("lost-{lost}");
        assert_eq!(nginx.get(&format!("/closed?k={key}")).decision(), "ERROR_REJECTED none");
        assert!(is_decided_by_redis(&nginx), "the connection is replaced at once");
        assert_eq!((fake.times("EVALSHA", &key), fake.times("EVAL", &key)), (1, 0));
    }
    assert_eq!(nginx.logged("is down"), Vec::<String>::new());
}

/// A Redis on another machine, if there can be one here.
fn remote() -> Option<Remote> {
    if !Remote::possible() {
        println!("no network namespaces here: faults of the network are not tested");
        return None;
    }
    Some(Remote::start())
}

#[test]
fn a_network_that_is_gone_is_endured() {
    let Some(remote) = remote() else { return };
    type Begin<'a> = Box<dyn Fn() + 'a>;
    let faults: [(_, Begin<'_>); 3] = [
        ("cut", Box::new(|| remote.cut())),
        ("replies are lost", Box::new(|| remote.cut_replies())),
        // Each way.
        ("too far away", Box::new(|| remote.delay(TOO_LATE / 2))),
    ];
    for (fault, begin) in faults {
        let nginx = limited(&remote.url(), 3).start();
        endures(fault, Silence, &nginx, begin, || remote.mend());
    }
}

#[test]
fn a_machine_that_is_gone_is_endured() {
    let Some(mut remote) = remote() else { return };
    let nginx = limited(&remote.url(), 3).start();
    {
        let remote = std::cell::RefCell::new(&mut remote);
        let (off, on) = (|| remote.borrow_mut().power_off(), || remote.borrow_mut().power_on());
        endures("powered off", Silence, &nginx, off, on);
    }
    let nginx = limited(&remote.url(), 3).start();
    // A request on its way waits for a second try, which is refused; so it may be either.
    endures("unreachable", Silence, &nginx, || remote.unreachable(), || remote.mend());
}

#[test]
fn a_network_that_loses_packets_is_endured() {
    let Some(remote) = remote() else { return };
    let nginx = limited(&remote.url(), 3).start();
    wait_until(PATIENCE, || is_decided_by_redis(&nginx), "decisions before the fault");
    let workers = nginx.worker_pids();
    remote.lose(10);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(2) {
        let mut round = requests(&nginx, 20);
        is_within("loss", TIMEOUT, &round);
        let undecided = |entry: &Entry| ["none", "local"].contains(&entry.source.as_str());
        round.0.retain(undecided);
        is_as_the_policies_say("loss", &round);
    }
    remote.mend();
    recovers("loss", &nginx);
    assert_eq!(nginx.worker_pids(), workers);
}
