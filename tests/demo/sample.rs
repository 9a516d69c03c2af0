//! A request as the user may send it.

use super::show;

/// The beginnings of the lines that are shown, in lower case.
const SHOWN: [&str; 4] = ["http", "x-ratelimit", "ratelimit", "retry-after"];

/// Shows an answer of curl with this status. A token may just have come back, so a few are asked for.
pub fn sample(status: u16, arguments: &[&str]) {
    show(&format!("\n$ curl --include {}\n", arguments.join(" ")));
    let curl = [&["--silent", "--noproxy", "*", "--include"], arguments].concat();
    let mut answer = String::new();
    for _ in 0..5 {
        answer = harness::run("curl", &curl);
        if answer.starts_with(&format!("HTTP/1.1 {status}")) {
            break;
        }
    }
    for line in answer.lines() {
        let name = line.to_ascii_lowercase();
        if SHOWN.iter().any(|start| name.starts_with(start)) {
            show(&format!("{line}\n"));
        }
    }
}
