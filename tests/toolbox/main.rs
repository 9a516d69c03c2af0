//! What `scripts/run` and `scripts/simulate` do, once the tools that they need are there.

#![warn(missing_docs)]

mod run;
mod simulate;

use std::process::ExitCode;

use run::run;
use simulate::simulate;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let command = arguments.next();
    let arguments: Vec<_> = arguments.collect();
    let result = match command.as_deref() {
        Some("run") => run(arguments),
        Some("simulate") => simulate(arguments),
        _ => Err("the command is run or simulate".to_owned()),
    };
    result.unwrap_or_else(|message| {
        eprintln!("{}: {message}", command.as_deref().unwrap_or("toolbox"));
        ExitCode::FAILURE
    })
}
