//! The commands of docs/capacity.md, which read an access log, and its table of keys.

use std::collections::BTreeSet;
use std::fs;

use harness::run;
use rate_limit_core::limit::Algorithm;

use crate::documents::examples::read;

/// Each algorithm has a row that says how long it keeps a key.
#[test]
fn every_algorithm_has_its_row() {
    let page = read("../docs/capacity.md");
    let (_, table) = page.split_once("\n| algorithm | ").expect("a table");
    let rows = table.lines().skip(2).map_while(|line| line.split('|').nth(1));
    let named = rows.flat_map(|row| row.split('`').skip(1).step_by(2));
    let named: BTreeSet<_> = named.filter_map(|name| name.split(' ').next()).collect();
    assert_eq!(named, BTreeSet::from(Algorithm::ALL.map(Algorithm::name)));
}

/// The output for an access log of the command of the page that holds `mark`.
fn output(mark: &str, log: &str) -> String {
    let page = read("../docs/capacity.md");
    let mut commands = page.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let command = commands.find(|command| command.contains(mark)).expect("a command");
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("access.log"), log).expect("write the log");
    run("sh", &["-c", &format!("cd {} && {command}", folder.path().display())])
}

/// A line of the log, so many seconds after midnight.
fn line(address: &str, seconds: u32) -> String {
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!(
        "{address} - - [25/Nov/2026:{hours:02}:{minutes:02}:{seconds:02} +0000] \
         \"GET / HTTP/1.1\" 200 5 \"-\" \"-\"\n"
    )
}

#[test]
fn the_busiest_minutes_are_found() {
    // 100 clients that send a request a minute, 98 that send two, and two that send more.
    let times = |n: u32| match n {
        0..100 => 1,
        100..198 => 2,
        198 => 30,
        _ => 70,
    };
    let client = |n: u32| {
        let request =
            move |k: u32| line(&format!("192.0.2.{n}"), 3600 + 60 * (k / times(n)) + k % 60);
        (0..2 * times(n)).map(request)
    };
    let log: String = (0..200).flat_map(client).collect();
    let expected = "clients 200, median 1, 99 % 2, 99.9 % 30, most 70\n";
    assert_eq!(output("minute", &log), expected);
}

#[test]
fn a_limit_is_replayed() {
    // Ten a second for ten seconds: 20 at first, and one for each second after that.
    let flood = (0..100).map(|k| line("192.0.2.1", 43_200 + k / 10));
    let calm = (0..50).map(|k| line("192.0.2.2", 43_210 + 2 * k));
    let log: String = flood.chain(calm).collect();
    assert_eq!(output("capacity", &log), "rejected 71 of 150 requests, 1 of 2 clients\n");
}
