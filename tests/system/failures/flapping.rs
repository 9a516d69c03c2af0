//! A Redis that is down for moments, again and again, as one behind a path that loses packets.

use std::time::Instant;

use harness::{Conf, Mode, Nginx, PATIENCE, Proxy, Redis, wait_until};

use crate::seen::StartConnected as _;

/// A worker whose breaker opens after one failure, and a Redis whose replies a test can hold back.
struct Site {
    proxy: Proxy,
    nginx: Nginx,
    /// How many outages there were.
    outages: usize,
    /// Requests that were not decided while replies were held back.
    undecided: usize,
    /// Requests that got no decision, with those that came afterwards, until one was decided.
    all_undecided: usize,
}

impl Site {
    fn start(redis: &Redis) -> Self {
        let proxy = Proxy::to(redis);
        let nginx = Conf::new()
            .decisions()
            .http(&format!(
                "rate_limit_redis_store redis {{ server {}; max_fails 1; }}",
                proxy.url()
            ))
            .http("rate_limit_redis_pass redis; rate_limit_redis_timeout 50ms;")
            .server("location / { rate_limit_redis $arg_k rate=1r/h capacity=500000; }")
            .server("location = /metrics { rate_limit_redis_metrics prometheus; }")
            .start_connected(redis);
        let mut site = Self { proxy, nginx, outages: 0, undecided: 0, all_undecided: 0 };
        site.goes_up();
        site
    }

    /// Holds replies back until that counts as an outage.
    fn goes_down(&mut self) {
        self.proxy.set(Mode::HoldReplies);
        let is_down = || {
            assert_eq!(self.nginx.get("/?k=a").decision(), "ERROR_PASSED none");
            self.undecided += 1;
            self.all_undecided += 1;
            let page = self.nginx.get("/metrics").text().to_owned();
            page.lines().any(|line| line.contains("breaker_open{") && line.ends_with(" 1"))
        };
        wait_until(PATIENCE, is_down, "an outage");
        self.outages += 1;
    }

    /// Lets replies pass, and waits until a request is decided.
    fn goes_up(&mut self) {
        self.proxy.set(Mode::Pass);
        let is_decided = || {
            let decision = self.nginx.get("/?k=a").decision().to_owned();
            self.all_undecided += usize::from(decision == "ERROR_PASSED none");
            decision == "PASSED redis"
        };
        wait_until(PATIENCE, is_decided, "a decision");
    }

    /// How many outages the log has in all, and how many requests that were not decided.
    fn told(&self) -> (usize, usize) {
        let lines = self.nginx.logged(" requests were not decided by it");
        let requests = lines.iter().filter_map(|line| number_before(line, " requests were"));
        let short = lines.iter().filter_map(|line| number_before(line, " times in "));
        (self.nginx.logged("is up again").len() + short.sum::<usize>(), requests.sum())
    }
}

/// The number before `text` in a line.
fn number_before(line: &str, text: &str) -> Option<usize> {
    let (before, _) = line.split_once(text)?;
    before.rsplit(' ').next()?.parse().ok()
}

#[test]
fn short_outages_share_a_line() {
    let redis = Redis::start();
    let mut site = Site::start(&redis);
    let start = Instant::now();
    while site.nginx.logged("was briefly down").is_empty() {
        assert!(start.elapsed() < PATIENCE, "{:#?}", site.nginx.logged(": redis "));
        site.goes_down();
        site.goes_up();
    }
    // No request comes any more, and each outage is logged nevertheless.
    wait_until(PATIENCE, || site.told().0 >= site.outages, "all outages in the log");

    // So it is with one that lasts, which has its own lines, with the reason.
    let known = site.nginx.logged("is down: ").len();
    site.goes_down();
    let is_logged = || site.nginx.logged("is down: ").len() > known;
    wait_until(PATIENCE, is_logged, "an outage that lasts");
    let line = site.nginx.logged("is down: ").pop().expect("a line");
    // On a busy machine the connection may be given up before.
    let reasons = ["is down: no reply ", "is down: timed out while connecting"];
    assert!(reasons.iter().any(|reason| line.contains(reason)), "{line}");
    site.goes_up();
    wait_until(PATIENCE, || site.told().0 >= site.outages, "its end in the log");

    // Outages that are not logged yet when a worker exits are logged, too.
    while site.told().0 >= site.outages {
        site.goes_down();
        site.goes_up();
    }
    site.nginx.reload();
    wait_until(PATIENCE, || site.told().0 >= site.outages, "what the worker has left");

    let requests = site.undecided..=site.all_undecided;
    let lines = site.nginx.logged(": redis ");
    assert!(requests.contains(&site.told().1), "{requests:?}: {lines:#?}");
    let of = |text: &str| lines.iter().position(|line| line.contains(text));
    assert!(of("is down: ") < of("was briefly down"), "the first is logged at once: {lines:#?}");
    let own =
        lines.iter().filter(|line| ["is down: ", "is up again"].iter().any(|it| line.contains(it)));
    let own: Vec<_> = own.map(|line| line.contains("is up again")).collect();
    assert!(own.iter().enumerate().all(|(index, is_up)| *is_up == (index % 2 == 1)), "{lines:#?}");
    assert_eq!(own.len() % 2, 0, "{lines:#?}");
}
