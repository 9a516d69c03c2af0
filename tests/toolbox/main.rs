//! What `scripts/run` and `scripts/simulate` do, once the tools that they need are there.

#![warn(missing_docs)]

mod run;
mod simulate;

use std::panic;
use std::process::ExitCode;

use run::run;
use simulate::simulate;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let command = arguments.next().unwrap_or_default();
    let arguments: Vec<_> = arguments.collect();
    let name = command.clone();
    // A server that does not start, for example.
    panic::set_hook(Box::new(move |panic| {
        eprintln!("{name}: {}", panic.payload_as_str().unwrap_or("unexpected error"));
    }));
    let result = panic::catch_unwind(|| match command.as_str() {
        "run" => run(arguments),
        "simulate" => simulate(arguments),
        _ => Err("the command is run or simulate".to_owned()),
    });
    match result {
        Ok(Ok(status)) => status,
        Ok(Err(message)) => {
            eprintln!("{command}: {message}");
            ExitCode::FAILURE
        }
        Err(_told) => ExitCode::FAILURE,
    }
}
