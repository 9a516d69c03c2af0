//! Instructions of the worker for each request of fixed loads, which callgrind counts without noise.

use std::fs;
use std::path::Path;

use harness::stop::Stop;
use harness::{PATIENCE, holds_within};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::load::scripts_run;
use crate::servers::{Servers, start_deciding};
use crate::volley::{Client, VOLLEYS, Volley, WIDTH};

/// For each load, the instructions of one request to each variant.
pub type Figures = Vec<(&'static str, Vec<(&'static str, u64)>)>;

pub const VARIANTS: [&str; 3] = ["none", "limit_req", "module"];

/// The variant whose instructions may not grow.
pub const MODULE: &str = "module";

/// Where the figures are committed.
pub const COMMITTED: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/performance/instructions.json");

/// How often each run is done. A disturbance, such as a piece of an answer that comes late, only adds to a run: the least
/// is taken.
const RUNS: usize = 2;

/// How many runs may be disturbed before that is an error.
const ATTEMPTS: usize = 20;

/// By how much a figure may grow.
const TOLERANCE: f64 = 1.05;

/// For each load, the instructions of one request to each of these variants.
pub fn measure(servers: &Servers, variants: &[&'static str]) -> Result<Figures, Stop> {
    let of_load = |volley| {
        let figure = |&variant| Ok((variant, of_one_request(servers, variant, volley)?));
        variants.iter().map(figure).collect::<Result<Vec<_>, Stop>>()
    };
    VOLLEYS.iter().map(|volley| Ok((volley.name, of_load(volley)?))).collect()
}

/// The difference between a run and one of twice as many volleys, which has no start in it, nor an end.
fn of_one_request(servers: &Servers, variant: &str, volley: &Volley) -> Result<u64, Stop> {
    // An entry of the deny cache lives for a second, in which a flood must fit.
    let volleys = if volley.name == "flood" { 12 } else { 24 };
    let least = |volleys| {
        let runs = (0..RUNS).map(|_| undisturbed(servers, variant, volley, volleys));
        runs.collect::<Result<Vec<_>, Stop>>().map(|runs| runs.into_iter().min().unwrap_or(0))
    };
    let requests = (volleys * WIDTH) as u64;
    let difference = least(2 * volleys)?.saturating_sub(least(volleys)?);
    Ok((difference + requests / 2) / requests)
}

/// All instructions of a run in which Redis ran as many commands as the load needs. On a slow machine it may be more, as
/// entries of the deny cache expire, or requests for one key come too late for its command.
fn undisturbed(
    servers: &Servers,
    variant: &str,
    volley: &Volley,
    volleys: usize,
) -> Result<u64, Stop> {
    let expected = if variant == MODULE { volley.commands(volleys) } else { 0 };
    let mut commands = 0;
    for _ in 0..ATTEMPTS {
        let instructions;
        (instructions, commands) = total(servers, variant, volley, volleys)?;
        if commands == expected {
            return Ok(instructions);
        }
    }
    Err(Stop::Failure(format!(
        "{}: Redis ran {commands} commands for {volleys} volleys, not {expected}, in the last of {ATTEMPTS} runs",
        volley.name
    )))
}

/// All instructions of a run with so many volleys, and how many commands Redis ran for it.
fn total(
    servers: &Servers,
    variant: &str,
    volley: &Volley,
    volleys: usize,
) -> Result<(u64, u64), Stop> {
    let dir = TempDir::new().expect("create a temp directory");
    let out = dir.path().join("callgrind.out");
    let file = format!("--callgrind-out-file={}", out.display());
    let valgrind = ["valgrind", "--quiet", "--tool=callgrind", &file];
    let redis = servers.redis();
    let conf = match variant {
        MODULE => servers.module_on(&redis),
        "limit_req" => servers.limit_req(),
        _ => servers.none(),
    };
    let conf = conf.single().wrapper(valgrind);
    let mut nginx = if variant == MODULE { start_deciding(&conf)? } else { conf.start() };
    Client::new(&nginx, variant != "none").fire(volley, volleys)?;
    let commands = scripts_run(&redis);
    nginx.terminate();
    let mut instructions = None;
    // The file may be there before they are.
    holds_within(PATIENCE, || {
        instructions = figure_in(&out);
        instructions.is_some()
    });
    Ok((instructions.expect("the figures of callgrind"), commands))
}

/// The sum that callgrind has written, if it has.
fn figure_in(out: &Path) -> Option<u64> {
    let text = fs::read_to_string(out).ok()?;
    let sum = text
        .lines()
        .find_map(|line| line.strip_prefix("totals: ").or_else(|| line.strip_prefix("summary: ")));
    sum?.trim().parse().ok()
}

/// The loads in which the module has become worse, as sentences.
pub fn grown(figures: &Figures, committed: &Figures) -> Vec<String> {
    let sentence = |load| {
        let now = figure(figures, load, MODULE).expect("a figure of each load");
        let Some(before) = figure(committed, load, MODULE) else {
            return Some(format!("{load}: no figure is committed, see --update"));
        };
        let has_grown = now as f64 > before as f64 * TOLERANCE;
        has_grown.then(|| format!("{load}: {now} instructions a request, {before} are committed"))
    };
    figures.iter().filter_map(|(load, _)| sentence(load)).collect()
}

/// The figure of a variant under a load.
pub fn figure(figures: &Figures, load: &str, variant: &str) -> Option<u64> {
    let (_, variants) = figures.iter().find(|(known, _)| *known == load)?;
    variants.iter().find(|(known, _)| *known == variant).map(|(_, figure)| *figure)
}

/// The figures that are committed; none where there is no such file.
pub fn committed() -> Figures {
    let text = fs::read_to_string(COMMITTED).unwrap_or_default();
    let values: Value = serde_json::from_str(&text).unwrap_or_default();
    let of_load = |load: &str| {
        let figure = |variant| Some((variant, values[load][variant].as_u64()?));
        VARIANTS.into_iter().filter_map(figure).collect()
    };
    let loads = VOLLEYS.iter().map(|volley| volley.name);
    loads.filter(|load| values[load].is_object()).map(|load| (load, of_load(load))).collect()
}

/// Commits figures.
pub fn commit(figures: &Figures) {
    let text = serde_json::to_string_pretty(&as_json(figures)).expect("JSON");
    fs::write(COMMITTED, text + "\n").expect("write the figures");
}

/// Figures by load and variant.
pub fn as_json(figures: &Figures) -> Value {
    let of_load = |(load, variants): &(&str, Vec<(&'static str, u64)>)| {
        let variants =
            variants.iter().map(|(variant, figure)| ((*variant).to_owned(), json!(figure)));
        ((*load).to_owned(), Value::Object(variants.collect()))
    };
    Value::Object(figures.iter().map(of_load).collect())
}
