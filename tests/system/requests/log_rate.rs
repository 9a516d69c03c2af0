//! `rate_limit_redis_log_level … rate=`: a flood of rejections does not fill the log.

use harness::{Conf, Nginx, PATIENCE, Redis, free_port, hey, wait_until};

use crate::seen::StartConnected as _;

/// How many lines of the log hold `text`.
fn number_of(log: &str, text: &str) -> u64 {
    log.lines().filter(|line| line.contains(text)).count() as u64
}

/// The number in a line such as `12,345 more rejections by limit "a"`.
fn counted(line: &str, what: &str) -> u64 {
    let number = line.split(what).next().and_then(|before| before.split_whitespace().last());
    let number = number.unwrap_or_else(|| panic!("no number: {line}"));
    let groups: Vec<_> = number.split(',').collect();
    let is_grouped = |(index, group): (usize, &&str)| match index {
        0 => (1..=3).contains(&group.len()),
        _ => group.len() == 3,
    };
    assert!(groups.iter().enumerate().all(is_grouped), "{line}");
    groups.concat().parse().unwrap_or_else(|_| panic!("no number: {line}"))
}

/// The sum of these numbers in a log.
fn sum(log: &str, what: &str) -> u64 {
    log.lines().filter(|line| line.contains(what)).map(|line| counted(line, what)).sum()
}

/// Sends so many requests over many connections.
fn flood(nginx: &Nginx, path: &str, number: u64) {
    let tally = hey(&["-n", &number.to_string(), "-c", "20", &nginx.url(path)]);
    assert_eq!(tally.total(), number, "{tally:?}");
}

const MORE: &str = " more rejections by limit \"per_ip\"";

#[test]
fn a_flood_is_counted() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .server("rate_limit_redis a name=per_ip rate=1r/d;")
        .server("rate_limit_redis_log_level warn rate=10r/s;")
        .start_connected(&redis);
    flood(&nginx, "/", 4_000);
    let rejected = || number_of(&nginx.error_log(), "limiting requests");
    // The lines that are still held back are logged within a second.
    let complete = || rejected() + sum(&nginx.error_log(), MORE) == 3_999;
    wait_until(PATIENCE, complete, "a line for each rejection, or its number");
    let log = nginx.error_log();
    let reports: Vec<_> = log.lines().filter(|line| line.contains(MORE)).collect();
    assert!(
        reports.iter().all(|line| line.contains("[warn]") && line.ends_with(MORE)),
        "{reports:?}"
    );
    // Each report ends a second that had at least ten lines, and no second has more than ten.
    let seconds = reports.len() as u64;
    assert!(seconds > 0 && rejected() <= 10 * (2 * seconds + 1), "{log}");
}

/// NGINX logs each timer that expires, with what it takes for the socket of its data.
#[test]
fn what_was_held_back_is_logged_with_debug_lines_too() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .debug()
        .redis(&redis)
        .server("rate_limit_redis a name=per_ip rate=1r/d;")
        .server("rate_limit_redis_log_level warn rate=10r/s;")
        .start_connected(&redis);
    let workers = nginx.worker_pids();
    flood(&nginx, "/", 200);
    wait_until(PATIENCE, || sum(&nginx.error_log(), MORE) > 0, "the number of the lines held back");
    assert_eq!(nginx.worker_pids(), workers, "the workers");
}

#[test]
fn each_limit_has_its_own_number() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .http("rate_limit_redis_log_level info rate=1r/s;")
        .server("location /a { rate_limit_redis a name=a rate=1r/d; }")
        .server("location /b { rate_limit_redis b name=b rate=1r/d; }")
        .server("location /dry { rate_limit_redis c name=dry rate=1r/d;")
        .server("  rate_limit_redis_dry_run on; }")
        .server("location /slow { rate_limit_redis d name=slow rate=1000r/s burst=1000")
        .server("  algorithm=leaky_bucket; }")
        .start_connected(&redis);
    let paths = ["/a", "/b", "/dry", "/slow"];
    paths.iter().for_each(|path| flood(&nginx, path, 200));
    let lines = [
        ("by limit \"a\", key", " more rejections by limit \"a\""),
        ("by limit \"b\", key", " more rejections by limit \"b\""),
        ("by limit \"dry\", key", " more dry-run rejections by limit \"dry\""),
        ("by limit \"slow\", key", " more delays by limit \"slow\""),
    ];
    for (line, more) in lines {
        let complete = || {
            let log = nginx.error_log();
            let all = number_of(&log, line) + sum(&log, more);
            // The first request of the leaky bucket at least passes at once.
            all == 199 || (more.contains("delays") && (1..199).contains(&all))
        };
        wait_until(PATIENCE, complete, more);
    }
}

#[test]
fn what_is_held_back_is_logged_when_the_worker_ends() {
    for end in [Nginx::quit, Nginx::terminate, Nginx::reload] {
        let redis = Redis::start();
        let mut nginx = Conf::new()
            .redis(&redis)
            .server("rate_limit_redis a name=per_ip rate=1r/d;")
            .server("rate_limit_redis_log_level error rate=1r/s;")
            .start_connected(&redis);
        flood(&nginx, "/", 300);
        end(&mut nginx);
        let log = nginx.error_log();
        assert_eq!(number_of(&log, "limiting requests") + sum(&log, MORE), 299, "{log}");
    }
}

#[test]
fn the_log_of_the_location_has_the_number() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .server("error_log {prefix}/own.log warn; rate_limit_redis_log_level warn rate=1r/s;")
        .server("rate_limit_redis a name=per_ip rate=1r/d;")
        .start_connected(&redis);
    flood(&nginx, "/", 100);
    let complete = || {
        let log = nginx.read("own.log");
        number_of(&log, "limiting requests") + sum(&log, MORE) == 99
    };
    wait_until(PATIENCE, complete, "the number of rejections in the log of the server");
    assert_eq!(number_of(&nginx.error_log(), "rejections"), 0);
}

#[test]
fn a_thousand_lines_a_second_are_written_by_default() {
    // Without Redis a rejection is decided in the turn in which the request arrives, however long after
    // the one before it.
    // One worker: the bound is that of each.
    let mut nginx = Conf::new()
        .workers(1)
        .store(format!("redis://127.0.0.1:{}", free_port()))
        .server("rate_limit_redis a name=per_ip rate=1r/d; rate_limit_redis_on_error local;")
        .start();
    nginx.wait_for_error_log("is down");
    let mut connections: Vec<_> = (0..20).map(|_| nginx.http()).collect();
    let statuses: Vec<_> = connections.iter_mut().map(|http| http.get("/").status).collect();
    assert_eq!((statuses[0], &statuses[1..]), (200, &[429; 19][..]));
    let hundred = "GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(100);
    nginx.in_one_turn(|| connections.iter_mut().for_each(|it| it.send_raw(hundred.as_bytes())));
    for http in &mut connections {
        (0..100).for_each(|_| assert_eq!(http.read_response().status, 429));
    }
    nginx.quit();
    let log = nginx.error_log();
    let written = number_of(&log, "limiting requests");
    assert_eq!(written + sum(&log, MORE), 2_019);
    // The lines before, and those of a turn: the few of another second do not matter.
    assert!((1_000..1_100).contains(&written), "{written} lines");
}
