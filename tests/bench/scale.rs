//! How the module's cost grows with what surrounds it. Each scale has points; each point is set up, and then measured a
//! few times.

use std::time::Duration;

use harness::stop::Stop;
use harness::{ClusterConf, Conf, Mode, Nginx, Proxy, Redis};

use crate::case::Bench;
use crate::load::{Draw, Load};
use crate::machine;
use crate::results::{Record, Settings};
use crate::servers::{Servers, start_deciding};

/// The bytes that each key in Redis takes at most, to see whether they will fit.
const BYTES_PER_KEY: u64 = 150;

/// How long a command is under way to a Redis that is far away, and its reply again: together the 100 ms of the title.
const ONE_WAY: Duration = Duration::from_millis(50);

/// The key whose state is copied to all others.
const MODEL: &str = "model";

/// Sets so many keys to the state of the first one.
const FILL: &str = "
local value, ttl = redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1])
for i = ARGV[2], ARGV[3] do
    redis.call('SET', ARGV[1] .. string.format('%d', i), value, 'PX', ttl)
end
";

/// A thing that grows, and how its cost is measured at a point.
pub struct Scale {
    /// Its name among the options, and in the results.
    pub name: &'static str,
    pub title: &'static str,
    /// Whether a picture of it has a logarithmic axis.
    pub logarithmic: bool,
    points: &'static [u64],
    /// The points of a quick run.
    quick: &'static [u64],
    measure: fn(&Bench, u64) -> Result<Vec<Record>, Stop>,
    /// The time that setting a point up takes, in s, and how much more each unit of it takes.
    overhead: f64,
    each: f64,
}

pub const SCALES: [Scale; 5] = [
    Scale {
        name: "keys",
        title: "keys in Redis",
        logarithmic: true,
        points: &[1, 10, 100, 1000, 10_000, 100_000, 1_000_000, 10_000_000],
        quick: &[1, 1_000_000],
        measure: keys_in_redis,
        overhead: 1.0,
        each: 4e-6,
    },
    Scale {
        name: "limits",
        title: "limits per request",
        logarithmic: false,
        points: &[1, 2, 3, 4, 6, 8],
        quick: &[1, 8],
        measure: limits_per_request,
        overhead: 0.3,
        each: 0.0,
    },
    Scale {
        name: "workers",
        title: "workers",
        logarithmic: false,
        points: &[1, 2, 3, 4],
        quick: &[1, 4],
        measure: workers,
        overhead: 0.3,
        each: 0.0,
    },
    Scale {
        name: "waiting",
        title: "requests waiting for a Redis 100 ms away",
        logarithmic: true,
        points: &[10, 100, 1000, 10_000],
        quick: &[100, 1000],
        measure: waiting_requests,
        overhead: 1.0,
        each: 0.0,
    },
    Scale {
        name: "cluster",
        title: "nodes of a Cluster",
        logarithmic: false,
        points: &[1, 2, 3, 4, 5, 6],
        quick: &[3],
        measure: cluster_nodes,
        overhead: 4.0,
        each: 0.0,
    },
];

impl Scale {
    /// The scale of this name, if there is one.
    pub fn find(name: &str) -> Option<&'static Self> {
        SCALES.iter().find(|scale| scale.name == name)
    }

    fn points(&self, settings: &Settings) -> impl Iterator<Item = u64> {
        let points = if settings.quick { self.quick } else { self.points };
        points.iter().copied().filter(|point| self.fits(*point, settings))
    }

    fn fits(&self, point: u64, settings: &Settings) -> bool {
        match self.name {
            "keys" => {
                let bytes = point * BYTES_PER_KEY;
                point <= settings.most_keys && bytes < machine::available_memory()
            }
            "waiting" => point <= settings.most_waiting,
            _ => true,
        }
    }

    /// About how long all points take, in s.
    pub fn seconds(&self, settings: &Settings) -> f64 {
        self.points(settings).map(|point| self.seconds_at(point, settings)).sum()
    }

    fn seconds_at(&self, point: u64, settings: &Settings) -> f64 {
        let measured = settings.rounds as u64 * settings.seconds;
        self.overhead + self.each * point as f64 + measured as f64
    }

    /// Measures every point.
    pub fn run(&self, bench: &mut Bench) -> Result<Vec<(u64, Vec<Record>)>, Stop> {
        let mut results = Vec::new();
        for point in self.points(bench.settings).collect::<Vec<_>>() {
            let what = format!("{}: {}, {point}", self.name, self.title);
            bench.progress.step(&what, self.seconds_at(point, bench.settings));
            results.push((point, (self.measure)(bench, point)?));
        }
        Ok(results)
    }
}

/// Requests for keys at random, by as many connections as the caller has chosen.
fn load<'a>(bench: &'a Bench) -> Load<'a> {
    let Settings { connections, seconds, .. } = *bench.settings;
    let cores = &bench.servers.pinning.load;
    let (path, keys, draw, rate, seed) = ("/free", 100_000, Draw::Even, None, 0);
    Load { path, keys, draw, rate, connections, seconds, seed, cores }
}

/// Measures a load as often as the caller has chosen.
fn rounds(
    bench: &Bench,
    load: Load,
    nginx: &Nginx,
    stores: &[&Redis],
) -> Result<Vec<Record>, Stop> {
    (0..bench.settings.rounds).map(|seed| Load { seed, ..load }.run(nginx, stores)).collect()
}

/// Measures an nginx that there is for this point alone.
fn measure_one(
    bench: &Bench,
    load: Load,
    conf: Conf,
    stores: &[&Redis],
) -> Result<Vec<Record>, Stop> {
    let nginx = start_deciding(&conf.http(&bench.settings.directives))?;
    rounds(bench, load, &nginx, stores)
}

/// Random ones of so many keys that Redis holds already. Their state is one with 1000 spent, so that they stay.
fn keys_in_redis(bench: &Bench, number: u64) -> Result<Vec<Record>, Stop> {
    let redis = &bench.fleet.redis;
    redis.command::<()>(&["FLUSHALL"]);
    let command = bench.fleet.command("free").for_key(MODEL);
    let words: Vec<_> = command.iter().map(String::as_str).collect();
    for _ in 0..1000 {
        redis.command::<Vec<u8>>(&words);
    }
    let bytes_per_key = fill(redis, words[3], number)?;
    let load = Load { keys: number, ..load(bench) };
    let mut records = rounds(bench, load, bench.fleet.nginx("module"), &[redis])?;
    if let Some(bytes) = bytes_per_key {
        records.iter_mut().for_each(|record| record.extend([("bytes_per_key", bytes)]));
    }
    redis.command::<()>(&["FLUSHALL"]);
    Ok(records)
}

/// Gives so many keys the state of the model, and returns the bytes that each of them takes. With few keys that is what
/// Redis takes and gives back for itself.
fn fill(redis: &Redis, model: &str, number: u64) -> Result<Option<f64>, Stop> {
    let prefix = model.strip_suffix(MODEL).expect("a client's key at the end");
    let put = |first: u64, last: u64| {
        let [first, last] = [first, last].map(|n| n.to_string());
        redis.command::<()>(&["EVAL", FILL, "1", model, prefix, &first, &last]);
    };
    let used = || redis.info("used_memory").parse::<f64>().expect("a number of bytes");
    // Nothing, so that the script is there when the memory is looked at.
    put(1, 0);
    let empty = used();
    for first in (1..=number).step_by(100_000) {
        harness::stop::check()?;
        put(first, number.min(first + 99_999));
    }
    let bytes = (used() - empty) / number as f64;
    // Redis moves its keys to a larger table bit by bit, for minutes: this does it at once.
    redis.command::<()>(&["CONFIG", "SET", "hz", "500"]);
    machine::wait_until_idle(redis.pid(), 0.05)?;
    redis.command::<()>(&["CONFIG", "SET", "hz", "10"]);
    Ok((number >= 1000).then_some(bytes))
}

fn limits_per_request(bench: &Bench, number: u64) -> Result<Vec<Record>, Stop> {
    let line = |n| format!("rate_limit_redis $arg_k name=n{n} rate=120r/h capacity=100000000;\n");
    let lines: String = (0..number).map(line).collect();
    let redis = &bench.fleet.redis;
    let conf = bench.servers.module_on(redis);
    let conf = conf.server(&format!("location /limits {{ {lines} empty_gif; }}"));
    measure_one(bench, Load { path: "/limits", ..load(bench) }, conf, &[redis])
}

/// So many workers. Nobody but Redis is bound to a core.
fn workers(bench: &Bench, number: u64) -> Result<Vec<Record>, Stop> {
    let (redis, cores) = (&bench.fleet.redis, &bench.servers.pinning.all);
    let conf = bench.servers.module_on(redis).workers(number as usize);
    let conf = conf.wrapper(machine::on(cores));
    measure_one(bench, Load { cores, ..load(bench) }, conf, &[redis])
}

/// So many connections, all of which wait for a Redis that is far away.
fn waiting_requests(bench: &Bench, number: u64) -> Result<Vec<Record>, Stop> {
    let redis = &bench.fleet.redis;
    let proxy = Proxy::to(redis);
    proxy.set(Mode::Far(ONE_WAY));
    let conf = bench.servers.module(&format!("rate_limit_redis_pass {};", proxy.url()));
    let connections = number.min(Servers::most_connections()) as usize;
    measure_one(bench, Load { connections, ..load(bench) }, conf, &[redis])
}

/// Masters that share the slots evenly.
fn cluster_nodes(bench: &Bench, number: u64) -> Result<Vec<Record>, Stop> {
    let cores = &bench.servers.pinning.redis;
    let cluster = ClusterConf::steady(number as usize, 0);
    let nodes =
        cluster.wrapper(&machine::on(cores)).line("maxclients 20000").start().into_servers();
    let servers: String = nodes.iter().map(|node| format!("server {}; ", node.url())).collect();
    let store = format!("rate_limit_redis_store cluster {{ {servers} cluster on; }}");
    let conf = bench.servers.module(&(store + " rate_limit_redis_pass cluster;"));
    measure_one(bench, load(bench), conf, &nodes.iter().collect::<Vec<_>>())
}
