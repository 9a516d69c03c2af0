//! Who waits for a reply on a connection.

use std::ptr::NonNull;

use once_cell::sync::Lazy;
use rate_limit_core::metrics::Command;
use rate_limit_core::redis::command;
use rate_limit_core::redis::queue::Ticket;
use rate_limit_core::redis::reply::Reply;
use rate_limit_core::redis::script::Scripts;

use super::connection::{Answered, Connection};
use super::node::Node;
use super::part::Part;

/// The scripts of the module.
pub(crate) static SCRIPTS: Lazy<Scripts> = Lazy::new(Scripts::new);

/// The channel on which sentinels tell of new masters.
const CHANNEL: &str = "+switch-master";

/// Who waits for a reply, and so what was asked.
#[derive(Clone, Copy)]
pub(super) enum Waiter {
    /// A request, for what limits say.
    Part(NonNull<Part>),
    /// Nobody: the next question may be asked of a node that does not own its slot yet.
    Asking,
    /// The node, for any answer at all.
    Probe,
    /// The deployment, for who decides; the number tells one time from another.
    Topology(u32),
    /// Nobody: a sentinel is to tell of new masters from now on.
    Subscribe,
    /// Nobody: it is to stop, because it takes no other commands meanwhile.
    Unsubscribe,
}

impl Waiter {
    /// Whether an [`Asking`](Self::Asking) must go right before it.
    pub(super) fn is_asking(self) -> bool {
        matches!(self, Self::Part(part) if Part::get(part).is_asking())
    }

    /// How many wait behind it.
    pub(super) fn others(self) -> usize {
        match self {
            Self::Part(part) => Part::get(part).chain().skip(1).count(),
            _ => 0,
        }
    }

    /// Who has been asked by what was sent, and who came later.
    pub(super) fn split(self) -> (Option<Self>, Option<Self>) {
        let Self::Part(part) = self else { return (Some(self), None) };
        let (asked, later) = Part::get(part).split();
        let waiter = |part: &Part| Self::Part(NonNull::from(part));
        (asked.map(waiter), later.map(waiter))
    }

    /// Appends what is asked of `node` to what is sent.
    pub(super) fn encode(self, node: &Node, out: &mut Vec<u8>) {
        match self {
            Self::Part(part) => Part::get(part).encode(&SCRIPTS, node, out),
            Self::Asking => {
                node.count_command(Command::Asking);
                command::pack(out, &["ASKING"]);
            }
            Self::Probe => {
                node.count_command(Command::Ping);
                command::pack(out, &["PING"]);
            }
            Self::Topology(_) => node.deployment().ask_topology(node, out),
            Self::Subscribe => command::pack(out, &["SUBSCRIBE", CHANNEL]),
            Self::Unsubscribe => command::pack(out, &["UNSUBSCRIBE", CHANNEL]),
        }
    }

    /// `node` has answered.
    pub(super) fn answered(self, reply: Reply<'_>, node: &Node) -> Answered {
        match self {
            Self::Part(part) => return Part::get(part).answered(reply, node),
            Self::Probe => node.probed(),
            Self::Topology(time) => node.deployment().told(time, node, reply),
            Self::Asking | Self::Subscribe | Self::Unsubscribe => {}
        }
        Answered::Done
    }

    /// The question waits in the queue of a connection.
    pub(super) fn waits_at(self, connection: NonNull<Connection>, ticket: Ticket) {
        if let Self::Part(part) = self {
            Part::get(part).waits_at(connection, ticket);
        }
    }

    /// No answer will come from `node`. If the question was sent, it may have run.
    pub(super) fn lost(self, node: &Node, sent: bool) {
        match self {
            Self::Part(part) => Part::get(part).lost(node, sent),
            Self::Probe => node.not_probed(),
            Self::Topology(time) => node.deployment().not_told(time),
            Self::Asking | Self::Subscribe | Self::Unsubscribe => {}
        }
    }
}
