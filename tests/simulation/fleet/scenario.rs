//! The events of a fleet, drawn one after the other: it starts, a server restarts, a master fails over, slots lose
//! their owners, and NGINX is reloaded machine by machine.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use rate_limit_core::rate::{MILLISECOND, SECOND};

use super::drawing::draw;
use super::record::{Sample, most_in_a_second, sum};
use super::{DeploymentKind, Fleet, Shape, Step};

/// How long a server is away that restarts, in µs.
const RESTART: u64 = SECOND;

/// How long slots have no owner, in µs.
const HOLE: u64 = 10 * SECOND;

/// Over which time all machines reload, in µs.
const RELOAD: u64 = 30 * SECOND;

/// How long it is watched what follows, in µs.
const AFTERMATH: u64 = 20 * SECOND;

/// How many requests a second are simulated of each worker. A worker that comes back has its share of the load
/// only from its next request on.
const SIMULATED: f64 = 0.5;

/// Which share of its core requests take of each server.
const LOAD: f64 = 0.7;

/// One thing that happens, and what follows.
#[derive(Clone, Copy, Debug)]
pub struct Phase {
    pub event: Event,
    pub start: u64,
    pub end: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Start,
    Restart,
    Failover,
    Hole,
    Reload,
}

impl Event {
    pub fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Restart => "restart",
            Self::Failover => "failover",
            Self::Hole => "hole",
            Self::Reload => "reload",
        }
    }

    fn length(self) -> u64 {
        match self {
            Self::Hole => HOLE + AFTERMATH,
            Self::Reload => RELOAD + AFTERMATH,
            Self::Start | Self::Restart | Self::Failover => AFTERMATH,
        }
    }

    fn can_happen(self, deployment: DeploymentKind) -> bool {
        match self {
            Self::Failover => deployment != DeploymentKind::Single,
            Self::Hole => deployment == DeploymentKind::Cluster,
            Self::Start | Self::Restart | Self::Reload => true,
        }
    }
}

/// The phases of a fleet of this shape.
fn phases(shape: &Shape) -> Vec<Phase> {
    let mut start = 0;
    let all = [Event::Start, Event::Restart, Event::Failover, Event::Hole, Event::Reload];
    let phase = |event: Event| {
        let phase = Phase { event, start, end: start + event.length() };
        start = phase.end;
        phase
    };
    all.into_iter().filter(|event| event.can_happen(shape.deployment)).map(phase).collect()
}

/// Has all of that happen. There are so many workers on each machine.
fn schedule(fleet: &mut Fleet, phases: &[Phase], on_each: usize) {
    let masters = fleet.masters();
    for phase in phases {
        // After the last sample of the phase before.
        let start = phase.start + 1;
        match phase.event {
            Event::Start => {}
            Event::Restart => {
                fleet.schedule(start, Step::Kill(masters[0]));
                fleet.schedule(start + RESTART, Step::Restart(masters[0]));
            }
            Event::Failover => {
                let master = masters[masters.len() - 1];
                fleet.schedule(start, Step::Kill(master));
                fleet.schedule(start + AFTERMATH / 2, Step::Restart(master));
            }
            Event::Hole => {
                fleet.schedule(start, Step::TakeSlots);
                fleet.schedule(start + HOLE, Step::ReturnSlots);
            }
            Event::Reload => {
                let workers = fleet.shape.workers;
                let machines = workers.div_ceil(on_each);
                for machine in 0..machines {
                    let at = start + RELOAD * machine as u64 / machines as u64;
                    let (first, end) = (machine * on_each, (machine + 1) * on_each);
                    fleet.schedule(at, Step::Reload(first..end.min(workers)));
                }
            }
        }
    }
}

/// A line about a phase.
fn describe(fleet: &Fleet, phase: &Phase) -> String {
    let samples = fleet.record().during(phase.start..phase.end);
    let most = |what: fn(&Sample) -> u64| most_in_a_second(samples, what);
    let undecided = sum(samples, |sample| sample.undecided) as f64;
    let requests = sum(samples, |sample| sample.requests).max(1) as f64;
    let last = samples.iter().rposition(|sample| sample.undecided * 100 > sample.requests);
    let busiest = samples.iter().map(|sample| sample.busiest).fold(0.0, f64::max);
    format!(
        "{:<8} {:>6.2} % undecided, under 1 % after {:>4.1} s; {:>8} attempts to connect, {:>7} in a second; \
         {:>8} accepted, {:>7} refused; {:>6} queries in a second; busiest core {:>3.0} %; {:>7} open",
        phase.event.name(),
        100.0 * undecided / requests,
        last.map_or(0.0, |index| (index + 1) as f64 / 10.0),
        sum(samples, |sample| sample.attempts),
        most(|sample| sample.attempts),
        sum(samples, |sample| sample.accepted),
        sum(samples, |sample| sample.refused),
        most(|sample| sample.queries),
        100.0 * busiest,
        samples.last().map_or(0, |sample| sample.open),
    )
}

/// The size of a fleet.
#[derive(Debug, PartialEq, Eq)]
pub struct Size {
    pub machines: usize,
    /// How many workers each machine has.
    pub workers: usize,
    /// How many servers share the keys.
    pub nodes: usize,
    pub has_tls: bool,
}

impl Size {
    fn shape(&self) -> Shape {
        Shape {
            workers: self.machines * self.workers,
            deployment: match self.nodes {
                1 => DeploymentKind::Single,
                _ => DeploymentKind::Cluster,
            },
            nodes: self.nodes,
            has_tls: self.has_tls,
            rate: SIMULATED,
            load: LOAD,
            start: 100 * MILLISECOND,
            latency: 100,
            timeout: 20 * MILLISECOND,
            has_lost_seed: false,
            seed: 1,
        }
    }
}

/// Simulates a fleet, and draws it into a file; the error is a message.
pub fn draw_to(path: &Path, size: &Size) -> Result<(), String> {
    let failed = |error| format!("{}: {error}", path.display());
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    // Before a simulation that may take long.
    let mut file = File::create(path).map_err(failed)?;
    let drawing = simulate(size, |line| println!("{line}"));
    file.write_all(drawing.as_bytes()).map_err(failed)?;
    eprintln!("==> drew {}", path.display());
    Ok(())
}

/// The drawing of a fleet; `tell` gets a line about each phase once it is over.
fn simulate(size: &Size, mut tell: impl FnMut(String)) -> String {
    let shape = size.shape();
    let phases = phases(&shape);
    let mut fleet = Fleet::new(shape);
    schedule(&mut fleet, &phases, size.workers);
    for phase in &phases {
        fleet.run(phase.end);
        tell(describe(&fleet, phase));
    }
    let Size { machines, workers, nodes, .. } = size;
    let title = format!("{machines} machines of {workers} workers, {nodes} Redis servers");
    draw(&title, &fleet.record().samples, &phases)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_drawn_in_five_phases() {
        let size = Size { machines: 2, workers: 2, nodes: 2, has_tls: false };
        let mut lines = Vec::new();
        let drawing = simulate(&size, |line| lines.push(line));
        let names: Vec<_> = lines.iter().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(names, ["start", "restart", "failover", "hole", "reload"]);
        assert!(drawing.contains("2 machines of 2 workers, 2 Redis servers"), "{drawing}");
    }
}
