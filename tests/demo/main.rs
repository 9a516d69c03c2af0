//! The demo of `scripts/run`: a Redis and three nginx that share it, a burst of requests through all of them, and what became of it.

#![warn(missing_docs)]

mod burst;
mod directory;
mod fleet;
mod guide;
mod keyboard;
mod log;
mod options;
mod sample;
mod site;
mod store;

use std::io::{self, Write as _};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use burst::Burst;
use directory::Directory;
use fleet::Fleet;
use harness::stop::{self, Stop, unless_stopped};
use keyboard::Keyboard;
use options::Options;
use sample::sample;
use site::Plan;
use store::Store;

/// Keys and signals are seen after this time at the latest.
const TURN: Duration = Duration::from_millis(100);

/// How many turns it takes until the servers are looked after again.
const ROUND: u32 = 10;

/// Progress, which goes to stderr.
fn say(message: &str) {
    let _ = writeln!(io::stderr(), "==> {message}");
}

/// The demo, with the arguments of `scripts/run`. It runs in the root of the checkout.
fn main() -> ExitCode {
    stop::run_tool("run", || {
        let options = Options::parse(std::env::args().skip(1))?;
        stop::catch_signals();
        demo(options)
    })
}

/// Text for the user, which goes to stdout. The demo goes on where nobody reads it.
fn show(text: &str) {
    let _ = io::stdout().write_all(text.as_bytes());
}

/// The servers end in the reverse order: nginx first, or it would complain of a Redis that is gone.
fn demo(options: Options) -> Result<ExitCode, Stop> {
    let module = build()?;
    let directory = Directory::make();
    let (path, kind) = (directory.path().to_owned(), options.store.clone());
    let mut store = unless_stopped(move || Store::start(&kind, &path))?;
    let plan =
        Plan { directory: directory.path().to_owned(), module, store: store.directives.clone() };
    let mut fleet = unless_stopped(move || Fleet::start(plan, options.port))??;
    let machines = fleet.addresses();
    let urls: Vec<_> = machines.iter().map(|machine| format!("http://{machine}")).collect();
    say(&format!("three nginx serve {}", urls.join(" ")));
    if !unless_stopped(move || fleet::reach_redis(&machines))? {
        let _ = write!(io::stderr(), "{}", fleet.error_logs());
        return Err(Stop::Failure("nginx does not reach Redis".to_owned()));
    }

    let is_limited = show_burst(&urls, &fleet)?;
    let api = format!("{}/api", urls[0]);
    unless_stopped(move || {
        sample(429, &[&api]);
        // Another client address, with a budget of its own.
        sample(200, &["--interface", "127.0.0.2", &api]);
    })?;
    if options.once {
        return Ok(if is_limited { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    stay(&urls, &mut fleet, &mut store)
}

/// Builds the module, and returns its path. The script shows what fails.
fn build() -> Result<String, Stop> {
    let mut script = Command::new("scripts/build");
    let output = script.stdin(Stdio::inherit()).stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("scripts/build: {error}"))?;
    stop::check()?;
    if !output.status.success() {
        return Err(Stop::Silent(1));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().last().unwrap_or_default().to_owned())
}

/// Sends the burst, shows what became of it, and returns whether it was limited as configured.
fn show_burst(urls: &[String], fleet: &Fleet) -> Result<bool, Stop> {
    say(&burst::announcement());
    let targets = urls.to_vec();
    let burst = unless_stopped(move || Burst::send(&targets))?;
    show(&burst.to_string());
    let is_limited = burst.is_limited();
    if !is_limited {
        let _ = write!(io::stderr(), "{}{}", burst.reports(), fleet.last_errors());
    }
    Ok(is_limited)
}

/// Shows each request and obeys keys. Nothing ends this but the user: not a server that dies, and not the end of the
/// input.
fn stay(urls: &[String], fleet: &mut Fleet, store: &mut Store) -> Result<ExitCode, Stop> {
    let mut keyboard = Keyboard::find(store.has_servers());
    show(&guide::guide(urls, &store.hints, keyboard.is_there()));
    say("each request from now on, but for the traffic of the page; Ctrl-C ends");
    log::show_from_now(fleet.access_logs());
    loop {
        for _ in 0..ROUND {
            thread::sleep(TURN);
            for key in keyboard.pressed() {
                match key {
                    b'k' => store.kill(),
                    b'f' => store.freeze(),
                    b's' => store.start_again(),
                    _ => (),
                }
            }
            stop::check()?;
        }
        fleet.look_after();
        store.look_after();
    }
}
