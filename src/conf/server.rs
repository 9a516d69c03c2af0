//! The configuration of a server.

use std::cell::Cell;

/// The configuration of a server.
#[derive(Default)]
pub(crate) struct ServerConf {
    /// Whether any limit decides in the precontent phase.
    pub(crate) has_precontent: Cell<bool>,
}
