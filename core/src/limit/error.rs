//! Why a quota is refused.

/// The longest log, in entries: see `sliding_log.rs` for what it costs.
pub const MAX_LOG: u64 = 100_000;

/// Why a rate and a limit make no quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuotaError {
    /// A limit of nothing.
    #[error("must be at least 1")]
    Zero,
    /// An empty quota would take over a hundred years to become whole.
    #[error("would take more than a hundred years to refill at this rate")]
    TooSlow,
    /// The numbers would leave the range in which Redis counts exactly.
    #[error("is too large to be counted exactly at this rate")]
    TooLarge,
    /// The algorithm cannot count months of the calendar.
    #[error("is by the month of the calendar, which is for algorithm=fixed_window only")]
    Monthly,
    /// The largest debt would take over a hundred years to regain.
    #[error("would take more than a hundred years to regain a debt of ten times as much")]
    DebtTooSlow,
    /// With debts, the numbers would leave the range in which Redis counts exactly.
    #[error("is too large for a debt of ten times as much to be counted exactly")]
    DebtTooLarge,
    /// A log of so many entries would take too long to keep.
    #[error("is more than the {MAX_LOG} entries that a sliding_log may have")]
    TooLong,
}
