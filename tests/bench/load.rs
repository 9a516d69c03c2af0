//! Load, and what it costs those who bear it.

use std::fs::{self, File};
use std::process::Command;
use std::time::{Duration, Instant};

use harness::stop::{self, Stop};
use harness::{Nginx, Process, Redis, cpu_of_children, cpu_of_this, mortal};
use tempfile::NamedTempFile;

use crate::machine::{busy_seconds, cpu_seconds, on};
use crate::results::Record;

/// The script of wrk.
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/wrk.lua");

/// How often it is looked whether a load has ended.
const TURN: Duration = Duration::from_millis(50);

/// How keys are drawn: each as often as any other, or the k-th in proportion to 1 / k.
#[derive(Clone, Copy)]
pub enum Draw {
    Even,
    Zipf,
}

/// Requests for `path?k=KEY`, as fast as they go, or at about so many a second.
#[derive(Clone, Copy)]
pub struct Load<'a> {
    pub path: &'a str,
    pub keys: u64,
    pub draw: Draw,
    /// Requests a second, if they have a rate.
    pub rate: Option<u64>,
    pub connections: usize,
    pub seconds: u64,
    pub seed: usize,
    /// The cores of wrk.
    pub cores: &'a str,
}

impl Load<'_> {
    /// Loads an nginx, and returns what that cost. CPU is in µs for each request that wrk counted.
    pub fn run(&self, nginx: &Nginx, stores: &[&Redis]) -> Result<Record, Stop> {
        let watched = Watched::new(nginx, stores);
        let scripts = || stores.iter().map(|redis| scripts_run(redis)).sum::<u64>();
        let (scripts_before, before) = (scripts(), watched.used());
        let output = run(&self.words(nginx))?;
        let used = watched.used().since(&before);
        let scripts = scripts() - scripts_before;
        let said = output.trim().lines().last().and_then(|line| serde_json::from_str(line).ok());
        let said: serde_json::Value =
            said.ok_or_else(|| Stop::Failure(format!("wrk failed: {output}")))?;
        Ok(record(&|name| said[name].as_f64().expect("a number"), &used, scripts as f64))
    }

    fn words(&self, nginx: &Nginx) -> Vec<String> {
        let gap = self.rate.map_or(0.0, |rate| self.connections as f64 / rate as f64 * 1000.0);
        let draw = match self.draw {
            Draw::Even => "even",
            Draw::Zipf => "zipf",
        };
        let mut words = on(self.cores).map(str::to_owned).to_vec();
        words.extend(["wrk", "-t1", "--timeout", "60s", "--latency", "-s", SCRIPT].map(Into::into));
        words.extend([format!("-c{}", self.connections), format!("-d{}s", self.seconds)]);
        words.extend([nginx.url(""), "--".into(), self.path.into(), self.keys.to_string()]);
        words.extend([self.seed.to_string(), draw.into(), gap.to_string()]);
        words
    }
}

/// The result of wrk and the CPU time of the processes, as numbers by name.
fn record(said: &dyn Fn(&str) -> f64, used: &Used, scripts: f64) -> Record {
    let (requests, seconds) = (said("requests").max(1.0), said("seconds"));
    // The time that wrk took to prepare was for no request.
    let load = used.load - said("preparation");
    let others = used.all - used.nginx - used.redis - used.load - used.own;
    Record::from([
        ("rps", said("requests") / seconds),
        ("requests", said("requests")),
        ("nginx_us", used.nginx / requests * 1e6),
        ("redis_us", used.redis / requests * 1e6),
        ("load_us", load / requests * 1e6),
        ("cores_of_others", others / used.passed),
        ("nginx_cores", used.nginx / seconds),
        ("other_cores", (used.redis + load) / seconds),
        ("p50_us", said("p50")),
        ("p99_us", said("p99")),
        ("mean_us", said("mean")),
        ("refused", said("refused") / requests),
        ("broken", said("broken")),
        ("scripts_per_request", scripts / requests),
    ])
}

/// The processes that bear a load.
struct Watched {
    nginx: Vec<u32>,
    redis: Vec<u32>,
    since: Instant,
}

/// CPU time by those who have used it until a moment, in s.
struct Used {
    nginx: f64,
    redis: f64,
    load: f64,
    /// This process, in which a proxy may run.
    own: f64,
    all: f64,
    passed: f64,
}

impl Watched {
    fn new(nginx: &Nginx, stores: &[&Redis]) -> Self {
        let redis = stores.iter().map(|redis| redis.pid()).collect();
        Self { nginx: nginx.serving_pids(), redis, since: Instant::now() }
    }

    fn used(&self) -> Used {
        Used {
            nginx: cpu_seconds(&self.nginx),
            redis: cpu_seconds(&self.redis),
            load: cpu_of_children().as_secs_f64(),
            own: cpu_of_this().as_secs_f64(),
            all: busy_seconds(),
            passed: self.since.elapsed().as_secs_f64(),
        }
    }
}

impl Used {
    fn since(&self, before: &Self) -> Self {
        Self {
            nginx: self.nginx - before.nginx,
            redis: self.redis - before.redis,
            load: self.load - before.load,
            own: self.own - before.own,
            all: self.all - before.all,
            passed: self.passed - before.passed,
        }
    }
}

/// One command for Redis, in which `__rand_int__` is one of so many keys, sent so often.
pub struct Commands<'a> {
    pub words: &'a [String],
    pub number: u64,
    pub clients: u64,
    pub pipeline: u64,
    pub keys: u64,
    /// The cores of redis-benchmark.
    pub cores: &'a str,
}

impl Commands<'_> {
    /// Sends them, and returns what that cost Redis.
    pub fn run(&self, redis: &Redis) -> Result<Record, Stop> {
        // With a part of a packet left over, redis-benchmark may take its end for a lost connection.
        let number = self.number - self.number % self.pipeline;
        let mut words = on(self.cores).map(str::to_owned).to_vec();
        words.push("redis-benchmark".to_owned());
        let options = [
            ("-p", redis.port().into()),
            ("-n", number),
            ("-c", self.clients),
            ("-P", self.pipeline),
            ("-r", self.keys),
        ];
        words.extend(options.into_iter().flat_map(|(name, n)| [name.to_owned(), n.to_string()]));
        words.push("--csv".to_owned());
        words.extend(self.words.iter().cloned());
        let before = cpu_seconds(&[redis.pid()]);
        let output = run(&words)?;
        let used = cpu_seconds(&[redis.pid()]) - before;
        let said = columns(&output).filter(|_| !output.contains("ERR"));
        let said =
            said.ok_or_else(|| Stop::Failure(format!("redis-benchmark failed: {output}")))?;
        Ok(Record::from([
            ("rps", said("rps")),
            ("redis_us", used / number as f64 * 1e6),
            ("p50_us", said("p50_latency_ms") * 1000.0),
            ("mean_us", said("avg_latency_ms") * 1000.0),
        ]))
    }
}

/// The numbers in the last two lines of a table in CSV, of which the first has their names.
fn columns(output: &str) -> Option<impl Fn(&str) -> f64> {
    let mut lines = output.trim().lines().rev();
    // The name of the test, in quotes, may have commas: columns are counted from the end.
    let [values, names] = [lines.next()?, lines.next()?].map(|line| {
        let words: Vec<_> =
            line.rsplit(',').map(|word| word.trim_matches('"').to_owned()).collect();
        words
    });
    names.contains(&"rps".to_owned()).then_some(move |name: &str| {
        let column = names.iter().position(|column| column == name).expect("a column");
        values[column].parse().expect("a number")
    })
}

/// Runs a load, and returns what it prints.
fn run(words: &[String]) -> Result<String, Stop> {
    let output = NamedTempFile::new().expect("a temp file");
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    let log = File::options().append(true).open(output.path()).expect("the temp file");
    let mut process = Process::spawn_logged(mortal(&command, "KILL"), log)
        .unwrap_or_else(|error| panic!("cannot run {}: {error}", words[0]));
    let status = loop {
        if let Some(status) = process.ended() {
            break status;
        }
        stop::sleep(TURN)?;
    };
    let text = fs::read_to_string(output.path()).expect("the output of a load");
    match status.success() {
        true => Ok(text),
        false => Err(Stop::Failure(format!("{} failed: {text}", words.join(" ")))),
    }
}

/// How many commands of clients have run a script since the start. What scripts call is not in it.
pub fn scripts_run(redis: &Redis) -> u64 {
    ["eval", "evalsha", "fcall"].iter().map(|command| redis.calls(command)).sum()
}
