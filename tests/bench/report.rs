//! The report of a run: Markdown and pictures.

use std::fmt::Display;
use std::fs;
use std::iter;
use std::path::Path;

use crate::case::{BASELINE, CLIENT_RATE, CLIENTS, DISTINCT_KEYS, KNOWN_KEYS};
use crate::chart;
use crate::goal::{GOALS, Goal};
use crate::instructions::{self, Figures, MODULE};
use crate::machine::Pinning;
use crate::paper;
use crate::prose::{grouped, paragraph};
use crate::results::{Point, Record, Results, Round, Settings, median_round, medians};
use crate::scale::Scale;

/// The cases that a picture compares.
const COMPARED: [&str; 3] = ["distinct", "hot", "flood"];

/// The figures that are shown of a record: the name, the heading, the factor, the digits.
const COLUMNS: [(&str, &str, f64, usize); 16] = [
    ("rps", "requests/s", 1.0, 0),
    ("nginx_us", "nginx µs/request", 1.0, 2),
    ("redis_us", "redis µs/request", 1.0, 2),
    ("load_us", "wrk µs/request", 1.0, 2),
    ("nginx_cores", "cores for nginx", 1.0, 2),
    ("other_cores", "cores for redis, wrk", 1.0, 2),
    ("p50_us", "median µs", 1.0, 0),
    ("p99_us", "p99 µs", 1.0, 0),
    ("scripts_per_request", "commands/request", 1.0, 3),
    ("refused", "rejected %", 100.0, 1),
    ("bytes_per_key", "bytes/key in Redis", 1.0, 0),
    ("waiting", "waiting", 1.0, 0),
    ("bytes", "bytes/request", 1.0, 0),
    ("distinct", "distinct keys", 1.0, 3),
    ("hot", "one hot key", 1.0, 3),
    ("flood", "rejected flood", 1.0, 3),
];

/// Writes the pictures, and returns the Markdown, which refers to them.
pub fn write(directory: &Path, results: &Results) -> String {
    let about = results.machine.iter().map(|(name, value)| format!("{name}: {value}"));
    let mut blocks = vec!["# Performance".to_owned(), list(about)];
    let doubts = [results.wrong_answers(), Vec::from_iter(results.disturbance())].concat();
    if !doubts.is_empty() {
        blocks.extend(["**Not to be trusted:**".to_owned(), list(doubts)]);
    }
    if GOALS.iter().any(|goal| results.case(goal.case).is_some()) {
        blocks.push(section("Goals", &goals_table(results)));
    }
    if let Some(picture) = comparison(results) {
        save(directory, "cpu", &picture);
        blocks.push("![CPU of a request, by limiter](cpu.svg)".to_owned());
    }
    blocks.push(section("Method", &method(&results.settings, &results.pinning)));
    for (case, rounds) in &results.cases {
        let table = records_table("variant", &median_round(rounds));
        blocks.push(section(&sentence(case.title), &table));
    }
    if !results.instructions.is_empty() {
        let table = instructions_table(&results.instructions, &instructions::committed());
        blocks.push(section("Instructions", &table));
    }
    for (scale, points) in &results.scales {
        let medians = |(point, records): &Point| (*point, medians(records.iter()));
        let points: Vec<_> = points.iter().map(medians).collect();
        save(directory, scale.name, &picture(scale, &points));
        blocks.push(growth(scale, &points));
    }
    blocks.extend(on_paper(results).map(|it| section("A large fleet, on paper", &it)));
    blocks.join("\n\n") + "\n"
}

fn save(directory: &Path, name: &str, picture: &str) {
    let path = directory.join(name).with_extension("svg");
    fs::write(&path, picture).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

fn section(title: &str, text: &str) -> String {
    format!("## {title}\n\n{text}")
}

fn list(items: impl IntoIterator<Item = String>) -> String {
    let items: Vec<_> = items.into_iter().map(|item| format!("- {item}")).collect();
    items.join("\n")
}

/// How it was measured.
fn method(settings: &Settings, pinning: &Pinning) -> String {
    let Settings { seconds, rounds, connections, directives, .. } = settings;
    let directives = match &**directives {
        "" => String::new(),
        directives => format!("Its configuration also has `{directives}`."),
    };
    let paragraphs = [
        format!(
            "One NGINX for each way to limit, each with one worker, all up at the same time. `wrk -t1 -c{connections}` \
             loads each in turn for {seconds} s; rounds: {rounds}, each begun by another one. Distinct keys are {} \
             random ones; the flood is for {} that have spent all. {} clients send about {} requests a second in all, \
             with a limit of twice that for each; of the clients of a Zipf distribution the k-th makes requests in \
             proportion to 1 / k. `lease` is the module with `rate_limit_redis_lease on`; `fields` is `limit_req` with \
             four lines `add_header` that send what the module sends with a rejection. Figures are medians of the \
             rounds; min and max are of the ratio in single rounds. NGINX answers with a picture from its memory, its \
             cheapest answer, so that a limiter weighs as much as it can. CPU is what the scheduler says that a \
             process has had (`/proc/PID/schedstat`), over the requests that wrk counted.",
            grouped(DISTINCT_KEYS),
            grouped(KNOWN_KEYS),
            grouped(CLIENTS),
            grouped(CLIENTS * CLIENT_RATE),
        ),
        format!("{} Nothing leaves the machine; Redis is reached over TCP.", in_words(pinning)),
        format!(
            "The module has its defaults, header fields included, only with a longer timeout and errors that show. \
             {directives} Lua sends the same EVALSHA, over pooled connections, with a small client for any command; it \
             makes the verdict from what the script has found, as the module does, and sets the same header fields."
        ),
        "\"Redis alone\" is redis-benchmark on random keys: 64 commands in a packet, or, where it says \"alone\", one, \
         from 64 connections. `baseline` is the script below. The points of a scale are measured one after the other, \
         not by turns. Where requests wait long, there are more commands than requests, as wrk does not wait for the \
         last answers."
            .to_owned(),
    ];
    let paragraphs = paragraphs.map(|text| paragraph(&text, "")).join("\n\n");
    format!("{paragraphs}\n\n```lua\n{}\n```", BASELINE.trim())
}

fn in_words(pinning: &Pinning) -> &'static str {
    if pinning.nginx == pinning.redis {
        "No process has a core of its own."
    } else if pinning.redis == pinning.load {
        "The worker has a core of its own; Redis and wrk share the other. What uses Redis is slowed down by that, and \
         `limit_req` is not: the tables show how busy both were."
    } else {
        "The worker, Redis and wrk have a core each."
    }
}

/// A line for each goal whose case has been measured.
pub fn goals_table(results: &Results) -> String {
    let mut lines = table(["case", "goal", "measured", "min – max", "verdict"]);
    lines.extend(GOALS.iter().filter_map(|goal| {
        let (_, rounds) = results.case(goal.case)?;
        Some(goal_line(goal, rounds))
    }));
    lines.join("\n")
}

fn goal_line(Goal { title, bound, figure, .. }: &Goal, rounds: &[Round]) -> String {
    let measured = figure(&median_round(rounds));
    let single = rounds.iter().map(figure);
    let least = single.clone().fold(f64::INFINITY, f64::min);
    let most = single.fold(f64::NEG_INFINITY, f64::max);
    let [least, shown, most] = [least, measured, most].map(number);
    let verdict = if bound.is_met(measured) { "met" } else { "**missed**" };
    format!("| {title} | {bound} | {shown} | {least} – {most} | {verdict} |")
}

/// The instructions of a request, for each load and variant, beside those of the module that are committed.
pub fn instructions_table(figures: &Figures, committed: &Figures) -> String {
    let variants = figures.first().into_iter().flat_map(|(_, of_load)| of_load);
    let variants = variants.map(|(variant, _)| variant.to_string());
    let first = "instructions a request".to_owned();
    let last = "module, committed".to_owned();
    let mut lines = table(iter::once(first).chain(variants).chain([last]));
    for (load, of_load) in figures {
        let numbers = of_load.iter().map(|(_, number)| number.to_string());
        let before = instructions::figure(committed, load, MODULE);
        let before = before.map_or("—".to_owned(), |it| it.to_string());
        lines.push(line(iter::once(load.to_string()).chain(numbers).chain([before])));
    }
    lines.join("\n")
}

/// A line for each record, with the columns that any has.
fn records_table<T: Display>(first: &str, records: &[(T, Record)]) -> String {
    let is_there = |name: &str| records.iter().any(|(_, record)| record.contains_key(name));
    let columns = COLUMNS.into_iter().filter(|(name, ..)| is_there(name));
    let columns: Vec<_> = columns.collect();
    let headings = columns.iter().map(|(_, heading, ..)| *heading);
    let mut lines = table(iter::once(first).chain(headings));
    for (name, record) in records {
        let cells = columns.iter().map(|(field, _, factor, digits)| {
            let shown = |number| grouped(format_args!("{:.digits$}", number * factor));
            record.get(field).map_or("—".to_owned(), shown)
        });
        lines.push(line(iter::once(name.to_string()).chain(cells)));
    }
    lines.join("\n")
}

/// The first lines of a table.
fn table(headings: impl IntoIterator<Item: AsRef<str>>) -> Vec<String> {
    let headings: Vec<_> = headings.into_iter().collect();
    vec![line(&headings), "|---".repeat(headings.len()) + "|"]
}

/// A line of a table.
fn line(cells: impl IntoIterator<Item: AsRef<str>>) -> String {
    let cells = cells.into_iter().map(|cell| format!(" {} |", cell.as_ref()));
    format!("|{}", cells.collect::<String>())
}

/// The table and the picture of a scale.
fn growth(scale: &Scale, points: &[(u64, Record)]) -> String {
    let (name, title) = (scale.name, sentence(scale.title));
    let rows = points.iter().map(|(point, record)| (grouped(point), record.clone()));
    let table = records_table(scale.title, &rows.collect::<Vec<_>>());
    section(&title, &format!("{table}\n\n![{title}]({name}.svg)"))
}

fn picture(scale: &Scale, points: &[(u64, Record)]) -> String {
    let lines = [("nginx", "nginx_us"), ("redis", "redis_us")].map(|(name, field)| {
        (name, points.iter().map(|(point, record)| (*point, record[field])).collect())
    });
    let title = format!("CPU by {}", scale.title);
    chart::lines(&title, [scale.title, "µs/request"], &lines, scale.logarithmic)
}

/// The CPU that each variant takes in the cases that are compared, if all have been measured.
fn comparison(results: &Results) -> Option<String> {
    let group = |name: &&str| {
        let (case, rounds) = results.case(name)?;
        let cpu = |record: &Record| ["nginx_us", "redis_us"].map(|field| record[field]).to_vec();
        let medians = median_round(rounds);
        Some((case.title, medians.iter().map(|(variant, it)| (*variant, cpu(it))).collect()))
    };
    let groups: Vec<_> = COMPARED.iter().map(group).collect::<Option<_>>()?;
    Some(chart::bars("CPU of a request, µs", &["nginx", "redis"], &groups))
}

/// The calculation for a large fleet, if all that it takes has been measured.
fn on_paper(results: &Results) -> Option<String> {
    let (_, points) = results.scales.iter().find(|(scale, _)| scale.name == "keys")?;
    let (_, most_keys) = points.last()?;
    let bytes_per_key = *most_keys.first()?.get("bytes_per_key")?;
    let medians = |case| results.case(case).map(|(_, rounds)| median_round(rounds));
    let [distinct, latency, redis] = ["distinct", "latency", "redis"].map(medians);
    let rounds = [&distinct?, &latency?, &redis?];
    Some(paper::calculate(rounds, bytes_per_key, &results.command))
}

fn number(value: f64) -> String {
    let digits = match value.abs() {
        100.0.. => 0,
        10.0.. => 1,
        _ => 3,
    };
    format!("{value:.digits$}")
}

fn sentence(title: &str) -> String {
    let (first, rest) = title.split_at(1);
    first.to_uppercase() + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_numbers_have_fewer_digits() {
        let shown = [0.98765, -1.5, 10.04, 511.6].map(number);
        assert_eq!(shown, ["0.988", "-1.500", "10.0", "512"]);
    }

    #[test]
    fn a_table_has_the_columns_that_any_record_has() {
        let records =
            [("a", Record::from([("rps", 1234.5)])), ("b", Record::from([("refused", 1.0)]))];
        let lines = "| variant | requests/s | rejected % |\n|---|---|---|\n| a | 1,234 | — |\n| b | — | 100.0 |";
        assert_eq!(records_table("variant", &records), lines);
    }
}
