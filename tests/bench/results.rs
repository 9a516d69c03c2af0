//! The results of a run, and what they amount to.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::case::Case;
use crate::instructions::{self, Figures};
use crate::machine::Pinning;
use crate::prose::grouped;
use crate::scale::Scale;

/// How many of the machine's cores other processes may use during a measurement.
const OTHERS: f64 = 0.1;

/// The cases in which whoever limits rejects all requests.
const REJECTING: [&str; 2] = ["flood", "logged"];

/// A measurement: numbers by name.
pub type Record = BTreeMap<&'static str, f64>;

/// One round of a case: the record of each variant.
pub type Round = Vec<(&'static str, Record)>;

/// A point of a scale, and the records there.
pub type Point = (u64, Vec<Record>);

/// The choices of the caller.
pub struct Settings {
    /// How long one measurement takes, in s.
    pub seconds: u64,
    /// How often each is repeated.
    pub rounds: usize,
    /// How many connections wrk has.
    pub connections: usize,
    /// Fewer points of each scale.
    pub quick: bool,
    /// The most keys that are put into Redis.
    pub most_keys: u64,
    /// The most requests that wait at once.
    pub most_waiting: u64,
    /// More configuration for the module.
    pub directives: String,
}

/// A run, and all that it has found.
pub struct Results {
    /// Where it was made, and of what: names and values.
    pub machine: Vec<(&'static str, String)>,
    pub settings: Settings,
    pub pinning: Pinning,
    /// The rounds of each case.
    pub cases: Vec<(&'static Case, Vec<Round>)>,
    /// The points of each scale.
    pub scales: Vec<(&'static Scale, Vec<Point>)>,
    pub instructions: Figures,
    /// The words of a command of the module.
    pub command: Vec<String>,
}

impl Results {
    /// The case of this name and its rounds, if it has been measured.
    pub fn case(&self, name: &str) -> Option<(&'static Case, &[Round])> {
        let (case, rounds) = self.cases.iter().find(|(case, _)| case.name == name)?;
        Some((*case, rounds))
    }

    /// All of it.
    pub fn as_json(&self) -> Value {
        let Pinning { nginx, redis, load, .. } = &self.pinning;
        json!({
            "machine": self.machine.iter().cloned().collect::<Value>(),
            "settings": settings_as_json(&self.settings),
            "pinning": {"nginx": nginx, "redis": redis, "load": load},
            "cases": self.cases.iter().map(case_as_json).collect::<Value>(),
            "scales": self.scales.iter().map(scale_as_json).collect::<Value>(),
            "instructions": instructions::as_json(&self.instructions),
            "command": self.command,
        })
    }

    /// Answers that make figures worthless: requests that failed, passed or were rejected as they should not.
    pub fn wrong_answers(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (Case { name, .. }, rounds) in &self.cases {
            for (number, round) in (1..).zip(rounds) {
                for (variant, record) in round {
                    let rejects = REJECTING.contains(name) && *variant != "none";
                    if let Some(wrong) = wrong_in(record, rejects) {
                        found.push(format!("{name}, round {number}, {variant}: {wrong}"));
                    }
                }
            }
        }
        for (Scale { name, .. }, points) in &self.scales {
            for (point, records) in points {
                for wrong in records.iter().filter_map(|record| wrong_in(record, false)) {
                    found.push(format!("{name} {}, module: {wrong}", grouped(point)));
                }
            }
        }
        found
    }

    /// Whether other processes used the machine, in words.
    pub fn disturbance(&self) -> Option<String> {
        let asked: Vec<f64> =
            self.records().filter_map(|record| record.get("cores_of_others").copied()).collect();
        let found: Vec<f64> = asked.iter().copied().filter(|cores| *cores > OTHERS).collect();
        let most = found.iter().copied().reduce(f64::max)?;
        let (found, asked) = (found.len(), asked.len());
        Some(format!("in {found} of {asked} measurements others used up to {most:.1} cores"))
    }

    fn records(&self) -> impl Iterator<Item = &Record> {
        let rounds = self.cases.iter().flat_map(|(_, rounds)| rounds);
        let points = self.scales.iter().flat_map(|(_, points)| points);
        let of_cases = rounds.flatten().map(|(_, record)| record);
        of_cases.chain(points.flat_map(|(_, records)| records))
    }
}

fn settings_as_json(settings: &Settings) -> Value {
    json!({
        "seconds": settings.seconds,
        "rounds": settings.rounds,
        "connections": settings.connections,
        "quick": settings.quick,
        "most_keys": settings.most_keys,
        "most_waiting": settings.most_waiting,
        "directives": settings.directives,
    })
}

fn case_as_json((case, rounds): &(&'static Case, Vec<Round>)) -> (&'static str, Value) {
    (case.name, rounds.iter().map(round_as_json).collect())
}

fn scale_as_json((scale, points): &(&'static Scale, Vec<Point>)) -> (&'static str, Value) {
    (scale.name, points.iter().map(point_as_json).collect())
}

fn round_as_json(round: &Round) -> Value {
    round.iter().map(|(variant, record)| (*variant, record_as_json(record))).collect()
}

fn point_as_json((point, records): &Point) -> (String, Value) {
    (point.to_string(), records.iter().map(record_as_json).collect())
}

/// Numbers by name, whole ones without a point.
fn record_as_json(record: &Record) -> Value {
    let is_whole = |number: f64| number.fract() == 0.0;
    let shown = |number| if is_whole(number) { json!(number as i64) } else { json!(number) };
    record.iter().map(|(name, number)| (*name, shown(*number))).collect()
}

/// The fault in the answers of a measurement that rejects all, or passes all.
fn wrong_in(record: &Record, rejects: bool) -> Option<String> {
    let refused = *record.get("refused")?;
    let (requests, broken) = (record["requests"], record["broken"]);
    let is_right = if rejects { refused >= 0.95 } else { refused == 0.0 };
    if is_right && broken == 0.0 {
        return None;
    }
    let rejected = grouped(format_args!("{:.0}", refused * requests));
    let (requests, broken) = (grouped(requests), grouped(broken));
    Some(format!("{rejected} of {requests} were rejected, {broken} connections failed"))
}

/// The record of a variant.
pub fn record<'a>(round: &'a Round, variant: &str) -> &'a Record {
    let found = round.iter().find(|(name, _)| *name == variant);
    found.map(|(_, record)| record).unwrap_or_else(|| panic!("{variant} has not been measured"))
}

/// A number of a variant.
pub fn figure(round: &Round, variant: &str, field: &str) -> f64 {
    let found = record(round, variant).get(field);
    *found.unwrap_or_else(|| panic!("{variant} has no figure {field}"))
}

/// The median of each number of several records.
pub fn medians<'a>(records: impl Iterator<Item = &'a Record> + Clone) -> Record {
    let names = records.clone().next().into_iter().flat_map(Record::keys);
    names.map(|name| (*name, median(records.clone().map(|record| record[name])))).collect()
}

/// The medians of each variant over several rounds.
pub fn median_round(rounds: &[Round]) -> Round {
    let variants = rounds.first().into_iter().flatten().map(|(variant, _)| *variant);
    let medians_of = |variant| medians(rounds.iter().map(move |round| record(round, variant)));
    variants.map(|variant| (variant, medians_of(variant))).collect()
}

/// The one in the middle, or the mean of the two that are there.
fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = numbers.collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 10.0].into_iter()), 3.0);
        assert_eq!(median([3.0, 1.0, 10.0, 4.0].into_iter()), 3.5);
    }

    #[test]
    fn answers_are_right_where_all_or_none_are_rejected() {
        let answers = |refused, broken| {
            Record::from([("refused", refused), ("requests", 1_000.0), ("broken", broken)])
        };
        assert_eq!(wrong_in(&answers(0.0, 0.0), false), None);
        assert_eq!(wrong_in(&answers(0.95, 0.0), true), None);
        assert_eq!(wrong_in(&Record::new(), true), None);
        let wrong = wrong_in(&answers(0.01, 0.0), false);
        let words = "10 of 1,000 were rejected, 0 connections failed";
        assert_eq!(wrong.as_deref(), Some(words));
        assert!(wrong_in(&answers(0.01, 0.0), true).is_some());
        assert!(wrong_in(&answers(0.0, 1.0), false).is_some());
    }
}
