//! The log of nginx about each request: how it was decided, and how long that took.

use std::time::Duration;

/// The directives that make nginx keep a journal, in the file `journal.log`.
pub(crate) const DIRECTIVES: &str = r#"log_format journal '$request_uri $status '
    '$rate_limit_redis_status $rate_limit_redis_source $rate_limit_redis_time';
access_log {prefix}/journal.log journal;"#;

/// One request; what does not apply to it is `-` or zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The path and query.
    pub uri: String,
    /// The status code.
    pub status: u16,
    /// `$rate_limit_redis_status`.
    pub decision: String,
    /// `$rate_limit_redis_source`.
    pub source: String,
    /// `$rate_limit_redis_time`.
    pub wait: Duration,
}

/// The requests of a journal, in the order in which they were finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Journal(pub Vec<Entry>);

impl Journal {
    /// Reads what nginx wrote, but for a line that it may not have finished.
    pub(crate) fn read(text: &str) -> Self {
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        Self(whole.lines().map(entry).collect())
    }

    /// How many requests were decided so.
    pub fn count(&self, decision: &str) -> usize {
        self.0.iter().filter(|entry| entry.decision == decision).count()
    }

    /// The entries from `number` on, those that are written after a journal of so many.
    pub fn after(&self, number: usize) -> Self {
        Self(self.0[number..].to_vec())
    }

    /// The wait that so many of a hundred requests did not exceed.
    pub fn percentile(&self, percent: usize) -> Duration {
        let mut waits: Vec<_> = self.0.iter().map(|entry| entry.wait).collect();
        waits.sort();
        waits[(waits.len() * percent / 100).min(waits.len() - 1)]
    }
}

fn entry(line: &str) -> Entry {
    let fields: Vec<_> = line.split(' ').collect();
    let [uri, status, decision, source, wait] = fields[..] else { panic!("{line:?}") };
    Entry {
        uri: uri.to_owned(),
        status: status.parse().expect("a status"),
        decision: decision.to_owned(),
        source: source.to_owned(),
        wait: Duration::from_secs_f64(wait.parse().unwrap_or_default()),
    }
}
