//! The one core of a server: it works off a queue, first in, first out.

use std::collections::VecDeque;

/// A core, and the work that waits for it.
///
/// Beside the work that is simulated piece by piece there is a stream of it: that of the commands for which
/// the simulated ones stand.
#[derive(Debug)]
pub struct Processor {
    /// Up to then everything is taken into account, in µs.
    now: u64,
    /// How long the work that waits will take, in µs.
    backlog: f64,
    /// The share of the core that the stream takes.
    stream: f64,
    /// When parts of the stream end, and their shares.
    ends: VecDeque<(u64, f64)>,
    /// How many times as long as usual everything takes.
    pub slowness: f64,
    /// How long it has worked since that was last taken, in µs.
    busy: f64,
}

impl Processor {
    pub fn new() -> Self {
        let ends = VecDeque::new();
        Self { now: 0, backlog: 0.0, stream: 0.0, ends, slowness: 1.0, busy: 0.0 }
    }

    /// Adds work that takes so many ns, and returns when it will be done, in µs.
    pub fn work(&mut self, nanos: u64, now: u64) -> u64 {
        self.advance(now);
        self.backlog += nanos as f64 / 1_000.0 * self.slowness;
        now + self.backlog.ceil() as u64
    }

    /// Adds work of so many ns that comes little by little, in the next `span` µs.
    pub fn stream(&mut self, nanos: u64, span: u64, now: u64) {
        self.advance(now);
        let share = nanos as f64 / 1_000.0 / span as f64;
        self.stream += share;
        self.ends.push_back((now + span, share));
    }

    /// All work is lost, with the process.
    pub fn clear(&mut self, now: u64) {
        self.advance(now);
        self.backlog = 0.0;
        self.stream = 0.0;
        self.ends.clear();
    }

    /// Takes how long it has worked, in µs.
    pub fn take_busy(&mut self, now: u64) -> f64 {
        self.advance(now);
        std::mem::take(&mut self.busy)
    }

    fn advance(&mut self, now: u64) {
        while let Some((end, share)) = self.ends.front().copied().filter(|(end, _)| *end <= now) {
            self.run(end);
            self.ends.pop_front();
            self.stream = if self.ends.is_empty() { 0.0 } else { self.stream - share };
        }
        self.run(now);
    }

    /// Works until `end`, while the stream is as it is.
    fn run(&mut self, end: u64) {
        let span = end.saturating_sub(self.now) as f64;
        self.now = self.now.max(end);
        let share = self.stream * self.slowness;
        let left = self.backlog + (share - 1.0) * span;
        // The core is busy all the time, or until the backlog is empty, and then for the stream.
        self.busy += if left > 0.0 { span } else { self.backlog + share * span };
        self.backlog = left.max(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_waits_for_what_came_before() {
        let mut processor = Processor::new();
        assert_eq!(processor.work(5_000, 100), 105);
        assert_eq!(processor.work(5_000, 101), 110);
        assert_eq!(processor.work(5_000, 200), 205);
        processor.slowness = 10.0;
        assert_eq!(processor.work(5_000, 300), 350);
        processor.clear(310);
        assert_eq!(processor.work(5_000, 320), 370);
        // It stood still from 110 to 200, from 205 to 300 and from 310 to 320.
        assert_eq!(processor.take_busy(370), 75.0);
    }

    #[test]
    fn a_stream_takes_its_share() {
        let mut processor = Processor::new();
        processor.stream(500_000, 1_000, 0);
        assert_eq!(processor.work(100_000, 0), 100);
        // The stream has brought 50 µs of work meanwhile.
        assert_eq!(processor.work(0, 100), 150);
        assert_eq!(processor.work(0, 200), 200);
        assert_eq!(processor.take_busy(1_500), 600.0);
    }
}
