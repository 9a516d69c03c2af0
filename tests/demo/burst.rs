//! A burst of requests through all nginx, and what became of it.

use std::fmt;
use std::panic::resume_unwind;
use std::thread;
use std::time::{Duration, Instant};

use harness::Tally;

/// The burst for each nginx.
const REQUESTS: u64 = 70;
const AT_ONCE: u64 = 7;
/// Not as fast as it can, or one may be done before another begins.
const EACH_PER_SECOND: u64 = 50;

/// The limit of its location in `demo.conf`.
const CAPACITY: u64 = 100;
const PER_MINUTE: u64 = 100;

/// The results of the burst.
pub struct Burst {
    took: Duration,
    /// For each nginx its URL, and the report of hey.
    reports: Vec<(String, String)>,
}

/// The line that announces the burst.
pub fn announcement() -> String {
    format!(
        "sending {REQUESTS} requests to /api of each; it has rate={PER_MINUTE}r/m, and so a capacity of {CAPACITY} for all \
         three"
    )
}

impl Burst {
    /// Sends the requests.
    pub fn send(urls: &[String]) -> Self {
        let started = Instant::now();
        let hey = |url: &String| {
            let [requests, at_once, rate] =
                [REQUESTS, AT_ONCE, EACH_PER_SECOND].map(|n| n.to_string());
            let api = format!("{url}/api");
            harness::run("hey", &["-n", &requests, "-c", &at_once, "-q", &rate, &api])
        };
        let reports = thread::scope(|scope| {
            let each: Vec<_> = urls.iter().map(|url| scope.spawn(move || hey(url))).collect();
            let joined =
                each.into_iter().map(|hey| hey.join().unwrap_or_else(|it| resume_unwind(it)));
            joined.collect::<Vec<_>>()
        });
        Self { took: started.elapsed(), reports: urls.iter().cloned().zip(reports).collect() }
    }

    /// Whether it was limited as configured.
    pub fn is_limited(&self) -> bool {
        let (passed, rejected) = self.passed_and_rejected();
        (CAPACITY..=self.most()).contains(&passed) && passed + rejected == self.number()
    }

    /// The reports of hey.
    pub fn reports(&self) -> String {
        self.reports.iter().map(|(_, report)| report.as_str()).collect()
    }

    fn number(&self) -> u64 {
        REQUESTS * self.reports.len() as u64
    }

    /// How many may pass: tokens come back while the burst lasts.
    fn most(&self) -> u64 {
        CAPACITY + 1 + self.took.as_micros() as u64 * PER_MINUTE / 60_000_000
    }

    fn passed_and_rejected(&self) -> (u64, u64) {
        let each = self.reports.iter().map(|(_, report)| passed_and_rejected(report));
        each.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }
}

fn passed_and_rejected(report: &str) -> (u64, u64) {
    let tally = Tally::of_hey(report);
    (tally.of(200), tally.of(429))
}

impl fmt::Display for Burst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f)?;
        for (url, report) in &self.reports {
            let (passed, rejected) = passed_and_rejected(report);
            writeln!(f, "    {url}  {passed:3} passed, {rejected:3} rejected")?;
        }
        let (passed, rejected) = self.passed_and_rejected();
        let (number, time) = (self.number(), self.took.as_millis());
        write!(f, "\n{number} requests in {time} ms: {passed} got 200, {rejected} got 429")?;
        match self.is_limited() {
            true => writeln!(f, ", limited as configured"),
            false => writeln!(
                f,
                "; but {CAPACITY} to {} should have got 200, and the others 429",
                self.most()
            ),
        }
    }
}
