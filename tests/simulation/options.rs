//! The options of `scripts/simulate`.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use rate_limit_core::redis::cluster::SLOTS;

use crate::fleet::scenario::Size;
use crate::histories::{End, Plan, STEPS};

const USAGE: &str = "scripts/simulate --help lists the options";

/// The task that the caller has given.
#[derive(Debug, PartialEq, Eq)]
pub enum Task {
    Histories(Plan),
    /// The search for the defects of these names, or for all of them if there are none.
    Defects(Vec<String>),
    /// A fleet to be drawn, into this file if there is one.
    Fleet(Size, Option<PathBuf>),
}

impl Task {
    /// Parses arguments; the error is a message. The script begins with `--caller` and the directory of its caller, to which a
    /// file is relative.
    pub fn parse(arguments: &[&str]) -> Result<Self, String> {
        let (caller, arguments) = match arguments {
            ["--caller", caller, rest @ ..] => (Path::new(caller), rest),
            _ => (Path::new(""), arguments),
        };
        if arguments.contains(&"--defects") {
            defects(arguments)
        } else if arguments.contains(&"--fleet") {
            fleet(arguments, caller)
        } else {
            histories(arguments)
        }
    }
}

fn histories(arguments: &[&str]) -> Result<Task, String> {
    let (mut seed, mut minutes, mut is_traced) = (None, None, false);
    let mut words = arguments.iter().copied();
    while let Some(option) = words.next() {
        match option {
            "--seed" => seed = Some(number(option, words.next(), 0..=u64::MAX)?),
            "--minutes" => minutes = Some(number(option, words.next(), 1..=u32::MAX)?),
            "--trace" => is_traced = true,
            "--workers" | "--nodes" | "--tls" | "--output" => {
                return Err(format!("{option} goes with --fleet; {USAGE}"));
            }
            _ => return Err(unknown(option)),
        }
    }
    let end = match (seed, minutes) {
        (_, Some(minutes)) => End::Time(Duration::from_secs(60 * u64::from(minutes))),
        (Some(_), None) => End::First,
        (None, None) => End::Steps(STEPS),
    };
    if is_traced && end != End::First {
        return Err(format!("--trace goes with --seed, and without --minutes; {USAGE}"));
    }
    Ok(Task::Histories(Plan { first: seed.unwrap_or(1), end, is_traced }))
}

fn defects(arguments: &[&str]) -> Result<Task, String> {
    let names = arguments.strip_prefix(&["--defects"]).unwrap_or(arguments);
    match names.iter().find(|name| name.starts_with('-')) {
        None => Ok(Task::Defects(names.iter().map(ToString::to_string).collect())),
        Some(_) => Err(format!("--defects takes names, and goes with no other option; {USAGE}")),
    }
}

fn fleet(arguments: &[&str], caller: &Path) -> Result<Task, String> {
    let (mut machines, mut workers, mut nodes) = (None, None, None);
    let (mut has_tls, mut output) = (false, None);
    let mut words = arguments.iter().copied();
    while let Some(option) = words.next() {
        match option {
            "--fleet" => machines = Some(number(option, words.next(), 1..=u32::MAX)?),
            "--workers" => workers = Some(number(option, words.next(), 1..=u32::MAX)?),
            "--nodes" => nodes = Some(number(option, words.next(), 1..=SLOTS)?),
            "--tls" => has_tls = true,
            "--output" => output = Some(file(option, words.next())?),
            "--seed" | "--minutes" | "--trace" => {
                return Err(format!("{option} does not go with --fleet; {USAGE}"));
            }
            _ => return Err(unknown(option)),
        }
    }
    let (Some(machines), Some(workers), Some(nodes)) = (machines, workers, nodes) else {
        return Err(format!("--fleet needs --workers and --nodes; {USAGE}"));
    };
    let [machines, workers] = [machines, workers].map(|number| number as usize);
    let size = Size { machines, workers, nodes, has_tls };
    Ok(Task::Fleet(size, output.map(|file| caller.join(file))))
}

fn unknown(option: &str) -> String {
    format!("unknown option {option}; {USAGE}")
}

fn number<T: FromStr + PartialOrd + Display>(
    option: &str,
    word: Option<&str>,
    range: RangeInclusive<T>,
) -> Result<T, String> {
    let text = word.unwrap_or_default();
    let number = text.parse().ok().filter(|number| range.contains(number));
    let (least, most) = range.into_inner();
    number.ok_or_else(|| format!("{option} needs a number from {least} to {most}, not '{text}'"))
}

fn file<'a>(option: &str, word: Option<&'a str>) -> Result<&'a Path, String> {
    match word {
        Some(path) if !path.is_empty() => Ok(Path::new(path)),
        _ => Err(format!("{option} needs the path of a file")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Task, String> {
        Task::parse(&line.split_whitespace().collect::<Vec<_>>())
    }

    #[test]
    fn each_form_is_a_task() {
        let plan = |first, end, is_traced| Task::Histories(Plan { first, end, is_traced });
        let size = Size { machines: 2, workers: 3, nodes: 4, has_tls: true };
        let time = || End::Time(Duration::from_secs(120));
        for (line, task) in [
            ("", plan(1, End::Steps(STEPS), false)),
            ("--seed 0", plan(0, End::First, false)),
            ("--trace --seed 7", plan(7, End::First, true)),
            ("--minutes 2", plan(1, time(), false)),
            ("--caller /a --seed 7 --minutes 2", plan(7, time(), false)),
            ("--defects", Task::Defects(Vec::new())),
            ("--defects no-backoff", Task::Defects(vec!["no-backoff".to_owned()])),
            (
                "--caller /a --fleet 2 --workers 3 --nodes 4 --tls --output b/c",
                Task::Fleet(size, Some("/a/b/c".into())),
            ),
        ] {
            assert_eq!(parse(line), Ok(task), "{line}");
        }
    }

    #[test]
    fn wrong_options_are_explained() {
        for (line, what) in [
            ("--sed 1", "unknown option --sed; "),
            ("--seed", "--seed needs a number from 0 to 18446744073709551615, not ''"),
            ("--seed -1", "--seed needs a number from 0 to 18446744073709551615, not '-1'"),
            ("--minutes 0", "--minutes needs a number from 1 to 4294967295, not '0'"),
            ("--trace", "--trace goes with --seed, and without --minutes; "),
            ("--seed 1 --minutes 1 --trace", "--trace goes with --seed, and without --minutes; "),
            ("--workers 1", "--workers goes with --fleet; "),
            ("--seed 1 --defects", "--defects takes names, and goes with no other option; "),
            ("--defects --fleet 1", "--defects takes names, and goes with no other option; "),
            ("--fleet 1 --nodes 1", "--fleet needs --workers and --nodes; "),
            ("--fleet 1 --seed 1", "--seed does not go with --fleet; "),
            ("--fleet 1 --nodes 16385", "--nodes needs a number from 1 to 16384, not '16385'"),
            ("--fleet 1 --output", "--output needs the path of a file"),
        ] {
            let message = parse(line).expect_err(line);
            assert!(message.starts_with(what), "{line}: {message}");
        }
    }
}
