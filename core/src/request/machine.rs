//! The machine that decides a request: the memory that its workers share, and the client of its store.

use super::evaluated::{ConfiguredLimit, Evaluated};
use crate::charge::Charge;
use crate::client::{Answer, Error};
use crate::decision::{Source, Status, Verdict};
use crate::deny_cache::Denial;
use crate::lease::table::{Outcome, Taken};
use crate::lease::{Granted, Holding};
use crate::metrics::SettlementResult;
use crate::overrides::Override;
use crate::table::Table;

/// A machine: its clock, and what its workers share. Times are in µs of its monotonic clock.
pub trait Machine {
    /// A line of the configuration.
    type Limit: ConfiguredLimit;
    /// A request at the client of its store.
    type Submission: Submission;

    /// The time.
    fn now(&self) -> u64;

    /// A number that is uniformly distributed.
    fn random(&self) -> u32;

    // The deny cache.

    /// The verdict on a request, if the deny cache holds that it is rejected at `now`.
    fn denied(&self, limit: &Evaluated<'_, Self::Limit>, now: u64) -> Option<Verdict>;

    /// Caches a denial of the client, in place of any other.
    fn deny(&self, limit: &Evaluated<'_, Self::Limit>, denial: Denial);

    /// Ends denials of the client for other quotas than that of the request.
    fn end_denials_of_others(&self, limit: &Evaluated<'_, Self::Limit>, now: u64);

    /// Ends all denials of the client.
    fn end_denials_of(&self, limit: &Evaluated<'_, Self::Limit>);

    // The leases.

    /// Spends for a request, if each of its limits has a lease with enough units left: then `act` gets, for
    /// each limit, its number and its verdict.
    fn spend(
        &self,
        limits: &[Evaluated<'_, Self::Limit>],
        now: u64,
        act: &mut impl FnMut(usize, Verdict),
    ) -> bool;

    /// The record of what Redis has set aside of a limit for this machine.
    fn holding(&self, limit: &Evaluated<'_, Self::Limit>) -> Option<Holding>;

    /// Whether a command in flight gives units of a limit back, or may bring some.
    fn awaits_units(&self, limit: &Evaluated<'_, Self::Limit>, now: u64) -> bool;

    /// Takes out the lease of a limit, which a command is to renew until then.
    fn take_lease(&self, limit: &Evaluated<'_, Self::Limit>, now: u64, until: u64) -> Taken;

    /// Takes note of what came of the command that was to renew the lease of a limit, which was `taken` out.
    fn renew_lease(&self, limit: &Evaluated<'_, Self::Limit>, taken: Taken, outcome: &Outcome);

    // The states of clients that are decided locally.

    /// Whether any local charge of a limit may not be regained yet at `now`.
    fn has_charges(&self, limit: &Evaluated<'_, Self::Limit>, now: u64) -> bool;

    /// Takes note that all that was spent locally of a limit by a client is regained in `reset` µs; 0: nothing
    /// was spent.
    fn note_charges(&self, limit: &Evaluated<'_, Self::Limit>, reset: u64);

    /// Runs `act` with the table of these states, which no other worker uses meanwhile, and with the Unix time in µs.
    fn with_local_table<T>(&self, act: impl FnOnce(&mut Table<'_>, u64) -> T) -> T;

    /// Counts a request whose new states do not fit into the table.
    fn count_no_room(&self);

    // The changes to clients, as far as this machine knows them.

    /// Takes note of the override of the client of `limit`, or that it has none, by a reply of this time of Redis's clock.
    fn note_override(
        &self,
        limit: &Evaluated<'_, Self::Limit>,
        own: Option<Override>,
        redis_now: u64,
    );

    /// Takes note that the client of `limit` is blocked for `span` µs from now; 0: it is not.
    fn note_block(&self, limit: &Evaluated<'_, Self::Limit>, span: u64);

    /// For how long the client of `limit` is blocked, in µs; 0: it is not.
    fn blocked_for(&self, limit: &Evaluated<'_, Self::Limit>) -> u64;

    // The counters.

    /// Counts a request, and how long it waited, in µs.
    fn count_wait(&self, wait: u64);

    /// Counts a request for a limit: where its verdict comes from, if it has one, and what became of the
    /// request, if the limit had a part in that.
    fn count(&self, limit: &Self::Limit, source: Option<Source>, status: Option<Status>);

    // The reservations.

    /// Counts a reservation that is to be settled.
    fn add_reservation(&self, limit: &Self::Limit);

    /// A reservation has ended with this result; without one it stands as it was charged.
    fn end_reservation(&self, limit: &Self::Limit, result: Option<SettlementResult>);

    /// Has Redis settle what a submission was charged by a limit, which ends the reservation: it has cost `change` units
    /// more; below zero, so many less. They can have been regained since `since`, in µs of Redis's clock.
    fn settle(
        &self,
        limit: &Evaluated<'_, Self::Limit>,
        submission: Self::Submission,
        since: u64,
        change: i64,
    );
}

/// A request at the client of its store: see [`Client`](crate::client::Client).
pub trait Submission: Copy {
    /// The outcome, once there is one: then `take` is run with the answer to each charge, as far as they have come.
    fn take_outcome(&self, take: impl FnOnce(&[Answer])) -> Option<Result<(), Error>>;

    /// Runs `act` with the answer to each charge, as far as they have come.
    fn with_answers(&self, act: impl FnOnce(&[Answer]));

    /// The lease that a reply has brought for a charge.
    fn granted(&self, charge: usize) -> Granted;

    /// The quota of its own by which the client of a charge was charged.
    fn own(&self, charge: usize) -> Option<Override>;

    /// The verdict on a charge if it is given back.
    fn unspent(&self, charge: usize) -> Option<Verdict>;

    /// A charge is a reservation, which is to be settled when the request has ended.
    fn reserve(&self);

    /// A reservation stands as it was charged.
    fn stand(&self);

    /// Ends it. With `refund` what is still charged is given back. If Redis has decided it, `wait` is how long
    /// that took, in µs.
    fn release(&self, refund: bool, wait: Option<u64>);

    /// Gives back what was charged at `since`, by Redis's clock.
    fn refund(&self, charge: &Charge<'_>, since: u64);
}
