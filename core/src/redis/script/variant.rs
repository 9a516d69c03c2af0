//! An algorithm in a script: as it is, or with what it takes to correct its charges.

use crate::algorithm::Minima;
use crate::limit::{Algorithm, Quota};

/// An algorithm as a script counts with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    algorithm: Algorithm,
    is_settled: bool,
    has_override: bool,
}

impl Variant {
    /// Every variant without overrides.
    pub(super) fn plain() -> impl Iterator<Item = Self> + Clone {
        let settled = Algorithm::ALL.into_iter().filter(|algorithm| algorithm.keeps_minima());
        let settled = settled.map(|algorithm| Self::new(algorithm, true));
        Algorithm::ALL.into_iter().map(Self::from).chain(settled)
    }

    /// Every variant.
    pub(super) fn all() -> impl Iterator<Item = Self> + Clone {
        Self::plain().chain(Self::plain().map(Self::with_override))
    }

    /// The variant of this algorithm for limits that are settled, if it has one, or else the other one.
    pub fn new(algorithm: Algorithm, is_settled: bool) -> Self {
        Self { is_settled: is_settled && algorithm.keeps_minima(), ..Self::from(algorithm) }
    }

    /// The variant where clients may have quotas of their own.
    pub fn with_override(self) -> Self {
        Self { has_override: true, ..self }
    }

    /// Whether clients may have quotas of their own: see [`overrides`](crate::overrides).
    pub fn has_override(self) -> bool {
        self.has_override
    }

    /// The algorithm.
    pub fn algorithm(self) -> Algorithm {
        self.algorithm
    }

    /// Whether charges are corrected with what was [missing](Minima) since.
    pub fn is_settled(self) -> bool {
        self.is_settled
    }

    /// The name of the Lua function, which two algorithms may share, in parts: so it is never allocated.
    pub(super) fn function(self) -> [&'static str; 2] {
        [self.algorithm.function(), if self.is_settled { "_settled" } else { "" }]
    }

    /// The name by which a command with several limits calls it, in parts.
    pub(super) fn called(self) -> [&'static str; 3] {
        let [algorithm, settled] = self.function();
        [algorithm, settled, if self.has_override { "_override" } else { "" }]
    }

    /// The Lua source that decides; its algorithm is still to be filled in.
    pub(super) fn decide(self) -> String {
        let decide = include_str!("decide.lua");
        let sources = self.algorithm.settled_sources().filter(|_| self.is_settled);
        let Some([correct, missing]) = sources else { return decide.to_owned() };
        let decide = decide.replace("$algorithm\n", "$algorithm\nis_moved = changed\n");
        include_str!("settled.lua")
            .replace("$decide\n", &decide)
            .replace("$correct\n", &correct)
            .replace("$missing\n", &missing)
            .replace("$parts", &Minima::PARTS.to_string())
            .replace("$longest_steps", &(2 * Minima::MOST * size_of::<u64>()).to_string())
    }
}

impl From<Algorithm> for Variant {
    fn from(algorithm: Algorithm) -> Self {
        Self { algorithm, is_settled: false, has_override: false }
    }
}

impl From<&Quota> for Variant {
    fn from(quota: &Quota) -> Self {
        Self {
            algorithm: quota.algorithm(),
            is_settled: quota.is_settled(),
            has_override: quota.has_override(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Scripts;
    use super::*;
    use crate::algorithm::Regain;

    /// Nothing of what settled limits keep is in the scripts of other limits.
    #[test]
    fn other_limits_do_without() {
        let scripts = Scripts::new();
        for variant in Variant::all() {
            let source = scripts.single(variant).unwrap().source();
            assert_eq!(source.contains("is_moved"), variant.is_settled(), "{variant:?}");
            assert!(!source.contains("$has") && !source.contains("$longest"), "{variant:?}");
        }
        assert!(!scripts.several().source().contains("is_moved"));
        assert!(scripts.several_settled().source().contains("is_moved"));
        let list = |variants: &[Variant]| {
            Scripts::new()
                .with_lists([variants])
                .loaded()
                .last()
                .unwrap()
                .source()
                .contains("is_moved")
        };
        let [gcra, bucket] = [Algorithm::Gcra, Algorithm::TokenBucket].map(Variant::from);
        assert!(!list(&[gcra, bucket]));
        assert!(list(&[gcra, Variant::new(Algorithm::TokenBucket, true)]));
    }

    #[test]
    fn windows_need_nothing() {
        for algorithm in Algorithm::ALL {
            let is_window = algorithm.regain() == Regain::AtOnce;
            assert_eq!(Variant::new(algorithm, true).is_settled(), !is_window, "{algorithm:?}");
        }
    }
}
