//! The goals: numbers that shall be at most or at least others.

use std::fmt;

use crate::results::{Round, figure, record};
use Bound::{AtLeast, AtMost};

/// The values that a number shall have.
pub enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Bound {
    pub fn is_met(&self, figure: f64) -> bool {
        match self {
            AtMost(most) => figure <= *most,
            AtLeast(least) => figure >= *least,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AtMost(most) => write!(f, "at most {most}"),
            AtLeast(least) => write!(f, "at least {least}"),
        }
    }
}

/// A number, and what it shall be.
pub struct Goal {
    /// The case whose rounds have it.
    pub case: &'static str,
    pub title: &'static str,
    pub bound: Bound,
    /// The number in a round, or in the medians of all.
    pub figure: fn(&Round) -> f64,
}

/// One figure of a variant over that of another.
fn ratio(round: &Round, field: &str, variant: &str, other: &str) -> f64 {
    figure(round, variant, field) / figure(round, other, field)
}

/// How much more one figure of a variant is than that of another.
fn difference(round: &Round, field: &str, variant: &str, other: &str) -> f64 {
    figure(round, variant, field) - figure(round, other, field)
}

fn added_latency(round: &Round) -> f64 {
    let added = difference(round, "p50_us", "module", "none");
    added / figure(round, "redis-benchmark", "p50_us")
}

/// The most allocations that the module adds, whatever the load.
fn added_allocations(round: &Round) -> f64 {
    let loads = record(round, "module").keys();
    loads.map(|load| difference(round, load, "module", "none")).fold(f64::MIN, f64::max)
}

pub static GOALS: [Goal; 14] = [
    Goal {
        case: "distinct",
        title: "distinct keys: CPU of the worker per request, over `limit_req`",
        bound: AtMost(1.15),
        figure: |round| ratio(round, "nginx_us", "module", "limit_req"),
    },
    Goal {
        case: "distinct",
        title: "distinct keys: throughput, over Lua",
        bound: AtLeast(3.0),
        figure: |round| ratio(round, "rps", "module", "lua"),
    },
    Goal {
        case: "hot",
        title: "one hot key: throughput, over `limit_req`",
        bound: AtLeast(0.8),
        figure: |round| ratio(round, "rps", "module", "limit_req"),
    },
    Goal {
        case: "hot",
        title: "one hot key: commands to Redis per request",
        bound: AtMost(0.1),
        figure: |round| figure(round, "module", "scripts_per_request"),
    },
    Goal {
        case: "flood",
        title: "rejected flood: throughput, over `limit_req`",
        bound: AtLeast(0.98),
        figure: |round| ratio(round, "rps", "module", "limit_req"),
    },
    Goal {
        case: "flood",
        title: "rejected flood: throughput, over `limit_req` with four constant fields",
        bound: AtLeast(0.98),
        figure: |round| ratio(round, "rps", "module", "fields"),
    },
    Goal {
        case: "clients",
        title: "1,000 clients with leases: commands to Redis per request",
        bound: AtMost(0.15),
        figure: |round| figure(round, "lease", "scripts_per_request"),
    },
    Goal {
        case: "clients",
        title: "1,000 clients with leases: CPU of the worker per request beyond `limit_req`, µs",
        bound: AtMost(0.4),
        figure: |round| difference(round, "nginx_us", "lease", "limit_req"),
    },
    Goal {
        case: "zipf",
        title: "Zipf with leases: throughput, over the module without",
        bound: AtLeast(1.0),
        figure: |round| ratio(round, "rps", "lease", "module"),
    },
    Goal {
        case: "latency",
        title: "one connection: median latency added, over a round trip to Redis",
        bound: AtMost(1.2),
        figure: added_latency,
    },
    Goal {
        case: "redis",
        title: "CPU of Redis per decision, `token_bucket`, over TIME, GET and SET",
        bound: AtMost(1.3),
        figure: |round| ratio(round, "redis_us", "token_bucket", "baseline"),
    },
    Goal {
        case: "redis",
        title: "CPU of Redis per decision, `gcra`, over TIME, GET and SET",
        bound: AtMost(1.3),
        figure: |round| ratio(round, "redis_us", "gcra", "baseline"),
    },
    Goal {
        case: "memory",
        title: "memory per waiting request beyond NGINX's own, bytes",
        bound: AtMost(512.0),
        figure: |round| difference(round, "bytes", "module", "limit_req"),
    },
    Goal {
        case: "heap",
        title: "heap allocations per request beyond NGINX's own",
        bound: AtMost(0.0),
        figure: added_allocations,
    },
];
