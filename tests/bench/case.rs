//! The cases behind the goals: what is measured, for each variant in turn, once a round.

use harness::stop::Stop;

use crate::fleet::Fleet;
use crate::load::{Commands, Draw, Load};
use crate::progress::Progress;
use crate::results::{Record, Round, Settings};
use crate::servers::Servers;
use crate::{heap, waiting};

pub const DISTINCT_KEYS: u64 = 100_000;

/// The keys of a flood, which have spent all.
pub const KNOWN_KEYS: u64 = 1_000;

pub const CLIENTS: u64 = 1_000;

/// The requests a second of each client: half of what its limit allows.
pub const CLIENT_RATE: u64 = 20;

/// The script that those of the module are compared with.
pub const BASELINE: &str = include_str!("baseline.lua");

/// The servers and settings that a case needs.
pub struct Bench<'a> {
    pub servers: &'a Servers,
    pub settings: &'a Settings,
    pub progress: &'a mut Progress,
    pub fleet: Fleet,
}

/// Measures some variants, one after the other.
pub struct Case {
    /// Its name among the options, and in the results.
    pub name: &'static str,
    pub title: &'static str,
    pub variants: &'static [&'static str],
    work: Work,
}

/// The work that is measured.
enum Work {
    /// Requests by wrk.
    Requests(Requests),
    /// Requests over one connection; and, for Redis alone, the same command from nginx's core.
    Latency,
    /// Scripts that Redis executes.
    Scripts,
    /// Requests that wait, and their memory.
    Waiting,
    /// Requests whose allocations are counted.
    Heap,
}

/// Requests by wrk.
struct Requests {
    path: &'static str,
    keys: u64,
    draw: Draw,
    rate: Option<u64>,
    /// Whether each key has spent all before.
    spent: bool,
}

/// Requests for one path with these many keys, as fast as they go.
const fn requests(path: &'static str, keys: u64) -> Requests {
    Requests { path, keys, draw: Draw::Even, rate: None, spent: false }
}

/// The variants that most cases compare.
const VARIANTS: &[&str] = &["none", "limit_req", "lua", "module"];
const WITH_LEASES: &[&str] = &["none", "limit_req", "lua", "module", "lease"];

pub const CASES: [Case; 10] = [
    Case {
        name: "distinct",
        title: "distinct keys",
        variants: VARIANTS,
        work: Work::Requests(requests("/free", DISTINCT_KEYS)),
    },
    Case {
        name: "hot",
        title: "one hot key",
        variants: VARIANTS,
        work: Work::Requests(requests("/free", 1)),
    },
    Case {
        name: "flood",
        title: "rejected flood",
        variants: &["none", "limit_req", "lua", "module", "fields"],
        work: Work::Requests(Requests { spent: true, ..requests("/flood", KNOWN_KEYS) }),
    },
    Case {
        name: "logged",
        title: "rejected flood, logged",
        variants: &["none", "limit_req", "module"],
        work: Work::Requests(Requests { spent: true, ..requests("/logged", KNOWN_KEYS) }),
    },
    Case {
        name: "clients",
        title: "1,000 clients at 20 requests a second each",
        variants: WITH_LEASES,
        work: Work::Requests(Requests {
            rate: Some(CLIENTS * CLIENT_RATE),
            ..requests("/client", CLIENTS)
        }),
    },
    Case {
        name: "zipf",
        title: "Zipf over 100,000 clients",
        variants: WITH_LEASES,
        work: Work::Requests(Requests { draw: Draw::Zipf, ..requests("/free", DISTINCT_KEYS) }),
    },
    Case {
        name: "latency",
        title: "one connection",
        variants: &["none", "limit_req", "lua", "module", "redis-benchmark"],
        work: Work::Latency,
    },
    Case {
        name: "redis",
        title: "Redis alone",
        variants: &["baseline", "token_bucket", "gcra", "baseline alone", "token_bucket alone"],
        work: Work::Scripts,
    },
    Case {
        name: "memory",
        title: "waiting requests",
        variants: &["limit_req", "module"],
        work: Work::Waiting,
    },
    Case {
        name: "heap",
        title: "heap allocations",
        variants: &["none", "module"],
        work: Work::Heap,
    },
];

impl Case {
    /// The case of this name, if there is one.
    pub fn find(name: &str) -> Option<&'static Self> {
        CASES.iter().find(|case| case.name == name)
    }

    /// About how long a round takes, in s.
    pub fn seconds(&self, settings: &Settings) -> f64 {
        let each = match self.work {
            Work::Requests(_) | Work::Latency | Work::Scripts => 0.3 + settings.seconds as f64,
            Work::Waiting => 4.0,
            Work::Heap => 2.0,
        };
        each * self.variants.len() as f64
    }

    /// Does what is done once before.
    pub fn prepare(&self, bench: &Bench) {
        if let Work::Requests(Requests { spent: true, keys, .. }) = self.work {
            bench.fleet.spend("/flood", keys);
        }
    }

    /// Measures each variant once. Who begins changes from round to round.
    pub fn round(&self, bench: &mut Bench, number: usize) -> Result<Round, Stop> {
        let count = self.variants.len();
        let seconds = self.seconds(bench.settings) / count as f64;
        let mut round = Vec::new();
        for turn in 0..count {
            let variant = self.variants[(number + turn) % count];
            bench
                .progress
                .step(&format!("round {}: {}, {variant}", number + 1, self.name), seconds);
            round.push((variant, self.measure(bench, variant, number)?));
        }
        // In the order of the variants again.
        round.sort_by_key(|(variant, _)| self.variants.iter().position(|known| known == variant));
        Ok(round)
    }

    fn measure(&self, bench: &Bench, variant: &'static str, number: usize) -> Result<Record, Stop> {
        match &self.work {
            Work::Requests(work) => send(bench, variant, work, bench.settings.connections, number),
            Work::Latency => latency(bench, variant, number),
            Work::Scripts => scripts(bench, variant),
            Work::Waiting => waiting::memory(bench.servers, variant, bench.settings.most_waiting),
            Work::Heap => heap::allocations(bench.servers, variant, &bench.settings.directives),
        }
    }
}

/// Requests to one variant.
fn send(
    bench: &Bench,
    variant: &str,
    work: &Requests,
    connections: usize,
    seed: usize,
) -> Result<Record, Stop> {
    let load = Load {
        path: work.path,
        keys: work.keys,
        draw: work.draw,
        rate: work.rate,
        connections,
        seconds: bench.settings.seconds,
        seed,
        cores: &bench.servers.pinning.load,
    };
    let asks_redis = ["lua", "module", "lease"].contains(&variant);
    let stores = if asks_redis { &[&bench.fleet.redis][..] } else { &[] };
    load.run(bench.fleet.nginx(variant), stores)
}

fn latency(bench: &Bench, variant: &str, number: usize) -> Result<Record, Stop> {
    if variant != "redis-benchmark" {
        return send(bench, variant, &requests("/free", 1), 1, number);
    }
    let commands = Commands {
        words: &bench.fleet.command("free").for_key("1"),
        number: bench.settings.seconds * 15_000,
        clients: 1,
        pipeline: 1,
        keys: 1,
        cores: &bench.servers.pinning.nginx,
    };
    commands.run(&bench.fleet.redis)
}

/// A script, on random keys, pipelined as the module does; or, as `… alone`, one command a packet.
fn scripts(bench: &Bench, variant: &str) -> Result<Record, Stop> {
    let (fleet, seconds) = (&bench.fleet, bench.settings.seconds);
    let words = match variant.trim_end_matches(" alone") {
        "baseline" => {
            let sha: String = fleet.redis.command(&["SCRIPT", "LOAD", BASELINE]);
            let key = "rl:baseline:__rand_int__";
            ["EVALSHA", &sha, "1", key, "1763683200123456", "3600000"].map(str::to_owned).into()
        }
        "token_bucket" => fleet.command("free").for_key("__rand_int__"),
        algorithm => fleet.command(algorithm).for_key("__rand_int__"),
    };
    let (number, clients, pipeline) = match variant.ends_with(" alone") {
        true => (seconds * 40_000, 64, 1),
        false => (seconds * 100_000, 1, 64),
    };
    let cores = &bench.servers.pinning.nginx;
    let (words, keys) = (&words, DISTINCT_KEYS);
    Commands { words, number, clients, pipeline, keys, cores }.run(&fleet.redis)
}
