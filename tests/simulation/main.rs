//! The simulation of `scripts/simulate`: servers, a network and a clock, all of which follow from a seed.

// Code that they do not see either is found when they are compiled.
#![cfg_attr(not(test), expect(dead_code, reason = "only the tests see all of it"))]

mod cost;
mod queue;
mod resp;

mod database;
mod lua;
mod script;

mod journal;
mod server;
mod slots;

mod cluster;
mod deployment;
mod replication;
mod sentinel;

mod fault;
mod network;
mod world;

mod lease;
mod ledger;
mod traffic;
mod watch;
mod worker;

mod simulation;

mod fleet;

mod defects;
mod histories;
mod options;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use harness::stop::{self, Stop};
use options::Task;

/// The simulation, with the arguments of `scripts/simulate`. It runs in the root of the checkout.
fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<_> = arguments.iter().map(String::as_str).collect();
    let result = Task::parse(&words).map_err(Stop::Failure).and_then(perform);
    // A panic in a history is a finding, which shows its place as well.
    stop::status("simulate", result.map(|()| ExitCode::SUCCESS))
}

fn perform(task: Task) -> Result<(), Stop> {
    match task {
        Task::Histories(plan) => Ok(histories::run(&plan)?),
        Task::Fleet(size, output) => {
            let file = output.unwrap_or_else(|| target().join("fleet.svg"));
            Ok(fleet::scenario::draw_to(&file, &size)?)
        }
        Task::Defects(names) => {
            stop::catch_signals();
            defects::find(&names, &target().join("defects"))
        }
    }
}

/// Cargo's directory of what is built, where this program is as well.
fn target() -> PathBuf {
    let program = std::env::current_exe().expect("the path of this program");
    program.ancestors().nth(2).map_or_else(|| PathBuf::from("target"), Path::to_owned)
}
