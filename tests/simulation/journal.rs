//! The acts of the servers, for the invariants to be checked against.

use crate::database::Key;
use crate::network::ConnectionId;
use crate::script::Charge;
use crate::server::ServerId;

/// Everything that happened since it was last read.
#[derive(Debug, Default)]
pub struct Journal {
    pub executions: Vec<Execution>,
    pub losses: Vec<Loss>,
}

/// A script command that was executed.
#[derive(Debug)]
pub struct Execution {
    /// The time of the simulation in µs.
    pub at: u64,
    pub server: ServerId,
    pub connection: ConnectionId,
    /// The number of the database.
    pub database: usize,
    pub charges: Vec<Charge>,
    /// How many bytes the server has sent on the connection with the last one of the reply. The
    /// reply has arrived if so many have been delivered.
    pub reply_ends: u64,
}

/// Keys whose latest states a server has lost.
#[derive(Debug)]
pub struct Loss {
    /// The time of the simulation in µs.
    pub at: u64,
    pub server: ServerId,
    pub cause: Cause,
    pub keys: Vec<Key>,
}

/// Why states were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The server restarted with an empty database.
    Restart,
    /// The server became a master before the last writes had reached it.
    Promotion,
    /// The server served as a master beside another one, whose states it has now.
    Demotion,
}
