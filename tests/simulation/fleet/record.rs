//! The events of a fleet, in tenths of a second.

use rate_limit_core::rate::SECOND;

/// How long a sample is, in µs.
pub const SPAN: u64 = SECOND / 10;

/// The events of a tenth of a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// Requests that came, and those of them that were not decided. Those for slots without an owner are not
    /// among them.
    pub requests: u64,
    pub undecided: u64,
    /// Requests that failed with their connections although their commands had not been sent.
    pub unsent: u64,
    /// Attempts to connect, by the workers.
    pub attempts: u64,
    /// Connections that servers have accepted, and refused as there were too many.
    pub accepted: u64,
    pub refused: u64,
    /// Queries for the topology that servers have answered.
    pub queries: u64,
    /// Lines for the log that say that something is wrong.
    pub lines: u64,
    /// Connections that are open at the servers.
    pub open: u64,
    /// How busy the busiest server is, and all masters on average: 1 is a whole core.
    pub busiest: f64,
    pub busy: f64,
}

/// All samples.
#[derive(Debug, Default)]
pub struct Record {
    pub samples: Vec<Sample>,
    /// The one that is being made, without its requests.
    pub now: Sample,
}

impl Record {
    pub fn on_request(&mut self, submitted: u64, is_decided: bool, is_served: bool) {
        let sample = self.sample_at(submitted);
        if is_served || is_decided {
            sample.requests += 1;
            sample.undecided += u64::from(!is_decided);
        }
    }

    /// The present sample ends at `now`.
    pub fn end_sample(&mut self, now: u64) {
        let ended = std::mem::take(&mut self.now);
        let sample = self.sample_at(now - SPAN);
        let (requests, undecided) = (sample.requests, sample.undecided);
        *sample = Sample { requests, undecided, ..ended };
    }

    fn sample_at(&mut self, time: u64) -> &mut Sample {
        let index = (time / SPAN) as usize;
        if self.samples.len() <= index {
            self.samples.resize(index + 1, Sample::default());
        }
        &mut self.samples[index]
    }

    /// The samples of a span of time, in µs.
    pub fn during(&self, time: std::ops::Range<u64>) -> &[Sample] {
        let [start, end] = [time.start, time.end].map(|at| (at / SPAN) as usize);
        &self.samples[start.min(self.samples.len())..end.min(self.samples.len())]
    }
}

/// The sum of something over samples.
pub fn sum(samples: &[Sample], what: impl Fn(&Sample) -> u64) -> u64 {
    samples.iter().map(what).sum()
}

/// The most of something that happens in any second.
pub fn most_in_a_second(samples: &[Sample], what: impl Fn(&Sample) -> u64) -> u64 {
    samples.windows(10).map(|second| sum(second, &what)).max().unwrap_or(0)
}
