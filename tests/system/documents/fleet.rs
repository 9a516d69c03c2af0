//! The fleet of `scripts/run`: three nginx that share a Redis, the page that shows them, and keys in the terminal.

use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::process::Command;

use harness::{Browser, Http, PATIENCE, Response, ScriptRun, free_port, wait_until};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The directory of the run.
fn directory(run: &ScriptRun) -> String {
    let output = run.output();
    let (_, rest) = output.split_once("starting redis-server in ").expect("a directory");
    rest.lines().next().expect("a line").trim().to_owned()
}

fn get(machine: SocketAddr, path: &str) -> Response {
    Http::connect(machine).get(path)
}

/// The processes that have a word in their command line.
fn processes_of(word: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("list processes").flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let has_word = |id: &u32| {
        let words = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&words).contains(word)
    };
    ids.filter(has_word).collect()
}

fn children_of(parent: u32) -> Vec<u32> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let children = fs::read_to_string(path).unwrap_or_default();
    children.split_whitespace().map(|id| id.parse().expect("an id")).collect()
}

/// All processes of a run, and the workers of its nginx, which do not name its directory.
fn family_of(directory: &str) -> Vec<u32> {
    let named = processes_of(directory);
    let workers = named.iter().flat_map(|id| children_of(*id));
    let mut family: Vec<_> = named.iter().copied().chain(workers).collect();
    family.sort();
    family.dedup();
    family
}

fn kill(signal: &str, process: u32) {
    harness::run("kill", &[signal, &process.to_string()]);
}

/// Waits until a run has left nothing.
fn is_gone(directory: &str, family: &[u32]) {
    let lives = |id: &&u32| fs::exists(format!("/proc/{id}")).expect("look for a process");
    let gone = || !family.iter().any(|id| lives(&id)) && !fs::exists(directory).expect("look");
    wait_until(PATIENCE, gone, "the end of all servers, and of their files");
}

fn number(browser: &Browser, selector: &str) -> u32 {
    browser.text(selector).parse().expect("a number")
}

/// Chooses traffic on the page.
fn choose(browser: &Browser, name: &str) {
    browser.click(&format!("#presets button:nth-child({})", position(browser, name)));
    let pressed = "document.querySelector('#presets [aria-pressed=true]').textContent";
    browser.wait_for(&format!("{pressed} === {name:?}"));
}

/// The page makes the buttons when it has got the list of presets.
fn position(browser: &Browser, name: &str) -> u64 {
    let buttons = "[...document.querySelectorAll('#presets button')]";
    browser.wait_for(&format!("{buttons}.length > 0"));
    let index =
        browser.run(&format!("return {buttons}.findIndex((b) => b.textContent === {name:?})"));
    index.as_u64().unwrap_or_else(|| panic!("no traffic {name}")) + 1
}

/// Waits until more requests than now have come to so many.
fn wait_for_more(browser: &Browser, outcome: &str) {
    let selector = format!("#fleet-tally .{outcome} b");
    let now = number(browser, &selector);
    browser.wait_for(&format!("+document.querySelector({selector:?}).textContent > {now}"));
}

fn wait_for_banner(browser: &Browser, beginning: &str) {
    browser.wait_for(&format!("banner.textContent.startsWith({beginning:?})"));
}

#[test]
fn three_nginx_share_a_budget() {
    let port = free_port();
    let mut run = ScriptRun::demo(&["--port", &port.to_string()]);
    let machines = run.machines();
    let output = run.output();
    assert!(output.contains("limited as configured"), "{output}");
    assert!(!output.contains("kill Redis"), "no keys without a terminal: {output}");
    assert_eq!(machines.len(), 3, "{output}");
    assert_eq!(machines[0].port(), port);
    assert!(machines[0].port() < machines[1].port() && machines[1].port() < machines[2].port());

    let served = machines.iter().map(|machine| get(*machine, "/").status);
    assert_eq!(served.collect::<Vec<_>>(), [200, 404, 404], "the page");
    let path = "/demo/token_bucket?n=1&per=1h&burst=9&key=me&side=fleet";
    for (spent, machine) in machines.iter().enumerate() {
        let page = get(*machine, "/metrics?format=json");
        assert_eq!(page.header("Cache-Control"), Some("no-store"));
        let answer = get(*machine, path);
        assert_eq!(answer.header("Cache-Control"), Some("no-store"));
        let policy = "\"demo_token_bucket\";q=1;w=3600";
        assert_eq!(answer.header("RateLimit-Policy"), Some(policy));
        let budget = format!("\"demo_token_bucket\";r={};", 8 - spent);
        let told = answer.header("RateLimit").expect("a budget");
        assert!(told.starts_with(&budget), "{told}");
        for path in ["/api", "/quota", "/gcra", "/search", "/login?user=me"] {
            assert_eq!(get(*machine, path).header("Cache-Control"), Some("no-store"), "{path}");
        }
    }
    // Only the page may read the answers of another machine.
    for (origin, is_allowed) in [(machines[0], true), (machines[1], false)] {
        let origin = format!("http://{origin}");
        let mut http = Http::connect(machines[2]);
        http.send("GET", path, &[("Origin", &origin)]);
        let allowed = http.read_response();
        let allowed = allowed.header("Access-Control-Allow-Origin");
        assert_eq!(allowed, is_allowed.then_some(origin.as_str()));
    }
}

/// Every kind of traffic is sent and drawn.
#[test]
fn the_page_sends_traffic_through_all_of_them() {
    let mut run = ScriptRun::demo(&[]);
    let machines = run.machines();
    let browser = Browser::start();
    browser.open(&format!("http://{}/", machines[0]));
    wait_for_banner(&browser, "No traffic.");
    browser.wait_for("document.querySelectorAll('#machines .state.up').length === 3");

    choose(&browser, "Steady");
    for outcome in ["passed", "rejected"] {
        wait_for_more(&browser, outcome);
        let drawn = format!("document.querySelector('#chart .{outcome}').getAttribute('d')");
        browser.wait_for(&format!("{drawn} !== ''"));
        browser.run(&format!("window.drawn = {drawn}"));
        browser.wait_for(&format!("{drawn} !== window.drawn"));
    }
    let each = "[...document.querySelectorAll('#machines li')]";
    browser.wait_for(&format!(
        "{each}.every((li) => +li.querySelector('.rejected b').textContent > 0)"
    ));
    for (index, machine) in machines.iter().enumerate() {
        let link = format!("#machines li:nth-child({}) a", index + 1);
        let link = browser.run(&format!("return document.querySelector({link:?}).href"));
        assert_eq!(link, format!("http://{machine}/metrics"));
        let counted = get(*machine, "/metrics");
        let line = "requests_total{name=\"demo_token_bucket\",result=\"rejected\"} ";
        let (_, rest) = counted.text().split_once(line).expect("a counter");
        assert!(!rest.starts_with("0\n"), "{machine} has rejected nothing");
    }
    browser.wait_for("/^Budget of visitor: \\d+ of 10 left$/.test(document.querySelector('#budget-reading').textContent)");
    browser.wait_for(
        "document.querySelector('#limit-shown').textContent.startsWith('limit 10/s, peak ')",
    );
    browser.wait_for("document.querySelector('#chart .limit').getAttribute('d').startsWith('M0 ')");

    // A rate of the user's own: nothing comes any more, then it does again.
    set_rate(&browser, 0);
    browser.wait_for("document.querySelector('#rate-shown').textContent === '0 a second'");
    browser
        .wait_for("document.querySelector('#budget-reading').textContent.includes(': 10 of 10 ')");
    set_rate(&browser, 100);
    wait_for_more(&browser, "rejected");

    each_preset_shows_what_it_is_for(&browser);
    fits_a_telephone(&browser);
}

#[track_caller]
fn each_preset_shows_what_it_is_for(browser: &Browser) {
    for (name, outcomes) in [
        ("Window edge", &["passed"][..]),
        ("Burst", &["passed", "delayed", "rejected"]),
        ("Login attack", &["rejected"]),
        ("Redis away", &["passed", "rejected"]),
        ("Noisy neighbour", &["passed", "rejected"]),
    ] {
        choose(browser, name);
        outcomes.iter().for_each(|outcome| wait_for_more(browser, outcome));
    }
    browser.wait_for("/^you: [1-9]\\d* of \\d+ passed · neighbour: /.test(clients.textContent)");
    browser.click("#start");
    wait_for_banner(browser, "No traffic.");
}

/// On a telephone what becomes of the traffic is in sight with what sends it.
#[track_caller]
fn fits_a_telephone(browser: &Browser) {
    browser.resize(360);
    browser.wait_for("innerWidth === 360");
    browser.run("scrollTo(0, 0)");
    for element in ["banner", "fleet-tally", "chart", "budget", "presets", "start"] {
        let bottom = format!("document.getElementById({element:?}).getBoundingClientRect().bottom");
        let bottom = browser.run(&format!("return {bottom}"));
        assert!(bottom.as_f64().expect("a place") <= 800.0, "{element} ends at {bottom}");
    }
}

fn set_rate(browser: &Browser, rate: u32) {
    browser.run(&format!("rate.value = {rate}; rate.dispatchEvent(new Event('input'))"));
}

#[test]
fn keys_end_and_start_redis_and_nothing_ends_the_demo() {
    let (mut run, mut keys) = ScriptRun::demo_in_terminal("");
    let machines = run.machines();
    for line in ["k  kill Redis", "f  freeze Redis", "s  start Redis"] {
        assert!(run.output().lines().any(|it| it.trim_end() == line), "{line}");
    }
    let directory = directory(&run);
    let mut press = |key: &str| keys.write_all(key.as_bytes()).expect("press a key");
    let browser = Browser::start();
    browser.open(&format!("http://{}/", machines[0]));
    choose(&browser, "Steady");
    wait_for_more(&browser, "passed");

    press("k");
    run.wait_for("Redis is killed", 1);
    wait_for_banner(&browser, "Redis is away");
    browser.wait_for("document.querySelectorAll('#machines .state.away').length === 3");
    wait_for_more(&browser, "passed");
    press("xs");
    run.wait_for("Redis starts", 1);
    wait_for_banner(&browser, "Each machine passes some of the requests");
    press("f");
    run.wait_for("Redis is frozen", 1);
    wait_for_banner(&browser, "Redis does not reply");
    press("s");
    run.wait_for("Redis goes on", 1);
    wait_for_banner(&browser, "Each machine passes some of the requests");

    // Processes that end by themselves.
    let redis = processes_of(&format!("unixsocket:{directory}/"));
    kill("-KILL", redis[0]);
    run.wait_for("Redis has ended", 1);
    press("s");
    run.wait_for("Redis starts", 2);
    let masters = processes_of(&format!("-p {directory}/nginx-"));
    kill("-KILL", children_of(masters[0])[0]);
    kill("-KILL", masters[1]);
    run.wait_for("has ended, and starts again", 1);
    wait_for_banner(&browser, "Each machine passes some of the requests");
    wait_for_more(&browser, "passed");

    // Redis is frozen when the user ends it.
    press("f");
    run.wait_for("Redis is frozen", 2);
    let family = family_of(&directory);
    assert!(family.len() > 8, "{family:?}");
    press("\u{3}");
    let (status, output) = run.end();
    assert_eq!(status, Some(130), "{output}");
    is_gone(&directory, &family);
}

/// Nothing is left by a run that has no time to clean up.
#[test]
fn a_run_that_is_killed_leaves_nothing() {
    let (mut run, mut keys) = ScriptRun::demo_in_terminal("");
    run.wait_for("Ctrl-C ends", 1);
    keys.write_all(b"f").expect("press a key");
    run.wait_for("Redis is frozen", 1);
    let directory = directory(&run);
    let family = family_of(&directory);
    assert!(family.len() > 8, "{family:?}");
    kill("-KILL", children_of(run.process.id())[0]);
    run.process.wait(PATIENCE);
    is_gone(&directory, &family);
}

#[test]
fn an_nginx_that_does_not_start_is_shown() {
    let folder = tempfile::tempdir().expect("a directory");
    let nginx = folder.path().join("nginx");
    let script = "#!/bin/sh
        case \"$*\" in *'daemon off;'*) echo no mood >&2; exit 1;; esac
        exec /usr/sbin/nginx \"$@\"";
    fs::write(&nginx, script).expect("write a script");
    harness::run("chmod", &["755", nginx.to_str().expect("a path")]);
    let mut command = Command::new(format!("{ROOT}/scripts/run"));
    let path = std::env::var("PATH").expect("a path");
    command.env("PATH", format!("{}:{path}", folder.path().display())).arg("--once");
    let mut run = ScriptRun::of(command);
    run.wait_for("starting redis-server in ", 1);
    let directory = directory(&run);
    let (status, output) = run.end();
    assert_eq!(status, Some(1), "{output}");
    assert!(
        output.contains("no mood\n") && output.contains("run: nginx did not start"),
        "{output}"
    );
    is_gone(&directory, &[]);
}
