//! The benchmark of `scripts/bench`: the module beside no limiter, `limit_req` and the same in Lua.

mod case;
mod chart;
mod connections;
mod fleet;
mod goal;
mod heap;
mod instructions;
mod load;
mod machine;
mod options;
mod paper;
mod progress;
mod prose;
mod publication;
mod report;
mod results;
mod scale;
mod servers;
mod trial;
mod volley;
mod waiting;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use case::Bench;
use fleet::Fleet;
use harness::run;
use harness::stop::{self, Stop, unless_stopped};
use instructions::MODULE;
use machine::Pinning;
use options::{Plan, Task};
use progress::Progress;
use results::Results;
use servers::Servers;

/// About how long it takes to count instructions, in s.
const INSTRUCTIONS_SECONDS: f64 = 40.0;

/// The benchmark, with the arguments of `scripts/bench`. It runs in the root of the checkout.
fn main() -> ExitCode {
    stop::run_tool("bench", || {
        let arguments: Vec<_> = std::env::args().skip(1).collect();
        let task = Task::parse(&arguments)?;
        stop::catch_signals();
        unless_stopped(move || perform(task, &arguments))??;
        Ok(ExitCode::SUCCESS)
    })
}

fn perform(task: Task, arguments: &[String]) -> Result<(), Stop> {
    let is_free = match &task {
        Task::Measure(plan) => plan.unpinned,
        Task::Instructions { .. } => true,
        Task::Fleet(_) => false,
    };
    let pinning = if is_free { Pinning::none() } else { Pinning::of_this_machine() };
    let machine = machine::describe(&pinning);
    machine::bind(&pinning);
    let servers = Servers { pinning };
    match task {
        Task::Instructions { update } => count_instructions(&servers, update),
        Task::Fleet(workers) => {
            println!("{}", connections::measure(&servers, &workers)?);
            machine.iter().for_each(|(name, what)| println!("{name}: {what}"));
            Ok(())
        }
        Task::Measure(plan) => {
            let flags = if arguments.is_empty() { "none".to_owned() } else { arguments.join(" ") };
            let machine = [machine, vec![("flags", flags)]].concat();
            measure(&servers, *plan, machine)
        }
    }
}

/// Measures, and reports.
fn measure(
    servers: &Servers,
    plan: Plan,
    machine: Vec<(&'static str, String)>,
) -> Result<(), Stop> {
    let publish = plan.publish;
    let results = measured(servers, plan, machine)?;
    let directory =
        PathBuf::from(format!("build/bench/{}", run("date", &["+%Y%m%d-%H%M%S"]).trim()));
    fs::create_dir_all(&directory).expect("create the directory of the report");
    let text = report::write(&directory, &results);
    let json = serde_json::to_string_pretty(&results.as_json()).expect("JSON") + "\n";
    for (name, content) in [("results.json", &json), ("README.md", &text)] {
        fs::write(directory.join(name), content).expect("write the report");
    }
    println!("{text}");
    eprintln!("==> wrote {}/", directory.display());
    if !results.wrong_answers().is_empty() {
        let what = "what was measured is not what should have been: see the report";
        return Err(Stop::Failure(what.to_owned()));
    }
    if publish {
        publication::publish(&directory, &report::goals_table(&results))?;
    }
    Ok(())
}

/// The results of a run.
fn measured(
    servers: &Servers,
    plan: Plan,
    machine: Vec<(&'static str, String)>,
) -> Result<Results, Stop> {
    let settings = plan.settings;
    let rounds = settings.rounds as f64;
    let cases: f64 = plan.cases.iter().map(|case| case.seconds(&settings) * rounds).sum();
    let scales: f64 = plan.scales.iter().map(|scale| scale.seconds(&settings)).sum();
    let counting = if plan.instructions { INSTRUCTIONS_SECONDS } else { 0.0 };
    let mut progress = Progress::of(cases + scales + counting);

    let fleet = Fleet::start(servers, &settings.directives)?;
    let command = fleet.command("free").0.clone();
    let mut bench = Bench { servers, settings: &settings, progress: &mut progress, fleet };
    plan.cases.iter().for_each(|case| case.prepare(&bench));
    let mut cases: Vec<_> = plan.cases.iter().map(|case| (*case, Vec::new())).collect();
    for number in 0..settings.rounds {
        for (case, rounds) in &mut cases {
            rounds.push(case.round(&mut bench, number)?);
        }
    }
    let mut scales = Vec::new();
    for scale in plan.scales {
        scales.push((scale, scale.run(&mut bench)?));
    }
    drop(bench);
    let mut figures = Vec::new();
    if plan.instructions {
        progress.step("instructions", counting);
        figures = instructions::measure(servers, &instructions::VARIANTS)?;
    }
    progress.end();
    let pinning = servers.pinning.clone();
    Ok(Results { machine, settings, pinning, cases, scales, instructions: figures, command })
}

/// Counts instructions, and writes the figures down or fails where they have grown.
fn count_instructions(servers: &Servers, update: bool) -> Result<(), Stop> {
    let variants = if update { &instructions::VARIANTS[..] } else { &[MODULE] };
    let figures = instructions::measure(servers, variants)?;
    let committed = instructions::committed();
    println!("{}", report::instructions_table(&figures, &committed));
    if update {
        instructions::commit(&figures);
        return Ok(());
    }
    let grown = instructions::grown(&figures, &committed);
    match grown.is_empty() {
        true => Ok(()),
        false => Err(Stop::Failure(format!("more than 5 % worse: {}", grown.join("; ")))),
    }
}
