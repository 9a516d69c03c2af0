//! The options of `scripts/bench`.

use std::fmt::Display;
use std::str::FromStr;

use crate::case::{CASES, Case};
use crate::results::Settings;
use crate::scale::{SCALES, Scale};

/// The case of counted instructions.
const INSTRUCTIONS: &str = "instructions";

const USAGE: &str = "scripts/bench --help lists the options";

/// The task that the caller has given.
pub enum Task {
    /// Measure, and report.
    Measure(Box<Plan>),
    /// Only count instructions, and write the figures down or fail where they have grown.
    Instructions { update: bool },
    /// Only measure what the connections of so many workers cost Redis.
    Fleet(Vec<u64>),
}

/// The measurements of a run.
pub struct Plan {
    pub settings: Settings,
    pub cases: Vec<&'static Case>,
    pub scales: Vec<&'static Scale>,
    pub instructions: bool,
    /// Leave it to the scheduler who runs where.
    pub unpinned: bool,
    /// Put the report to where readers find it.
    pub publish: bool,
}

/// The options as they are given.
struct Given {
    settings: Settings,
    cases: Option<String>,
    unpinned: bool,
    publish: bool,
    instructions: bool,
    update: bool,
    fleet: Option<Vec<u64>>,
}

impl Task {
    /// Parses arguments; the error is a message.
    pub fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut given = Given::parse(arguments)?;
        if given.update && !given.instructions {
            return Err("--update goes with --instructions".to_owned());
        }
        if given.publish && (given.settings.quick || given.cases.is_some()) {
            return Err("--publish is for a whole run, without --quick or --cases".to_owned());
        }
        match given.fleet.take() {
            Some(workers) => Ok(Self::Fleet(workers)),
            None if given.instructions => Ok(Self::Instructions { update: given.update }),
            None => Ok(Self::Measure(Box::new(Plan::of(given)?))),
        }
    }
}

impl Given {
    fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut given = Self::default();
        let mut words = arguments.iter().map(String::as_str).peekable();
        while let Some(option) = words.next() {
            let settings = &mut given.settings;
            match option {
                "--quick" => settings.quick = true,
                "--unpinned" => given.unpinned = true,
                "--publish" => given.publish = true,
                "--instructions" => given.instructions = true,
                "--update" => given.update = true,
                "--cases" => given.cases = Some(value(option, words.next())?),
                "--with" => settings.directives = value(option, words.next())?,
                "--duration" => settings.seconds = number(option, words.next(), 1)?,
                "--rounds" => settings.rounds = number(option, words.next(), 1)?,
                "--connections" => settings.connections = number(option, words.next(), 1)?,
                "--keys" => settings.most_keys = number(option, words.next(), 1)?,
                "--waiting" => settings.most_waiting = number(option, words.next(), 1)?,
                "--fleet" => {
                    let mut workers = vec![number(option, words.next(), 2)?];
                    while let Some(word) = words.next_if(|word| !word.starts_with('-')) {
                        workers.push(number(option, Some(word), 2)?);
                    }
                    given.fleet = Some(workers);
                }
                _ => return Err(format!("unknown option {option}; {USAGE}")),
            }
        }
        Ok(given)
    }
}

impl Default for Given {
    fn default() -> Self {
        let settings = Settings {
            seconds: 5,
            rounds: 5,
            connections: 64,
            quick: false,
            most_keys: 10_000_000,
            most_waiting: 10_000,
            directives: String::new(),
        };
        let [unpinned, publish, instructions, update] = [false; 4];
        Self { settings, cases: None, unpinned, publish, instructions, update, fleet: None }
    }
}

fn value(option: &str, word: Option<&str>) -> Result<String, String> {
    word.map(str::to_owned).ok_or_else(|| format!("{option} needs a value; {USAGE}"))
}

fn number<T: FromStr + PartialOrd + Display>(
    option: &str,
    word: Option<&str>,
    least: T,
) -> Result<T, String> {
    let text = word.unwrap_or_default();
    let number = text.parse().ok().filter(|number| *number >= least);
    number.ok_or_else(|| format!("{option} needs a number of at least {least}, not '{text}'"))
}

impl Plan {
    /// Everything, if the caller has not chosen.
    fn of(given: Given) -> Result<Self, String> {
        let mut plan = Self {
            settings: given.settings,
            cases: Vec::new(),
            scales: Vec::new(),
            instructions: false,
            unpinned: given.unpinned,
            publish: given.publish,
        };
        match given.cases {
            Some(names) => names.split(',').try_for_each(|name| plan.add(name))?,
            None => {
                plan.add("goals")?;
                plan.add("scale")?;
                plan.instructions = !plan.settings.quick;
            }
        }
        let settings = &mut plan.settings;
        if settings.quick {
            (settings.seconds, settings.rounds) = (1, 1);
            settings.most_keys = settings.most_keys.min(1_000_000);
            settings.most_waiting = settings.most_waiting.min(2000);
        }
        Ok(plan)
    }

    /// Adds a case, a scale or all of either, once.
    fn add(&mut self, name: &str) -> Result<(), String> {
        match name {
            "goals" => CASES.iter().try_for_each(|case| self.add(case.name))?,
            "scale" => SCALES.iter().try_for_each(|scale| self.add(scale.name))?,
            INSTRUCTIONS => self.instructions = true,
            _ => match (Case::find(name), Scale::find(name)) {
                (Some(case), _) if self.cases.iter().all(|it| it.name != name) => {
                    self.cases.push(case);
                }
                (_, Some(scale)) if self.scales.iter().all(|it| it.name != name) => {
                    self.scales.push(scale);
                }
                (Some(_), _) | (_, Some(_)) => (),
                (None, None) => return Err(format!("no such case: {name}; there are {}", names())),
            },
        }
        Ok(())
    }
}

/// The names of what can be measured.
fn names() -> String {
    let cases = CASES.iter().map(|case| case.name);
    let scales = SCALES.iter().map(|scale| scale.name);
    cases.chain(scales).chain([INSTRUCTIONS, "goals", "scale"]).collect::<Vec<_>>().join(", ")
}
