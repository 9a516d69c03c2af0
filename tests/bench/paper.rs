//! The load that a large fleet carries, calculated from what one worker and one Redis were measured to take.

use crate::prose::{grouped, paragraph, significant};
use crate::results::{Round, figure};

const NGINX_NODES: f64 = 1_000.0;
const WORKERS: f64 = 8.0;
const REDIS_NODES: f64 = 100.0;
/// The part of each core that is used: nobody runs one to its end.
const BUSY: f64 = 0.7;
const CLIENTS: f64 = 100_000_000.0;
/// Redis's default, without the few that it keeps for itself.
const MAXCLIENTS: f64 = 10_000.0 - 32.0;
/// The connections of each master.
const CONNECTIONS: f64 = NGINX_NODES * WORKERS;

/// The measured figures. Times are the CPU of a request or a decision, in µs.
struct Costs {
    /// NGINX's own.
    own: f64,
    /// The module's, under load.
    added: f64,
    /// The module's, where requests come one by one.
    quiet: f64,
    /// Redis's, in long pipelines.
    piped: f64,
    /// Redis's, where commands come alone.
    alone: f64,
    bytes_per_key: f64,
    bytes_per_command: usize,
}

impl Costs {
    /// Decisions a second of a master.
    fn master(&self) -> f64 {
        BUSY * 1e6 / self.alone
    }

    /// Decisions a second of all masters.
    fn masters(&self) -> f64 {
        self.master() * REDIS_NODES
    }

    /// Requests a second of a node of NGINX.
    fn node(&self) -> f64 {
        BUSY * 1e6 / (self.own + self.added) * WORKERS
    }
}

/// The calculation in Markdown.
pub fn calculate(
    [distinct, latency, redis]: [&Round; 3],
    bytes_per_key: f64,
    command: &[String],
) -> String {
    let added = |round| figure(round, "module", "nginx_us") - figure(round, "none", "nginx_us");
    let costs = Costs {
        own: figure(distinct, "none", "nginx_us"),
        added: added(distinct),
        quiet: added(latency),
        piped: figure(redis, "token_bucket", "redis_us"),
        alone: figure(redis, "token_bucket alone", "redis_us"),
        bytes_per_key,
        bytes_per_command: length(command),
    };
    let points = [decisions(&costs), bounds(&costs)].concat();
    let item = |(i, point)| paragraph(&format!("{i}. {point}"), "   ");
    let items = (1..).zip(points).map(item).collect::<Vec<_>>().join("\n");
    [taken(&costs), items, advice(&costs)].join("\n\n")
}

/// The bytes of a command, as Redis reads it.
fn length(command: &[String]) -> usize {
    let words = command.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
    format!("*{}\r\n", command.len()).len() + words.map(|word| word.len()).sum::<usize>()
}

fn taken(Costs { own, added, quiet, piped, alone, .. }: &Costs) -> String {
    let text = format!(
        "Taken: {} NGINX nodes of {WORKERS} workers, {REDIS_NODES} Redis masters in one Cluster, one `token_bucket` \
         per request, keys spread evenly, each core busy for at most {:.0} %. Measured on the machine above: NGINX \
         itself {own:.2} µs a request; the module {added:.2} µs more, or {quiet:.2} µs where requests come one by one; \
         Redis {piped:.2} µs a decision where commands come in long pipelines, and {alone:.2} µs where each comes \
         alone, from one of 64 connections.",
        grouped(NGINX_NODES),
        BUSY * 100.0,
    );
    paragraph(&text, "")
}

/// The decisions of the fleet, and what bounds them.
fn decisions(costs: &Costs) -> [String; 4] {
    let (master, masters, node) = (costs.master(), costs.masters(), costs.node());
    let (alone, nodes, share) = (costs.alone, node * NGINX_NODES, masters / NGINX_NODES);
    let (first, spare) =
        if masters < nodes { ("Redis's", nodes / masters) } else { ("NGINX's", masters / nodes) };
    let busy = BUSY * 100.0;
    [
        format!(
            "**How commands arrive.** Every worker has one connection to every master: {} at each master, and {} in \
             all. When the masters are as busy as they may be, one connection carries a command every {} ms, so that \
             commands come alone.",
            grouped(CONNECTIONS),
            grouped(CONNECTIONS * REDIS_NODES),
            whole(CONNECTIONS / master * 1000.0),
        ),
        format!(
            "**Redis** then decides {busy:.0} % / {alone:.2} µs = {} times a second at each master, **{:.1} million a \
             second** in all. In long pipelines it would be {:.1} million.",
            whole(master),
            masters / 1e6,
            BUSY * REDIS_NODES / costs.piped,
        ),
        format!(
            "**NGINX.** Of these, {} a second are for each node. Spread over {WORKERS} workers they come one every {} \
             ms, so that the module takes {:.1} % of one core for them. The node's cores could serve {} cheap requests \
             a second, and all nodes {} million.",
            whole(share),
            significant(WORKERS / share * 1000.0, 2),
            share * costs.quiet / 1e4,
            whole(node),
            whole(nodes / 1e6),
        ),
        format!(
            "**The first bottleneck is {first} CPU:** the other side could do {} times as much.",
            grouped(format_args!("{spare:.1}")),
        ),
    ]
}

/// Other things that have a bound.
fn bounds(costs: &Costs) -> [String; 4] {
    let (master, bytes, sent) = (costs.master(), costs.bytes_per_key, costs.bytes_per_command);
    let fits = if CONNECTIONS <= MAXCLIENTS {
        "which it accepts by default"
    } else {
        "which is more than it accepts by default"
    };
    [
        format!(
            "**Connections.** Each master has {}, {fits} ({}); {} workers a node or more are too many for that.",
            grouped(CONNECTIONS),
            grouped(MAXCLIENTS),
            (MAXCLIENTS / NGINX_NODES).floor() + 1.0,
        ),
        format!(
            "**Memory.** {} clients at {bytes:.0} bytes are {:.1} GB, {} MB at each master.",
            grouped(CLIENTS),
            CLIENTS * bytes / 1e9,
            whole(CLIENTS / REDIS_NODES * bytes / 1e6),
        ),
        format!(
            "**Network.** A command is {sent} bytes, to which each packet adds some 70: to each master {} Mbit/s.",
            whole(master * (sent as f64 + 70.0) * 8.0 / 1e6),
        ),
        format!(
            "**One hot key** lives on one master, which answers {} commands a second, however many masters there are. \
             Coalescing lowers their number only for requests that meet in one worker. While the key is rejected, each \
             machine sends a command about it once a second: that is {} commands, {:.1} % of what the master may do.",
            whole(master),
            grouped(NGINX_NODES),
            NGINX_NODES / master * 100.0,
        ),
    ]
}

fn advice(costs: &Costs) -> String {
    let text = format!(
        "What to configure: `maxclients` above {} at each Redis, with as many file descriptors; `connections 1`; \
         Redis's `io-threads`, as reading and writing are in the {:.2} µs that a command costs more when it comes \
         alone; no more workers than a node's other work needs, as each is a connection at each master; and, for a \
         limit that all share, several keys with a part of the rate each.",
        whole(CONNECTIONS * 1.25),
        costs.alone - costs.piped,
    );
    paragraph(&text, "")
}

fn whole(number: f64) -> String {
    grouped(format_args!("{number:.0}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_as_long_as_redis_reads_it() {
        let command = ["GET", "µ"].map(str::to_owned);
        assert_eq!(length(&command), "*2\r\n$3\r\nGET\r\n$2\r\nµ\r\n".len());
    }
}
