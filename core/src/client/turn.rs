//! The order of a turn of the event loop that drives a client.
//!
//! All sockets are read before the timer, so that no reply that has come counts as late. The turn ends
//! after both, so that what they lead to is sent with what the turn's requests lead to, in one write for
//! each connection.

use super::Client;

/// A driver of a client, as far as the order of a turn needs it.
pub trait Turn {
    /// The client that is driven.
    fn client(&mut self) -> &mut Client;

    /// The monotonic time in µs.
    fn now(&self) -> u64;

    /// Passes all that has happened to any socket to the client.
    fn read_sockets(&mut self);

    /// A whole turn, in an event loop that has nothing else to do in it.
    fn turn(&mut self) {
        self.check_timer();
        let now = self.now();
        self.client().on_turn_end(now);
    }

    /// The first part of a turn: reads the sockets, and has the client do what is due. An event loop that
    /// waits for each socket needs it when the [timer](Client::timer) has expired: a busy worker may not
    /// have read yet what came before.
    fn check_timer(&mut self) {
        self.read_sockets();
        let now = self.now();
        let client = self.client();
        if client.timer().is_some_and(|at| at <= now) {
            client.on_timer(now);
        }
    }
}
