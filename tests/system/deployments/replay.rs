//! A server that answers anything but what it should. What may have run is never sent again.

use std::thread::sleep;
use std::time::{Duration, Instant};

use harness::{ALLOWED, Act, Conf, Fake, Http, Nginx, PATIENCE, Redis, wait_until};

/// Longer than anything takes that does not wait for the timeout of 5 s, on any machine.
const AT_ONCE: Duration = Duration::from_millis(2_500);

fn limited(url: &str) -> Conf {
    Conf::new()
        .decisions()
        .journal()
        .store(url)
        .server("location / { rate_limit_redis $arg_k rate=1r/m capacity=10; }")
}

fn starts_as(
    text: &str,
    act: impl Fn() -> Act + Send + Sync,
) -> impl Fn(&str) -> Act + Send + Sync {
    move |key| if key.starts_with(text) { act() } else { Act::Usual }
}

/// A request that is decided as usual, so that the connection is known to be a good one.
#[track_caller]
fn works(nginx: &Nginx) {
    let working = || nginx.get("/?k=good").decision() == "PASSED redis";
    wait_until(PATIENCE, working, "decisions by Redis");
}

/// Sends a request for each key at once, and returns how each was decided.
fn ask_all(nginx: &Nginx, keys: &[String]) -> Vec<String> {
    ask_all_at(nginx, "/", keys)
}

fn ask_all_at(nginx: &Nginx, path: &str, keys: &[String]) -> Vec<String> {
    let mut clients: Vec<Http> = keys.iter().map(|_| nginx.http()).collect();
    for (http, key) in clients.iter_mut().zip(keys) {
        http.send("GET", &format!("{path}?k={key}"), &[]);
    }
    clients.iter_mut().map(|http| http.read_response().decision().to_owned()).collect()
}

fn keys(prefix: &str, number: usize) -> Vec<String> {
    (0..number).map(|index| format!("{prefix}{index}")).collect()
}

#[test]
fn what_may_have_run_is_never_sent_again() {
    for act in [Act::Close(Vec::new()), Act::Reset] {
        let fake = Fake::answering(starts_as("lost", move || act.clone()));
        let nginx = limited(&fake.url()).start();
        for round in 0..5 {
            works(&nginx);
            let keys = keys(&format!("lost-{round}-"), 10);
            for (key, decision) in keys.iter().zip(ask_all(&nginx, &keys)) {
                assert_eq!(decision, "ERROR_PASSED none");
                assert!(fake.times("EVALSHA", key) <= 1, "{key} was sent again");
                assert_eq!(fake.times("EVAL", key), 0, "{key} was sent again");
            }
            assert_eq!(fake.times("EVALSHA", &keys[0]), 1);
        }
    }
}

#[test]
fn what_was_not_sent_waits_for_the_next_connection() {
    let fake = Fake::start(|command| match (command.key(), command.connection) {
        (Some("last"), _) => Act::Close(Vec::new()),
        // A slow handshake: requests that come meanwhile wait.
        (None, 1..) if command.name() == "CLIENT" => {
            Act::After(Duration::from_millis(150), Box::new(Act::Usual))
        }
        _ => Act::Usual,
    });
    let nginx = limited(&fake.url()).start();
    works(&nginx);
    assert_eq!(nginx.get("/?k=last").decision(), "ERROR_PASSED none");
    let keys = keys("next-", 10);
    for (key, decision) in keys.iter().zip(ask_all(&nginx, &keys)) {
        assert_eq!(decision, "PASSED redis");
        assert_eq!(fake.times("EVALSHA", key), 1);
    }
    assert_eq!(fake.times("EVALSHA", "last"), 1);
    assert_eq!(fake.count(""), 2);
    assert_eq!(nginx.logged("[error]"), Vec::<String>::new());
}

#[test]
fn a_request_that_gave_up_is_not_sent_later() {
    let fake = Fake::start(|command| match (command.key(), command.connection) {
        (Some("last"), _) => Act::Close(Vec::new()),
        (None, 1..) if command.name() == "CLIENT" => {
            Act::After(Duration::from_secs(3), Box::new(Act::Usual))
        }
        _ => Act::Usual,
    });
    // The others are patient: none of them opens the breaker.
    let nginx = limited(&fake.url())
        .server("location /impatient { rate_limit_redis $arg_k rate=1r/m capacity=10;")
        .server("rate_limit_redis_timeout 50ms; try_files /index.html =404; }")
        .start();
    works(&nginx);
    assert_eq!(nginx.get("/?k=last").decision(), "ERROR_PASSED none");
    let keys = keys("impatient-", 5);
    assert_eq!(ask_all_at(&nginx, "/impatient", &keys), ["ERROR_PASSED none"; 5]);
    works(&nginx);
    for key in keys {
        assert_eq!(fake.times("EVALSHA", &key), 0);
    }
}

#[test]
fn without_the_script_it_is_sent_once_more() {
    let fake = Fake::start(|command| match command.name().as_str() {
        "EVALSHA" => Act::line("-NOSCRIPT No matching script. Please use EVAL."),
        _ => Act::Usual,
    });
    let nginx = limited(&fake.url()).start();
    let keys = keys("a", 20);
    for (key, decision) in keys.iter().zip(ask_all(&nginx, &keys)) {
        assert_eq!(decision, "PASSED redis");
        assert_eq!(fake.times("EVAL", key), 1);
        // Behind a command with the source it is worth another attempt without.
        assert!((1..=2).contains(&fake.times("EVALSHA", key)));
    }
    assert_eq!(nginx.logged("[error]"), Vec::<String>::new());
}

#[test]
fn a_server_that_never_has_the_script_ends_the_retries() {
    let noscript = |_: &str| Act::line("-NOSCRIPT No matching script. Please use EVAL.");
    let fake = Fake::answering(noscript);
    let nginx = limited(&fake.url()).start();
    let start = Instant::now();
    assert_eq!(nginx.get("/?k=a").decision(), "ERROR_PASSED none");
    assert!(start.elapsed() < AT_ONCE, "it took {:?}", start.elapsed());
    assert_eq!((fake.times("EVALSHA", "a"), fake.times("EVAL", "a")), (1, 1));
    assert_eq!(nginx.logged("refused to decide").len(), 1);
}

#[test]
fn a_script_that_may_have_run_is_not_sent_again_either() {
    let fake = Fake::start(|command| match (command.name().as_str(), command.key()) {
        ("EVALSHA", Some("lost")) => Act::line("-NOSCRIPT No matching script."),
        ("EVAL", Some("lost")) => Act::Close(Vec::new()),
        _ => Act::Usual,
    });
    let nginx = limited(&fake.url()).start();
    works(&nginx);
    assert_eq!(nginx.get("/?k=lost").decision(), "ERROR_PASSED none");
    works(&nginx);
    assert_eq!((fake.times("EVALSHA", "lost"), fake.times("EVAL", "lost")), (1, 1));
}

#[test]
fn replies_may_come_byte_by_byte() {
    let fake = Fake::start(|command| match command.name().as_str() {
        "EVALSHA" if command.key() == Some("new") => {
            Act::Trickle("-NOSCRIPT No matching script.\r\n".into())
        }
        "EVAL" | "EVALSHA" => Act::Trickle(ALLOWED.into()),
        // Not all of the greeting, for which there is not much time on a busy machine.
        "CLIENT" => Act::Trickle("+OK\r\n".into()),
        _ => Act::Usual,
    });
    let nginx = limited(&fake.url()).start();
    works(&nginx);
    let keys: Vec<_> = ["a", "new", "b"].map(str::to_owned).into();
    assert_eq!(ask_all(&nginx, &keys), ["PASSED redis"; 3]);
    assert_eq!(nginx.get("/?k=a").remaining(), Some(9));
    assert_eq!(fake.times("EVAL", "new"), 1);
    assert_eq!(nginx.logged("[error]"), Vec::<String>::new());
}

#[test]
fn half_a_reply_is_no_reply() {
    for length in 1..ALLOWED.len() {
        let half = ALLOWED.as_bytes()[..length].to_vec();
        let fake = Fake::answering(starts_as("half", move || Act::Close(half.clone())));
        let nginx = limited(&fake.url()).start();
        works(&nginx);
        assert_eq!(nginx.get("/?k=half").decision(), "ERROR_PASSED none");
        assert_eq!(fake.times("EVALSHA", "half"), 1);
        // The rest of it is not taken from the next connection.
        assert_eq!(nginx.get("/?k=good").remaining(), Some(9));
    }
}

/// A reply that is not RESP2, or beyond all bounds, ends the connection at once, and only that.
#[test]
fn garbage_ends_the_connection_and_only_that() {
    let nested = "*1\r\n".repeat(10_000);
    let noise: Vec<u8> = [7].into_iter().chain((1..70_000).map(|_| fastrand::u8(..))).collect();
    let endless = [b"+".as_slice(), &[b'a'; 70_000]].concat();
    let huge_array = [b"*300000\r\n".as_slice(), &b":1\r\n".repeat(300_000)].concat();
    for garbage in [
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n".as_slice(),
        b"220 mail.example.com ESMTP\r\n",
        b"\r\n",
        b"\0\0\0\0",
        b"%1\r\n+a\r\n:1\r\n",
        b"_\r\n",
        b"$999999999\r\n",
        b"$-2\r\n",
        b"*-5\r\n",
        b"*2\r\n:one\r\n$-1\r\n",
        b"*2\r\n:99999999999999999999999\r\n$-1\r\n",
        b"*99999999999999999999\r\n",
        b"*2147483647\r\n",
        b"$3\r\nabcdefgh\r\n",
        nested.as_bytes(),
        &noise,
        &endless,
        &huge_array,
    ] {
        let sent = garbage.to_vec();
        let fake = Fake::answering(starts_as("bad", move || Act::Reply(sent.clone())));
        let nginx = limited(&fake.url()).server("rate_limit_redis_on_error closed;").start();
        works(&nginx);
        let what = String::from_utf8_lossy(&garbage[..garbage.len().min(30)]).into_owned();
        let start = Instant::now();
        assert_eq!(nginx.get("/?k=bad").decision(), "ERROR_REJECTED none", "{what:?}");
        assert!(start.elapsed() < AT_ONCE, "{what:?} made it wait");
        works(&nginx);
        assert_eq!(fake.times("EVALSHA", "bad"), 1, "{what:?}");
        assert_eq!(nginx.logged("the server").len(), 1, "{what:?}");
    }
}

/// RESP2, but no decision: the connection is as good as before.
#[test]
fn replies_that_are_no_verdict_leave_the_connection() {
    for answer in [
        "+OK",
        ":1",
        "$-1",
        "$2\r\nno",
        "+1763683200 0 ",
        "$10\r\n1763683200",
        "$12\r\n1763683200 0",
        "$13\r\n1763683200 x ",
        "$20\r\n99999999999999999 0 ",
        "*-1",
        "*0",
        "*1\r\n:1",
        "*1\r\n$-1",
        "*1\r\n$13\r\n1763683200 0 ",
        "*2\r\n$-1\r\n:1",
        "*2\r\n:-1\r\n$-1",
        "*2\r\n:1\r\n:1",
        "*2\r\n:1\r\n*-1",
        "*4\r\n:1\r\n:9\r\n:0\r\n:0",
        // Replies about several limits, and about one that stores itself.
        "*3\r\n:1\r\n$-1\r\n$-1",
        "*2\r\n:1\r\n*4\r\n:1\r\n:9\r\n:0\r\n:0",
    ] {
        let fake = Fake::answering(starts_as("odd", || Act::line(answer)));
        let nginx = limited(&fake.url()).start();
        works(&nginx);
        let connections = fake.count("");
        let mut http = nginx.http();
        for _ in 0..3 {
            assert_eq!(http.get("/?k=odd").decision(), "ERROR_PASSED none", "{answer:?}");
            assert_eq!(http.get("/?k=good").decision(), "PASSED redis", "{answer:?}");
        }
        assert_eq!(fake.count(""), connections, "{answer:?}");
        let errors = nginx.logged("sent an invalid reply to a script");
        assert_eq!(errors.len(), 1, "{answer:?}: {errors:?}");
    }
}

#[test]
fn errors_are_answered_by_the_policy_and_logged_once() {
    for error in [
        "ERR Error running script",
        "ERR",
        "WRONGTYPE Operation against a key holding the wrong kind of value",
        "OOM command not allowed when used memory > 'maxmemory'.",
        "NOPERM this user has no permissions to run the 'evalsha' command",
        "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
        "MOVED 3999 127.0.0.1:6381",
        "ASK 3999 127.0.0.1:6381",
        "CLUSTERDOWN Hash slot not served",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "EXECABORT Transaction discarded because of previous errors.",
        "UNKNOWN what",
    ] {
        let fake = Fake::answering(starts_as("bad", move || Act::line(&format!("-{error}"))));
        let nginx = limited(&fake.url())
            .server("location = /closed { rate_limit_redis bad rate=1r/m capacity=10;")
            .server("rate_limit_redis_on_error closed; }")
            .start();
        works(&nginx);
        let keys = keys("bad", 50);
        assert_eq!(ask_all(&nginx, &keys), ["ERROR_PASSED none"; 50], "{error}");
        let closed = nginx.get("/closed");
        assert_eq!((closed.status, closed.decision()), (503, "ERROR_REJECTED none"), "{error}");
        works(&nginx);
        for key in keys {
            assert_eq!(fake.times("EVALSHA", &key), 1, "{error}");
            assert_eq!(fake.times("EVAL", &key), 0, "{error}");
        }
        let errors = nginx.logged("[error]");
        assert!(errors.len() == 1 && errors[0].contains(error), "{error}: {errors:?}");
    }
}

/// A server that cannot decide anything for now is left.
#[test]
fn a_server_that_is_not_fit_is_left() {
    for error in [
        "READONLY You can't write against a read only replica.",
        "ERR Error running script (call to f_1): @user_script:1: -READONLY You can't write",
        "NOREPLICAS Not enough good replicas to write.",
        "NOAUTH Authentication required.",
        "MISCONF Redis is configured to save RDB snapshots",
        "LOADING Redis is loading the dataset in memory",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    ] {
        let fake = Fake::answering(starts_as("bad", move || Act::line(&format!("-{error}"))));
        let nginx = limited(&fake.url()).server("rate_limit_redis_on_error closed;").start();
        works(&nginx);
        let keys = keys("bad", 50);
        assert_eq!(ask_all(&nginx, &keys), ["ERROR_REJECTED none"; 50], "{error}");
        for key in keys {
            assert!(fake.times("EVALSHA", &key) <= 1, "{error}");
            assert_eq!(fake.times("EVAL", &key), 0, "{error}");
        }
        let (errors, cause) = (nginx.logged("is down"), error.rsplit(": -").next().unwrap());
        let cause = format!("is down: it cannot decide: \"{cause}");
        assert!(errors.len() == 1 && errors[0].contains(&cause), "{error}: {errors:?}");
        wait_until(
            PATIENCE,
            || nginx.get("/?k=good").decision() == "PASSED redis",
            "a server that is fit again",
        );
    }
}

#[test]
fn an_error_cannot_forge_a_line_of_the_log() {
    let forged = "-ERR \u{1b}[31m\t2026/01/01 00:00:00 [error] \"x\"\nforged: line";
    let fake = Fake::answering(starts_as("bad", move || Act::line(forged)));
    let nginx = limited(&fake.url()).start();
    assert_eq!(nginx.get("/?k=bad").decision(), "ERROR_PASSED none");
    nginx.wait_for_error_log("refused to decide");
    let log = nginx.error_log();
    assert!(
        !log.contains('\u{1b}') && !log.lines().any(|line| line.starts_with("forged")),
        "{log}"
    );
}

/// Also in errors that have nothing to do with the login.
#[test]
fn a_password_that_an_error_repeats_is_not_logged() {
    for (command, error, lines, logged) in [
        (
            "EVALSHA",
            "-ERR not \"s3cret\", please",
            "",
            "refused to decide: \"ERR not \\x22***\\x22, please\"",
        ),
        ("EVALSHA", "-LOADING for s3cret", "", "is down: it cannot decide: \"LOADING for ***\""),
        ("CLUSTER", "-ERR no, s3cret", "cluster on;", "topology query failed: \"ERR no, ***\""),
    ] {
        let fake = Fake::start(move |received| match received.name() == command {
            true => Act::line(error),
            false => Act::Usual,
        });
        let store = format!("server {}; {lines} password s3cret; connect_timeout 30s;", fake.url());
        let nginx = Conf::new()
            .http(&format!("rate_limit_redis_store edge {{ {store} }} rate_limit_redis_pass edge;"))
            .http("rate_limit_redis_timeout 5s;")
            .server("location / { rate_limit_redis $arg_k rate=10r/s; }")
            .debug()
            .start();
        nginx.get("/?k=a");
        nginx.wait_for_error_log(logged);
        assert_eq!(nginx.logged("s3cret"), Vec::<String>::new());
    }
}

#[test]
fn a_long_error_is_cut() {
    let long = format!("-ERR {}", "x".repeat(60_000));
    let fake = Fake::answering(starts_as("bad", move || Act::line(&long)));
    let nginx = limited(&fake.url()).start();
    assert_eq!(nginx.get("/?k=bad").decision(), "ERROR_PASSED none");
    nginx.wait_for_error_log("refused to decide");
    works(&nginx);
    assert!(nginx.error_log().lines().all(|line| line.len() < 4_096));
}

#[test]
fn a_key_of_another_type_is_an_error_of_this_key() {
    let redis = Redis::start();
    let nginx = limited(&redis.url()).start();
    redis.command::<()>(&["LPUSH", "rl:default:list", "x"]);
    for _ in 0..5 {
        assert_eq!(nginx.get("/?k=list").decision(), "ERROR_PASSED none");
    }
    assert_eq!(nginx.get("/?k=good").remaining(), Some(9));
    let errors = nginx.logged("[error]");
    assert!(errors.len() == 1 && errors[0].contains("WRONGTYPE"), "{errors:?}");
    assert_eq!(redis.command::<Vec<String>>(&["LRANGE", "rl:default:list", "0", "-1"]), ["x"]);
}

/// A Redis that cannot decide for a while: each request is refused at once, and Redis is found
/// again when it can.
#[track_caller]
fn refuses_for_a_while(redis: &Redis, refuse: &[&str], error: &str, heal: &[&str]) -> Nginx {
    let nginx = limited(&redis.url()).start();
    works(&nginx);
    redis.command::<redis::Value>(refuse);
    for number in 0..5 {
        assert_eq!(nginx.get(&format!("/?k={number}")).decision(), "ERROR_PASSED none");
    }
    let errors = nginx.logged("[error]");
    assert!(errors.len() == 1 && errors[0].contains(error), "{errors:?}");
    redis.command::<redis::Value>(heal);
    let healed = || nginx.get("/?k=new").remaining() == Some(9);
    wait_until(PATIENCE, healed, "a Redis that decides again");
    assert_eq!(nginx.logged("reconnecting"), Vec::<String>::new());
    nginx
}

/// Some keys may still be read: the connection lives on.
#[test]
fn a_redis_that_is_out_of_memory_keeps_its_connections() {
    let full = ["CONFIG", "SET", "maxmemory", "1"];
    let heal = ["CONFIG", "SET", "maxmemory", "0"];
    let redis = Redis::start();
    let nginx = refuses_for_a_while(&redis, &full, "OOM", &heal);
    assert_eq!(nginx.logged("is down"), Vec::<String>::new());
}

#[test]
fn a_redis_that_became_a_replica_refuses_for_a_while() {
    // The master is not there.
    let replica = ["REPLICAOF", "127.0.0.1", "1"];
    refuses_for_a_while(&Redis::start(), &replica, "READONLY", &["REPLICAOF", "NO", "ONE"]);
}

#[test]
fn a_redis_that_has_lost_its_master_refuses_for_a_while() {
    let redis = Redis::start_with(&["replica-serve-stale-data no"]);
    let replica = ["REPLICAOF", "127.0.0.1", "1"];
    refuses_for_a_while(&redis, &replica, "MASTERDOWN", &["REPLICAOF", "NO", "ONE"]);
}

#[test]
fn a_redis_that_is_busy_refuses_for_a_while() {
    let redis = Redis::start_with(&["lua-time-limit 10"]);
    let nginx = limited(&redis.url()).start();
    works(&nginx);
    let (mut client, mut other) = (redis.client(), redis.client());
    let busy = std::thread::spawn(move || {
        redis::cmd("EVAL").arg("while true do end").arg(0).exec(&mut other).unwrap_err()
    });
    // A new client each time: a rejection would be logged as an error, too.
    let mut clients = 0;
    let refused = || {
        clients += 1;
        nginx.get(&format!("/?k=client-{clients}")).decision() == "ERROR_PASSED none"
    };
    wait_until(PATIENCE, refused, "a busy Redis");
    redis::cmd("SCRIPT").arg("KILL").exec(&mut client).expect("kill the script");
    busy.join().expect("a script that was killed");
    works(&nginx);
    let errors = nginx.logged("[error]");
    assert!(errors.len() == 1 && errors[0].contains("BUSY"), "{errors:?}");
}

#[test]
fn a_value_that_is_not_ours_is_replaced() {
    let redis = Redis::start();
    let nginx = limited(&redis.url()).start();
    // More than the answer of a Redis may have.
    let long = "1".repeat(2_000_000);
    for value in ["", "x", "-5 0", "1e9 1", "999999999999999999999 1", "5", "1 2 3 4", &long] {
        redis.command::<()>(&["SET", "rl:default:k", value]);
        let response = nginx.get("/?k=k");
        assert_eq!(
            (response.decision(), response.remaining()),
            ("PASSED redis", Some(9)),
            "{value:.30}"
        );
    }
}

/// How many connections are made in about two seconds, and how many may be: attempts after 10 to 20,
/// 20 to 40 ms and so on, and then every 250 ms at most.
fn connections(fake: &Fake) -> (usize, usize) {
    let (before, start) = (fake.count(""), Instant::now());
    sleep(Duration::from_secs(2));
    let made = fake.count("") - before;
    (made, 6 + start.elapsed().as_millis() as usize / 250)
}

#[test]
fn replies_to_nothing_end_the_connection() {
    let fake = Fake::start(|_| Act::Usual);
    let nginx = limited(&fake.url()).start();
    works(&nginx);
    for count in 2..5 {
        fake.shout(ALLOWED.as_bytes());
        wait_until(PATIENCE, || fake.count("") == count, "a new connection");
        // Not the reply without a command.
        assert_eq!(nginx.get("/?k=good").remaining(), Some(9));
    }
    // One line for all that follow each other closely.
    assert!((1..=3).contains(&nginx.logged("a reply to no command").len()));
}

/// Redis speaks before it is spoken to, as a proxy's greeting would.
#[test]
fn replies_before_the_greeting_end_the_connection() {
    let fake = Fake::start(|command| match command.name().as_str() {
        "" => Act::Reply("+hello\r\n".repeat(20).into()),
        _ => Act::Usual,
    });
    let nginx = limited(&fake.url()).start();
    nginx.wait_for_error_log("is down");
    assert_eq!(nginx.get("/?k=a").decision(), "ERROR_PASSED none");
}

#[test]
fn silence_after_accept_is_given_up_soon() {
    let fake = Fake::start(|_| Act::Ignore);
    let nginx = Conf::new()
        .decisions()
        .http(&format!("rate_limit_redis_pass {};\nrate_limit_redis_timeout 5s;", fake.url()))
        .server("location / { rate_limit_redis $arg_k rate=1r/m; }")
        .start();
    let start = Instant::now();
    // It waits for the handshake, which is given up long before the timeout.
    assert_eq!(nginx.get("/?k=a").decision(), "ERROR_PASSED none");
    assert!(start.elapsed() < AT_ONCE, "it took {:?}", start.elapsed());
    nginx.wait_for_error_log("is down: timed out while connecting");
    let (made, most) = connections(&fake);
    assert!(made <= most, "{made} connections");
    assert_eq!(nginx.logged("[error]").len(), 1);
    assert_eq!(fake.times("EVALSHA", "a"), 0);
}

#[test]
fn connections_that_end_at_once_are_not_made_in_a_storm() {
    for act in [Act::Close(Vec::new()), Act::Reset] {
        let fake = Fake::start(move |_| act.clone());
        let nginx = limited(&fake.url()).start();
        nginx.wait_for_error_log("is down");
        let load = harness::Load::start(nginx.addr(), "/?k=a", 2);
        let (made, most) = connections(&fake);
        let tally = load.stop();
        assert!((1..=most).contains(&made), "{made} connections");
        // If each waited for its timeout, there would be one of each client.
        assert!(tally.of(200) == tally.total() && tally.total() > 4, "{tally:?}");
        assert_eq!(nginx.logged("[error]").len(), 1, "{:?}", nginx.logged("[error]"));
    }
}

/// The greeting is answered, and then the connection ends: a proxy that has lost its Redis.
#[test]
fn connections_that_end_after_the_greeting_are_not_made_in_a_storm() {
    let fake = Fake::start(|command| match command.name().as_str() {
        // The last command of a greeting: one limit needs one script.
        "SCRIPT" => Act::Close("+OK\r\n".into()),
        _ => Act::Usual,
    });
    let nginx = limited(&fake.url()).start();
    nginx.wait_for_error_log("is down");
    let load = harness::Load::start(nginx.addr(), "/?k=a", 2);
    let (made, most) = connections(&fake);
    let tally = load.stop();
    assert_eq!(tally.of(200), tally.total(), "{tally:?}");
    let errors = nginx.logged("redis 127.0.0.1:").len();
    assert!((1..=most).contains(&made), "{made} connections");
    assert!(errors <= most, "{errors} lines for {made} connections");
}

/// Each answer is the last of its connection.
#[test]
fn connections_that_end_after_an_answer_are_not_made_in_a_storm() {
    let fake = Fake::answering(|_| Act::Close(ALLOWED.into()));
    let nginx = limited(&fake.url()).start();
    works(&nginx);
    let load = harness::Load::start(nginx.addr(), "/?k=a", 4);
    let (made, most) = connections(&fake);
    let tally = load.stop();
    assert_eq!(tally.of(200), tally.total(), "{tally:?}");
    let errors = nginx.logged("redis 127.0.0.1:").len();
    // The first, five that replace one another at once, and then those with backoff.
    assert!(made <= 6 + most, "{made} connections");
    // One line for those that are replaced, and one for their end. Each of the others is up again, and
    // down.
    let all = fake.count("");
    assert!(errors <= 2 + 2 * all.saturating_sub(6), "{all} connections, {errors} lines");
}

/// The greeting is answered, and no question ever is.
#[test]
fn a_server_that_answers_nothing_but_the_greeting_is_down() {
    let fake = Fake::answering(|_| Act::Ignore);
    let nginx = limited(&fake.url()).server("rate_limit_redis_timeout 20ms;").start();
    let load = harness::Load::start(nginx.addr(), "/?k=a", 2);
    sleep(Duration::from_secs(5));
    let tally = load.stop();
    assert_eq!(tally.of(200), tally.total(), "{tally:?}");
    let errors = nginx.logged("redis 127.0.0.1:");
    assert!(errors.len() <= 6, "{errors:#?}");
}
