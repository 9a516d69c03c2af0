//! The least that was missing of a bucket since each charge that may be corrected.
//!
//! A correction gives back what a charge has spent too much, but no more than was missing all the time since: the
//! rest has been regained. What is missing grows at charges only, so its minimum from a moment until now is a step
//! function of that moment, which rises just after charges: the monotonic stack of a sliding-window minimum. It
//! has a step for each charge before which less was missing than before any later one.
//!
//! If r of a charge come back, r less was missing ever since: the later steps sink by r. From any earlier moment
//! on no more was missing than is left of the minimum since the charge. So corrections count exactly in any order,
//! however they overlap.
//!
//! A step is joined to the one before it if they differ by less than a part of what is missing, and of more than
//! [`Minima::MOST`] the two that differ least are: the lower one takes the time of the later one. Then less may come
//! back than was missing, never more.
//!
//! The first step is 0, as nothing was missing, or nobody knows how much, before the first charge. Without steps
//! nothing is known, and nothing comes back.

/// The steps, in order of time; what was missing grows from each to the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Minima(Vec<Minimum>);

/// One step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Minimum {
    /// The time of a charge, in µs.
    pub at: u64,
    /// The shortage just before it, rounded down: the µs in which that comes back; in a bucket that is refilled at
    /// intervals, tokens.
    pub missing: u64,
}

/// The charge that is corrected.
#[derive(Clone, Copy, Debug)]
pub(super) struct Correction {
    /// How many steps come before those of later charges.
    earlier: usize,
    /// The first step after it, if another charge has followed.
    pub(super) lowest: Option<Minimum>,
}

impl Minima {
    /// How many steps are kept at most.
    pub(crate) const MOST: usize = 16;

    /// A step differs from the one before it by this part of what is missing at least.
    pub(crate) const PARTS: u64 = 16;

    /// These steps.
    pub fn new(steps: impl Into<Vec<Minimum>>) -> Self {
        Self(steps.into())
    }

    /// The steps.
    pub fn steps(&self) -> &[Minimum] {
        &self.0
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        if !self.0.is_empty() {
            self.0 = Vec::new();
        }
    }

    /// Takes note of a charge at `now`, before which so much was missing. Steps of a clock that was ahead count as of now.
    pub(super) fn note(&mut self, now: u64, mut missing: u64) {
        if self.0.last().is_some_and(|last| last.at == now && last.missing <= missing) {
            return;
        }
        while let Some(last) = self.0.pop_if(|last| last.missing >= missing || last.at > now) {
            missing = missing.min(last.missing);
        }
        match self.0.last_mut() {
            Some(last) if missing.saturating_sub(last.missing) < missing / Self::PARTS => {
                last.at = now;
            }
            Some(_) | None => self.0.push(Minimum { at: now, missing }),
        }
        if self.0.len() > Self::MOST {
            self.join();
        }
    }

    /// Joins the two steps that differ least.
    fn join(&mut self) {
        let differ = |pair: &[Minimum]| match pair {
            [lower, later] => later.missing.saturating_sub(lower.missing),
            [..] => u64::MAX,
        };
        let pairs = self.0.windows(2).map(differ).enumerate();
        let Some((closest, _)) = pairs.min_by_key(|(_, difference)| *difference) else { return };
        let lower = self.0.remove(closest);
        if let Some(later) = self.0.get_mut(closest) {
            later.missing = lower.missing;
        }
    }

    /// The correction at `now` of a charge at `charged_at`; `None` if nothing is known.
    pub(super) fn correction(&self, charged_at: u64, now: u64) -> Option<Correction> {
        // After a clock that stepped back anything may have followed.
        let charged_at = if charged_at > now { 0 } else { charged_at };
        let earlier = self.0.iter().rposition(|step| step.at <= charged_at);
        let earlier = earlier.map_or(0, |last| last.saturating_add(1));
        let lowest = self.0.get(earlier).copied();
        (!self.is_empty()).then_some(Correction { earlier, lowest })
    }

    /// Takes note that so much of what was missing came back. Where no charge has followed the corrected one, `missing`
    /// is what is missing now.
    pub(super) fn sink(&mut self, correction: Correction, back: u64, missing: u64) {
        let Correction { earlier, lowest } = correction;
        let left = lowest.map_or(missing, |lowest| lowest.missing.saturating_sub(back));
        let later = self.0.split_off(earlier.min(self.0.len()));
        while self.0.pop_if(|last| last.missing >= left).is_some() {}
        self.0.extend(
            later
                .into_iter()
                .map(|step| Minimum { missing: step.missing.saturating_sub(back), ..step }),
        );
    }
}
