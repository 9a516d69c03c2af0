//! The bounds of what a fleet costs its servers, and of how soon it is well again: whatever happens, work that is
//! thrown away is bounded, and there is no state from which the fleet does not return by itself.

use std::ops::Range;

use super::record::{Sample, most_in_a_second, sum};
use super::*;

/// So many workers of one server, which starts with them.
fn shape(deployment: DeploymentKind, workers: usize) -> Shape {
    Shape {
        workers,
        deployment,
        nodes: if deployment == DeploymentKind::Cluster { 8 } else { 1 },
        has_tls: false,
        rate: 2_000.0 / workers as f64,
        load: 0.7,
        start: 100 * MILLISECOND,
        latency: 100,
        timeout: 20 * MILLISECOND,
        has_lost_seed: false,
        seed: 1,
    }
}

/// Seconds, as a time.
fn at(seconds: f64) -> u64 {
    (seconds * SECOND as f64) as u64
}

/// Which share of the requests of a span of time was not decided.
fn undecided(fleet: &Fleet, seconds: Range<f64>) -> f64 {
    let samples = fleet.record().during(at(seconds.start)..at(seconds.end));
    let requests = sum(samples, |sample| sample.requests);
    sum(samples, |sample| sample.undecided) as f64 / requests.max(1) as f64
}

/// The most that happens in any second of a span of time, for each worker.
fn most(fleet: &Fleet, seconds: Range<f64>, what: impl Fn(&Sample) -> u64) -> f64 {
    let samples = fleet.record().during(at(seconds.start)..at(seconds.end));
    most_in_a_second(samples, what) as f64 / fleet.shape.workers as f64
}

/// How much happens in a span of time, for each worker.
fn total(fleet: &Fleet, seconds: Range<f64>, what: impl Fn(&Sample) -> u64) -> f64 {
    let samples = fleet.record().during(at(seconds.start)..at(seconds.end));
    sum(samples, what) as f64 / fleet.shape.workers as f64
}

/// Runs a fleet from a time on until all workers are connected, and returns how long that takes, in seconds. Panics
/// if it takes longer than `most`.
fn seconds_until_ready(fleet: &mut Fleet, since: f64, most: f64) -> f64 {
    let all = fleet.shape.workers * fleet.shape.nodes;
    for tenth in 1..=(most * 10.0).ceil() as u64 {
        fleet.run(at(since) + tenth * record::SPAN);
        if fleet.ready() >= all {
            return tenth as f64 / 10.0;
        }
    }
    panic!("{} of {all} are ready after {most} s", fleet.ready())
}

/// How long a handshake takes the server, in seconds.
fn handshake(has_tls: bool) -> f64 {
    // The other traffic of the client is small.
    let nanos = cost::ACCEPT + 40_000 + if has_tls { cost::TLS } else { 0 };
    nanos as f64 / 1e9
}

/// All workers of one server connect at once, as it starts, and again when it restarts.
fn connect_at_once(workers: usize, has_tls: bool) {
    let shape = Shape { has_tls, load: 0.0, ..shape(DeploymentKind::Single, workers) };
    let mut fleet = Fleet::new(shape);
    let longest = 2.0 * workers as f64 * handshake(has_tls) + 1.0;
    seconds_until_ready(&mut fleet, 0.0, longest);
    fleet.run(at(10.0));
    let made = total(&fleet, 0.0..10.0, |sample| sample.accepted);
    assert!(made <= 1.3, "{made} connections for each worker at the start");
    fleet.schedule(at(10.0) + 1, Step::Kill(0));
    fleet.schedule(at(11.0) + 1, Step::Restart(0));
    fleet.run(at(11.0));
    seconds_until_ready(&mut fleet, 11.0, longest);
    fleet.run(at(20.0));
    let made = total(&fleet, 11.0..20.0, |sample| sample.accepted);
    assert!(made <= 1.3, "{made} connections for each worker after the restart");
}

#[test]
fn the_same_seed_is_the_same_fleet() {
    let samples = |seed| {
        let mut fleet = Fleet::new(Shape { seed, ..shape(DeploymentKind::Cluster, 40) });
        fleet.schedule(at(1.0), Step::Kill(0));
        fleet.run(at(5.0));
        std::mem::take(&mut fleet.record.samples)
    };
    assert_eq!(samples(1), samples(1));
    assert_ne!(samples(1), samples(2));
}

#[test]
fn nothing_is_wrong_with_a_fleet_that_is_left_alone() {
    for deployment in [DeploymentKind::Single, DeploymentKind::Sentinel, DeploymentKind::Cluster] {
        let mut fleet = Fleet::new(shape(deployment, 200));
        fleet.run(at(15.0));
        assert_eq!(fleet.ready() % 200, 0);
        assert_eq!(undecided(&fleet, 1.0..14.0), 0.0, "{deployment:?}");
        assert_eq!(total(&fleet, 1.0..15.0, |sample| sample.attempts + sample.lines), 0.0);
        let queries = most(&fleet, 1.0..15.0, |sample| sample.queries);
        assert!(queries <= 1.5, "{deployment:?}: {queries} queries of each worker in a second");
        let busy = fleet.record().samples.iter().map(|sample| sample.busy);
        let busy = busy.skip(20).fold(0.0, f64::max);
        assert!((0.6..0.8).contains(&busy), "{deployment:?}: {busy}");
    }
}

#[test]
fn workers_connect_at_once() {
    connect_at_once(1_024, false);
}

/// Machine by machine, all workers are replaced.
#[test]
fn a_reload_costs_as_many_connections_as_there_are() {
    for has_tls in [false, true] {
        let shape = Shape { has_tls, load: 0.5, ..shape(DeploymentKind::Cluster, 320) };
        let mut fleet = Fleet::new(shape);
        for machine in 0..40 {
            let workers = machine * 8..(machine + 1) * 8;
            fleet.schedule(at(10.0 + machine as f64 / 10.0) + 1, Step::Reload(workers));
        }
        fleet.run(at(20.0));
        let made = total(&fleet, 10.0..20.0, |sample| sample.accepted) / 8.0;
        assert!(made <= 1.3, "{made} connections for each");
        let share = undecided(&fleet, 10.0..19.0);
        assert!(share <= 0.01, "{share} were not decided");
    }
}

/// A server is too slow for a while: what it could not do then does not keep it busy later.
fn slow_down(has_tls: bool) {
    let mut fleet = Fleet::new(Shape { has_tls, ..shape(DeploymentKind::Single, 400) });
    fleet.schedule(at(10.0), Step::Slow(0, 5.0));
    fleet.schedule(at(20.0), Step::Slow(0, 1.0));
    fleet.run(at(45.0));
    let later = undecided(&fleet, 30.0..44.0);
    assert!(later <= 0.01, "{later} were not decided later");
    let made = most(&fleet, 10.0..45.0, |sample| sample.accepted);
    assert!(made <= 4.0, "{made} connections of each worker in a second");
}

#[test]
fn a_server_that_was_slow_is_well_soon() {
    slow_down(false);
}

/// A server takes only half of the workers: the others do not disturb them.
#[test]
fn workers_that_are_refused_do_no_harm() {
    let mut fleet = Fleet::new(shape(DeploymentKind::Single, 400));
    fleet.schedule(0, Step::MaxClients(0, 200));
    fleet.run(at(20.0));
    let share = undecided(&fleet, 10.0..19.0);
    assert!(share <= 0.51, "{share} were not decided");
}

/// A replica takes the place of its master, which is shut down then: what was not sent yet goes to the new master.
#[test]
fn a_planned_failover_loses_nothing_that_was_not_sent() {
    let calm = shape(DeploymentKind::Cluster, 200);
    let rate = 4.0 * calm.rate;
    let (latency, timeout) = (2 * MILLISECOND, SECOND);
    let mut fleet = Fleet::new(Shape { latency, timeout, rate, load: 0.1, ..calm });
    for (second, master) in (3..7).zip(0..) {
        let start = f64::from(second);
        fleet.schedule(at(start), Step::Switch(master));
        fleet.schedule(at(start + 0.2), Step::Kill(master));
    }
    fleet.run(at(9.0));
    let samples = fleet.record().during(at(0.0)..at(9.0));
    assert_eq!(sum(samples, |sample| sample.unsent), 0);
}

/// The slots of keys that are used all the time move, to nodes that may know no script.
#[test]
fn slots_move_unnoticed() {
    let calm = shape(DeploymentKind::Cluster, 100);
    let mut fleet = Fleet::new(Shape { rate: 2.0 * calm.rate, load: 0.1, ..calm });
    for number in 0..40 {
        let (one, other) = (number % 4, 4 + number % 4);
        let (from, to) = if number % 8 < 4 { (one, other) } else { (other, one) };
        fleet.schedule(at(1.0 + number as f64 / 10.0), Step::Move(from, to, 1));
    }
    fleet.run(at(6.0));
    let share = undecided(&fleet, 1.0..5.9);
    assert!(share <= 0.001, "{share} were not decided");
}

/// The sentinel beside the master: it does not learn of any failover.
const STALE: ServerId = 0;

/// A fleet whose master and a sentinel are cut off from the other servers, but not from the workers.
fn split() -> (Fleet, ServerId) {
    let mut fleet = Fleet::new(shape(DeploymentKind::Sentinel, 60));
    let old = fleet.masters()[0];
    fleet.schedule(at(2.0), Step::Isolate(STALE));
    fleet.schedule(at(2.0) + 1, Step::Isolate(old));
    (fleet, old)
}

/// Another master takes its place, and all workers go to that, whether the old one refuses writes or not.
#[test]
fn a_split_brain_ends() {
    for refuses in [true, false] {
        let (mut fleet, old) = split();
        if refuses {
            fleet.schedule(at(2.0) + 2, Step::Refuse(old, Unfit::NoReplicas));
        }
        fleet.run(at(30.0));
        assert_eq!(fleet.masters().len(), 2);
        let later = undecided(&fleet, 6.0..29.0);
        assert_eq!(later, 0.0, "{later} were not decided later");
        let at_old = fleet.deployment.servers[old].connections();
        assert_eq!(at_old, 0, "workers that use the old master");
        let queries = most(&fleet, 1.0..30.0, |sample| sample.queries);
        assert!(queries <= 4.0, "{queries} queries of each worker in a second");
    }
}

/// It misses two failovers, and the master that it knows still decides.
#[test]
fn a_sentinel_that_never_learns_leads_nobody_away() {
    let (mut fleet, old) = split();
    fleet.run(at(6.0));
    let successor = fleet.masters().into_iter().find(|master| *master != old).expect("a master");
    fleet.schedule(at(6.0) + 1, Step::Switch(successor));
    for second in 10..40 {
        fleet.run(at(f64::from(second)));
        let at_old = fleet.deployment.servers[old].connections();
        assert_eq!(at_old, 0, "workers that use the old master after {second} s");
    }
    let later = undecided(&fleet, 8.0..39.0);
    assert_eq!(later, 0.0, "{later} were not decided later");
}

#[test]
fn workers_connect_at_once_over_tls() {
    connect_at_once(1_024, true);
}

/// A server that is gone is tried ever more rarely, but often enough that all find within a second that it is back.
/// An attempt costs a packet, which the kernel refuses. First commands wait behind the handshakes of others, for
/// longer than a second: that is no reason to connect again.
#[test]
fn thousands_of_workers_connect_once_under_load() {
    const WORKERS: usize = 4_000;
    let rate = 0.5;
    let shape = Shape { has_tls: true, rate, ..shape(DeploymentKind::Single, WORKERS) };
    let longest = 2.0 * WORKERS as f64 * handshake(true) + 1.0;
    let mut fleet = Fleet::new(shape);
    fleet.schedule(at(20.0) + 1, Step::Kill(0));
    fleet.schedule(at(21.0) + 1, Step::Restart(0));
    fleet.run(at(40.0));
    for since in [0.0, 21.0] {
        let accepted = total(&fleet, since..since + longest, |sample| sample.accepted);
        assert!(accepted <= 1.3, "{accepted} connections for each worker at {since}");
        let undecided = undecided(&fleet, since + longest..since + longest + 2.0);
        assert!(undecided < 0.01, "{undecided} at {since}");
    }
}

#[test]
fn a_server_that_is_gone_is_tried_rarely() {
    let mut fleet = Fleet::new(shape(DeploymentKind::Single, 200));
    fleet.schedule(at(2.0) + 1, Step::Kill(0));
    fleet.run(at(30.0));
    let first = most(&fleet, 2.0..30.0, |sample| sample.attempts);
    assert!(first <= 10.0, "{first} attempts of each worker in a second");
    let last = most(&fleet, 20.0..30.0, |sample| sample.attempts);
    assert!(last <= 1.5, "{last} attempts of each worker in a second");
}

/// A master fails: until another one has taken its place, only its own requests are not decided.
#[test]
fn a_failover_ends() {
    for deployment in [DeploymentKind::Sentinel, DeploymentKind::Cluster] {
        let mut fleet = Fleet::new(shape(deployment, 400));
        let share = 1.0 / fleet.shape.nodes as f64;
        let master = fleet.masters()[0];
        fleet.schedule(at(5.0) + 1, Step::Kill(master));
        fleet.schedule(at(20.0), Step::Restart(master));
        fleet.run(at(30.0));
        let fault = undecided(&fleet, 5.0..8.0);
        assert!(fault <= share * 1.1 + 0.01, "{deployment:?}: {fault} were not decided");
        let later = undecided(&fleet, 9.0..29.0);
        assert!(later <= 0.01, "{deployment:?}: {later} were not decided later");
        let queries = most(&fleet, 1.0..30.0, |sample| sample.queries);
        assert!(queries <= 4.0, "{deployment:?}: {queries} queries of each worker in a second");
    }
}

/// Slots without an owner: the others are served, and the servers are not queried to death.
#[test]
fn a_hole_costs_little() {
    let mut fleet = Fleet::new(shape(DeploymentKind::Cluster, 100));
    fleet.schedule(at(2.0), Step::TakeSlots);
    fleet.schedule(at(12.0), Step::ReturnSlots);
    fleet.run(at(20.0));
    let queries = most(&fleet, 3.0..12.0, |sample| sample.queries);
    assert!(queries <= 2.0, "{queries} queries of each worker in a second");
    let attempts = most(&fleet, 3.0..20.0, |sample| sample.attempts);
    assert!(attempts <= 1.0, "{attempts} attempts of each worker in a second");
    assert!(undecided(&fleet, 13.0..19.0) <= 0.01);
}

/// A server takes only half of the workers: the others are refused, which costs it something each time.
#[test]
fn workers_that_are_refused_come_back_rarely() {
    let mut fleet = Fleet::new(shape(DeploymentKind::Single, 400));
    fleet.schedule(0, Step::MaxClients(0, 200));
    fleet.run(at(30.0));
    let refused = most(&fleet, 10.0..30.0, |sample| sample.refused);
    assert!(refused <= 0.5, "{refused} refusals of each worker in a second");
    let share = undecided(&fleet, 10.0..29.0);
    assert!(share <= 0.51, "{share} were not decided");
}

/// Any faults, one after the other and at once: ten seconds after the last one has ended, 99 of 100 requests are
/// decided in each second, and at no time is a server asked for too much.
#[test]
fn a_fleet_returns_from_any_state() {
    for seed in 1..=6 {
        let mut rng = Rng::with_seed(seed);
        let kinds = [DeploymentKind::Single, DeploymentKind::Sentinel, DeploymentKind::Cluster];
        let kind = kinds[rng.usize(0..kinds.len())];
        let shape = Shape { has_tls: rng.bool(), seed, ..shape(kind, rng.usize(50..400)) };
        let workers = shape.workers;
        let mut fleet = Fleet::new(shape);
        let masters = fleet.masters();
        let mut ended = 0.0_f64;
        for _ in 0..rng.usize(1..5) {
            let (start, length) = (2.0 + 8.0 * rng.f64(), 0.1 + 4.0 * rng.f64());
            let master = masters[rng.usize(0..masters.len())];
            let (step, end) = match rng.u32(0..4) {
                0 => (Step::Kill(master), Step::Restart(master)),
                1 => (Step::Slow(master, 4.0 + 16.0 * rng.f64()), Step::Slow(master, 1.0)),
                2 if kind == DeploymentKind::Cluster => (Step::TakeSlots, Step::ReturnSlots),
                _ => (Step::Reload(0..workers), Step::Reload(0..workers / 2)),
            };
            fleet.schedule(at(start), step);
            fleet.schedule(at(start + length), end);
            ended = ended.max(start + length);
        }
        fleet.run(at(ended + 20.0));
        let mut seconds = 10..19;
        let is_bad = |second: &i32| {
            let start = ended + f64::from(*second);
            undecided(&fleet, start..start + 1.0) > 0.01
        };
        assert_eq!(seconds.find(is_bad), None, "not decided after the faults of seed {seed}");
        // A worker is connected to each sentinel too. Two reloads in a second replace it twice and a half.
        let servers = masters.len() + if kind == DeploymentKind::Sentinel { 3 } else { 0 };
        let made = most(&fleet, 0.0..ended + 20.0, |sample| sample.accepted) / servers as f64;
        assert!(made <= 3.0, "{made} connections to each server in a second, seed {seed}");
    }
}

#[test]
fn a_server_that_was_slow_is_well_soon_over_tls() {
    slow_down(true);
}

/// The configuration names a server that never returns.
#[test]
fn a_seed_that_is_gone_is_forgotten() {
    let mut fleet =
        Fleet::new(Shape { has_lost_seed: true, ..shape(DeploymentKind::Cluster, 100) });
    fleet.run(at(30.0));
    let attempts = most(&fleet, 1.0..30.0, |sample| sample.attempts);
    assert_eq!(attempts, 0.0, "attempts of each worker in a second");
    assert_eq!(undecided(&fleet, 5.0..29.0), 0.0);
}

/// A server hangs while another one fails: a worker that queries it for the topology does not wait for it.
#[test]
fn a_server_that_hangs_holds_up_no_topology() {
    let calm = shape(DeploymentKind::Cluster, 100);
    let mut fleet = Fleet::new(Shape { timeout: 6 * SECOND, rate: 2.0 * calm.rate, ..calm });
    let masters = fleet.masters();
    fleet.schedule(at(5.0), Step::Slow(masters[0], 1e6));
    fleet.schedule(at(5.2), Step::Kill(masters[1]));
    fleet.run(at(15.0));
    // The others have found within 2.4 s that it is down.
    let share = undecided(&fleet, 9.0..10.9);
    let hung = 1.0 / masters.len() as f64;
    assert!(share <= hung + 0.002, "{share} were not decided");
}
