//! A busy key: equal requests are coalesced, and decided as if each had come alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::Duration;

use harness::{Act, Command, Conf, Fake, Http, Nginx, PATIENCE, Redis, wait_until};

use crate::seen::StartConnected as _;

/// 30 at once, and then none for long.
fn limited(url: &str) -> Nginx {
    let nginx = Conf::new()
        .decisions()
        .store(url)
        .status()
        .server("location / { rate_limit_redis $arg_k rate=1r/h capacity=30 cost=$c; }")
        .http("map $arg_cost $c { '' 1; default $arg_cost; }")
        .start();
    assert_eq!(nginx.get("/?k=first").decision(), "PASSED redis");
    nginx
}

/// Connections that the worker has accepted.
fn clients(nginx: &Nginx, number: usize) -> Vec<Http> {
    let mut clients: Vec<_> = (0..number).map(|_| nginx.http()).collect();
    for http in &mut clients {
        assert_eq!(http.get("/").decision(), "BYPASSED none");
    }
    clients
}

fn send(clients: &mut [Http], path: &str) {
    clients.iter_mut().for_each(|http| http.send("GET", path, &[]));
}

/// They come one after the other, mostly in a turn of their own each.
fn send_in_turns(clients: &mut [Http], path: &str) {
    for http in clients {
        http.send("GET", path, &[]);
        sleep(Duration::from_millis(2));
    }
}

fn decisions(clients: &mut [Http]) -> Vec<String> {
    clients.iter_mut().map(|http| http.read_response().decision().to_owned()).collect()
}

#[test]
fn requests_that_come_meanwhile_share_the_next_command() {
    let mut redis = Redis::start();
    let nginx = limited(&redis.url());
    let (mut first, mut later) = (clients(&nginx, 10), clients(&nginx, 40));
    let before = redis.calls("evalsha");
    redis.stop_signal();
    nginx.in_one_turn(|| send(&mut first, "/?k=busy"));
    nginx.wait_for_requests(first.len(), 0);
    // Also in one turn: they share a command, whether it is held until the reply or, on a slow machine,
    // sent before.
    nginx.in_one_turn(|| send(&mut later, "/?k=busy"));
    redis.cont();
    assert_eq!(decisions(&mut first), ["PASSED redis"; 10]);
    let later: Vec<_> = later.iter_mut().map(Http::read_response).collect();
    for (number, answer) in later.iter().enumerate() {
        let expected = if number < 20 { "PASSED redis" } else { "REJECTED redis" };
        assert_eq!(answer.decision(), expected, "number {number}");
        assert_eq!(answer.remaining(), Some(19u64.saturating_sub(number as u64)));
    }
    assert_eq!(redis.calls("evalsha") - before, 2);
}

#[test]
fn different_costs_are_not_coalesced() {
    let mut redis = Redis::start();
    let nginx = limited(&redis.url());
    let (mut first, mut others) = (clients(&nginx, 2), clients(&nginx, 3));
    redis.stop_signal();
    nginx.in_one_turn(|| send(&mut first, "/?k=costs"));
    nginx.wait_for_requests(first.len(), 0);
    for (http, cost) in others.iter_mut().zip([1, 27, 1]) {
        http.send("GET", &format!("/?k=costs&cost={cost}"), &[]);
        sleep(Duration::from_millis(2));
    }
    redis.cont();
    assert_eq!(decisions(&mut first), ["PASSED redis"; 2]);
    let passed = decisions(&mut others).iter().filter(|said| *said == "PASSED redis").count();
    // 30 are 2 and 27 and 1.
    assert_eq!(passed, 2);
}

/// Whichever clients leave, the others get their answers: the first, the last, all in flight, or
/// all that wait.
#[test]
fn a_client_that_leaves_takes_no_other_with_it() {
    let mut redis = Redis::start();
    let nginx = limited(&redis.url());
    for (round, leaves) in [
        |number: usize| number == 0 || number == 6,
        |number| number == 5 || number == 11,
        |number| number < 6,
        |number| number >= 6,
        |number| number % 2 == 0,
        |number| number % 2 == 1,
        |number| number != 11,
        |number| number != 5,
        |_| true,
    ]
    .into_iter()
    .enumerate()
    {
        let path = format!("/?k=left{round}");
        let mut all = clients(&nginx, 12);
        redis.stop_signal();
        nginx.in_one_turn(|| send(&mut all[..6], &path));
        send_in_turns(&mut all[6..], &path);
        nginx.wait_for_requests(all.len(), 0);
        let (gone, mut stay): (Vec<_>, Vec<_>) =
            all.into_iter().enumerate().partition(|(number, _)| leaves(*number));
        drop(gone);
        nginx.wait_for_requests(stay.len(), 0);
        redis.cont();
        for (number, http) in &mut stay {
            let said = http.read_response();
            assert_eq!(said.decision(), "PASSED redis", "round {round}, number {number}");
        }
        // Requests in flight are charged, even if their clients have left since.
        let commands = if stay.iter().all(|(number, _)| *number < 6) { 6 } else { 7 };
        let left = nginx.get(&path).remaining().expect("what remains");
        assert!((17..=30 - commands).contains(&left), "round {round}: {left} remain");
    }
}

/// A server that does so about the first command for the key `busy`, once the flag is set.
fn fails_once(act: Act) -> (Fake, Arc<AtomicBool>) {
    let (commands, is_told) = (AtomicUsize::new(0), Arc::new(AtomicBool::new(false)));
    let told = Arc::clone(&is_told);
    let fake = Fake::start(move |command: &Command| match command.key() {
        Some("busy") if commands.fetch_add(1, Ordering::Relaxed) == 0 => {
            wait_until(PATIENCE, || told.load(Ordering::Relaxed), "the test");
            act.clone()
        }
        _ => Act::Usual,
    });
    (fake, is_told)
}

/// Ten requests, and twenty that come before the reply to them: how they are decided.
fn decided_meanwhile(nginx: &Nginx, is_told: &AtomicBool) -> (Vec<String>, Vec<String>) {
    let (mut first, mut later) = (clients(nginx, 10), clients(nginx, 20));
    nginx.in_one_turn(|| send(&mut first, "/?k=busy"));
    nginx.wait_for_requests(first.len(), 0);
    nginx.in_one_turn(|| send(&mut later, "/?k=busy"));
    nginx.wait_for_requests(first.len() + later.len(), 0);
    is_told.store(true, Ordering::Relaxed);
    (decisions(&mut first), decisions(&mut later))
}

#[test]
fn all_that_wait_are_undecided_if_redis_ends() {
    let mut redis = Redis::start();
    let nginx = limited(&redis.url());
    let (mut first, mut later) = (clients(&nginx, 10), clients(&nginx, 20));
    redis.stop_signal();
    nginx.in_one_turn(|| send(&mut first, "/?k=busy"));
    send_in_turns(&mut later, "/?k=busy");
    nginx.wait_for_requests(first.len() + later.len(), 0);
    redis.kill9();
    assert_eq!(decisions(&mut first), ["ERROR_PASSED none"; 10]);
    assert_eq!(decisions(&mut later), ["ERROR_PASSED none"; 20]);
    redis.restart();
    let decided = || first[0].get("/?k=busy").decision() == "PASSED redis";
    wait_until(PATIENCE, decided, "decisions by Redis");
}

/// The script is gone: the command is sent again for all its requests, with the source.
#[test]
fn a_command_is_sent_again_with_a_script_that_is_gone() {
    let (fake, is_told) = fails_once(Act::line("-NOSCRIPT No matching script."));
    let nginx = limited(&fake.url());
    let (first, later) = decided_meanwhile(&nginx, &is_told);
    assert_eq!(first, ["PASSED redis"; 10]);
    assert_eq!(later, ["PASSED redis"; 20]);
    assert_eq!((fake.times("EVALSHA", "busy"), fake.times("EVAL", "busy")), (2, 1));
}

#[test]
fn an_error_is_for_the_requests_of_the_command() {
    let (fake, is_told) = fails_once(Act::line("-ERR for once"));
    let mut nginx = limited(&fake.url());
    nginx.allow_log("for once");
    let (first, later) = decided_meanwhile(&nginx, &is_told);
    assert_eq!(first, ["ERROR_PASSED none"; 10]);
    assert_eq!(later, ["PASSED redis"; 20]);
}

/// A request that waits for the next command has the same timeout as others.
#[test]
fn a_request_that_waits_times_out() {
    let mut redis = Redis::start();
    let nginx = Conf::new()
        .decisions()
        .redis(&redis)
        .server("rate_limit_redis_timeout 1s;")
        .server("location / { rate_limit_redis $arg_k rate=1r/h capacity=30; }")
        .start_connected(&redis);
    assert_eq!(nginx.get("/?k=busy").decision(), "PASSED redis");
    let (mut first, mut later) = (clients(&nginx, 2), clients(&nginx, 3));
    redis.stop_signal();
    nginx.in_one_turn(|| send(&mut first, "/?k=busy"));
    sleep(Duration::from_millis(100));
    send_in_turns(&mut later, "/?k=busy");
    assert_eq!(decisions(&mut first), ["ERROR_PASSED none"; 2]);
    assert_eq!(decisions(&mut later), ["ERROR_PASSED none"; 3]);
    redis.cont();
    let decided = || first[0].get("/?k=busy").decision() == "PASSED redis";
    wait_until(PATIENCE, decided, "decisions by Redis");
}
