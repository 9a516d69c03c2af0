//! The errors and warnings of a configuration: where the mistake is, what it is, and what would be right.

use std::panic::catch_unwind;

use harness::Conf;

/// Where a snippet stands.
#[derive(Clone, Copy, Debug)]
enum At {
    Main,
    Http,
    Server,
    Location,
    /// Inside `if` in a location.
    If,
    /// Inside `if` in a server.
    ServerIf,
    LimitExcept,
    Upstream,
}

use At::{Http, If, LimitExcept, Location, Main, Server, ServerIf, Upstream};

/// A configuration with `snippet`, in a file of its own, at a place.
fn conf(at: At, snippet: &str) -> Conf {
    let conf = Conf::new().file("snippet.conf", snippet);
    let include = "include {prefix}/snippet.conf;";
    match at {
        Main => conf.main(include),
        Http => conf.http(include),
        Server => conf.server(include),
        Location => conf.server(&format!("location / {{ {include} }}")),
        If => conf.server(&format!("location / {{ if ($arg_a) {{ {include} }} }}")),
        ServerIf => conf.server(&format!("if ($arg_a) {{ {include} }}")),
        LimitExcept => conf.server(&format!("location / {{ limit_except GET {{ {include} }} }}")),
        Upstream => conf.http(&format!("upstream u {{ server 127.0.0.1:1; {include} }}")),
    }
}

/// Checks that nginx refuses `snippet` with one message, which holds each of `parts` and names
/// `line` of the snippet.
fn check(at: At, snippet: &str, line: usize, parts: &[&str]) -> Result<(), String> {
    let conf = conf(at, snippet);
    let output =
        catch_unwind(|| conf.config_error()).map_err(|_| format!("{snippet}: is valid"))?;
    let errors: Vec<_> = output.lines().filter(|line| line.contains("[emerg]")).collect();
    let mut missing: Vec<_> =
        parts.iter().copied().filter(|part| !output.contains(part)).map(str::to_owned).collect();
    let place = format!("/snippet.conf:{line}");
    if !output.contains(&place) {
        missing.push(place);
    }
    if errors.len() != 1 {
        missing.push(format!("one message, not {}", errors.len()));
    }
    match missing.is_empty() {
        true => Ok(()),
        false => Err(format!("{snippet}\n  is lines: {}\n  without: {missing:?}", output.trim())),
    }
}

/// Checks a table of snippets of one line.
#[track_caller]
fn refused(at: At, table: &[(&str, &[&str])]) {
    let results = table.iter().map(|(snippet, parts)| check(at, snippet, 1, parts));
    let failures: Vec<_> = results.filter_map(Result::err).collect();
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), table.len(), failures.join("\n"));
}

/// Checks a table of snippets of several lines, of which the one of that number is refused.
#[track_caller]
fn refused_at(at: At, table: &[(&str, usize, &[&str])]) {
    let results = table.iter().map(|(snippet, line, parts)| check(at, snippet, *line, parts));
    let failures: Vec<_> = results.filter_map(Result::err).collect();
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), table.len(), failures.join("\n"));
}

/// Checks that nginx accepts `snippet`, and warns of each of these lines once, with each of the parts; of no
/// other line.
#[track_caller]
fn warned_at(at: At, snippet: &str, lines: &[(usize, &[&str])]) {
    let (valid, output) = conf(at, snippet).check();
    let warnings: Vec<_> = output.lines().filter(|line| line.contains("[warn]")).collect();
    assert!(valid && warnings.len() == lines.len(), "{snippet}\n  is {output}");
    for (number, parts) in lines {
        let place = format!("/snippet.conf:{number}");
        let is_of = |line: &&&str| line.ends_with(&place);
        let has_all = |line: &&str| parts.iter().all(|part| line.contains(part));
        let found: Vec<_> = warnings.iter().filter(is_of).copied().collect();
        assert!(found.len() == 1 && found.iter().all(has_all), "{snippet}: {parts:?}\n{output}");
    }
}

/// Checks a table of snippets of one line.
#[track_caller]
fn warned(at: At, table: &[(&str, &[&str])]) {
    table.iter().for_each(|(snippet, parts)| warned_at(at, snippet, &[(1, parts)]));
}

const RATE: &str = "<n>r/<period>";
const ME: &str = "\"rate_limit_redis\"";

#[test]
fn keys() {
    refused(
        Location,
        &[
            ("rate_limit_redis;", &["invalid number of arguments", ME]),
            ("rate_limit_redis $remote_addr;", &["rate=", ME, "such as"]),
            // The key is forgotten, or comes last.
            ("rate_limit_redis rate=1r/s;", &["key", ME]),
            ("rate_limit_redis rate=1r/s $remote_addr;", &["key", ME]),
            ("rate_limit_redis rate=1r/s name=a;", &["key", ME]),
            ("rate_limit_redis name=login rate=5r/m;", &["key", ME]),
            ("rate_limit_redis algorithm=gcra rate=5r/m;", &["key", ME]),
            ("rate_limit_redis dry_run rate=5r/m;", &["key", ME]),
        ],
    );
    for key in ["name=$arg_name", "a=b", "name"] {
        conf(Location, &format!("rate_limit_redis {key} rate=5r/m;")).config_ok();
    }
}

#[test]
fn broken_variables() {
    // nginx reports what is wrong, the module in which directive.
    for (word, part) in [("$", "invalid variable name"), ("${a", "closing bracket")] {
        for snippet in [format!("{word} rate=1r/s"), format!("a rate=1r/s cost={word}")] {
            let output = conf(Location, &format!("rate_limit_redis {snippet};")).config_error();
            for part in [part, ME, "/snippet.conf:1"] {
                assert!(output.contains(part), "{part} is not in {output}");
            }
        }
    }
}

#[test]
fn an_unknown_variable() {
    for snippet in [
        "rate_limit_redis $nobody rate=1r/s;",
        "rate_limit_redis a rate=$nobody;",
        "rate_limit_redis a rate=1r/s capacity=$nobody;",
        "rate_limit_redis a rate=1r/s cost=$nobody;",
    ] {
        let output = conf(Location, snippet).config_error();
        assert!(output.contains("unknown \"nobody\" variable"), "{snippet}: {output}");
    }
}

#[test]
fn rates() {
    refused(
        Location,
        &[
            ("rate_limit_redis a rate=;", &["rate", "\"\"", RATE, ME]),
            ("rate_limit_redis a rate=10;", &["rate", "\"10\"", RATE, ME]),
            ("rate_limit_redis a rate=10r;", &["\"10r\"", RATE]),
            ("rate_limit_redis a rate=10r/;", &["\"10r/\"", RATE]),
            ("rate_limit_redis a rate=10/s;", &["\"10/s\"", RATE]),
            ("rate_limit_redis a rate=r/s;", &["\"r/s\"", RATE]),
            ("rate_limit_redis a rate=10r/x;", &["\"10r/x\"", RATE]),
            ("rate_limit_redis a rate=10r/ms;", &["\"10r/ms\"", RATE]),
            ("rate_limit_redis a rate=10r/w;", &["\"10r/w\"", RATE]),
            ("rate_limit_redis a rate=10r/1y;", &["\"10r/1y\"", RATE]),
            ("rate_limit_redis a rate=10R/s;", &["\"10R/s\"", RATE]),
            ("rate_limit_redis a rate=10r/S;", &["\"10r/S\"", RATE]),
            ("rate_limit_redis a rate=10r/sec;", &["\"10r/sec\"", RATE]),
            ("rate_limit_redis a rate=1.5r/s;", &["\"1.5r/s\"", RATE]),
            ("rate_limit_redis a rate=-1r/s;", &["\"-1r/s\"", RATE]),
            ("rate_limit_redis a rate=+1r/s;", &["\"+1r/s\"", RATE]),
            ("rate_limit_redis a 'rate= 1r/s';", &["\" 1r/s\"", RATE]),
            ("rate_limit_redis a 'rate=1r/s ';", &["\"1r/s \"", RATE]),
            ("rate_limit_redis a rate=1r/-1s;", &["\"1r/-1s\"", RATE]),
            ("rate_limit_redis a rate=0r/s;", &["\"0r/s\"", "at least 1"]),
            ("rate_limit_redis a rate=1r/0s;", &["\"1r/0s\"", "at least 1"]),
            ("rate_limit_redis a rate=99999999999999999999r/s;", &["rate", "too large"]),
            ("rate_limit_redis a rate=1r/99999999999999999999d;", &["rate", "too large"]),
            ("rate_limit_redis a rate=1r/36501d;", &["\"1r/36501d\"", "too large"]),
            ("rate_limit_redis a rate=1r/s rate=2r/s;", &["duplicate", "\"rate=\"", ME]),
            ("rate_limit_redis a rate = 1r/s;", &["\"rate\"", ME]),
        ],
    );
}

#[test]
fn names() {
    let long = format!("rate_limit_redis a rate=1r/s name={};", "n".repeat(65));
    let right = "A-Z a-z 0-9 _ - .";
    refused(
        Location,
        &[
            ("rate_limit_redis a rate=1r/s name=;", &["name", "\"\"", right, ME]),
            ("rate_limit_redis a rate=1r/s name=a/b;", &["name", "\"a/b\"", right]),
            ("rate_limit_redis a rate=1r/s name=a:b;", &["\"a:b\"", right]),
            ("rate_limit_redis a rate=1r/s 'name=a b';", &["\"a b\"", right]),
            ("rate_limit_redis a rate=1r/s name=$host;", &["\"$host\"", right]),
            ("rate_limit_redis a rate=1r/s name=\u{e4};", &["name", right]),
            (&long, &["name", "nnn", "64", right]),
            ("rate_limit_redis a rate=1r/s name=a name=a;", &["duplicate", "\"name=\"", ME]),
        ],
    );
}

#[test]
fn algorithms() {
    let known = "token_bucket, gcra";
    refused(
        Location,
        &[
            ("rate_limit_redis a rate=1r/s algorithm=;", &["algorithm", "\"\"", known, ME]),
            ("rate_limit_redis a rate=1r/s algorithm=leaky;", &["algorithm", "\"leaky\"", known]),
            ("rate_limit_redis a rate=1r/s algorithm=GCRA;", &["\"GCRA\"", known]),
            ("rate_limit_redis a rate=1r/s algorithm=$arg_a;", &["\"$arg_a\"", known]),
            ("rate_limit_redis a rate=1r/s algorithm=limit_req;", &["limit_req", known]),
            (
                "rate_limit_redis a rate=1r/s algorithm=gcra algorithm=gcra;",
                &["duplicate", "\"algorithm=\"", ME],
            ),
        ],
    );
}

#[test]
fn capacities() {
    let right = "a number from 1 to";
    refused(
        Location,
        &[
            ("rate_limit_redis a rate=1r/s capacity=;", &["capacity", "\"\"", right, ME]),
            ("rate_limit_redis a rate=1r/s capacity=0;", &["capacity", "\"0\"", right]),
            ("rate_limit_redis a rate=1r/s capacity=-1;", &["\"-1\"", right]),
            ("rate_limit_redis a rate=1r/s capacity=1.5;", &["\"1.5\"", right]),
            ("rate_limit_redis a rate=1r/s capacity=10k;", &["\"10k\"", right]),
            ("rate_limit_redis a rate=1r/s capacity=9007199254740993;", &["capacity", right]),
            (
                "rate_limit_redis a rate=1r/s capacity=99999999999999999999;",
                &["\"99999999999999999999\"", right],
            ),
            (
                "rate_limit_redis a rate=1r/s capacity=1 capacity=1;",
                &["duplicate", "\"capacity=\"", ME],
            ),
            (
                "rate_limit_redis a rate=1r/s algorithm=gcra capacity=5;",
                &["\"capacity=5\"", "algorithm=gcra", "\"burst=\""],
            ),
            (
                "rate_limit_redis a rate=1r/52w capacity=101;",
                &["\"capacity=101\"", "hundred years", ME],
            ),
            (
                "rate_limit_redis a rate=9007199254740991r/s capacity=2;",
                &["\"capacity=2\"", "too large", ME],
            ),
            ("rate_limit_redis a rate=9007199254740991r/s;", &["rate", "too large", ME]),
        ],
    );
}

#[test]
fn bursts() {
    let right = "a number from 0 to";
    refused(
        Location,
        &[
            ("rate_limit_redis a rate=1r/s algorithm=gcra burst=;", &["burst", "\"\"", right, ME]),
            ("rate_limit_redis a rate=1r/s algorithm=gcra burst=-1;", &["\"-1\"", right]),
            ("rate_limit_redis a rate=1r/s algorithm=gcra burst=few;", &["\"few\"", right]),
            (
                "rate_limit_redis a rate=1r/s algorithm=gcra burst=1 burst=1;",
                &["duplicate", "\"burst=\"", ME],
            ),
            (
                "rate_limit_redis a rate=1r/s burst=5;",
                &["\"burst=5\"", "algorithm=token_bucket", "\"capacity=\""],
            ),
            (
                "rate_limit_redis a rate=1r/s algorithm=token_bucket burst=5;",
                &["\"burst=5\"", "algorithm=token_bucket", "\"capacity=\""],
            ),
            (
                "rate_limit_redis a rate=1r/52w algorithm=gcra burst=101;",
                &["\"burst=101\"", "hundred years", ME],
            ),
        ],
    );
}

#[test]
fn costs() {
    let right = "a number from 0 to";
    refused(
        Location,
        &[
            ("rate_limit_redis a rate=1r/s cost=;", &["cost", "\"\"", right, ME]),
            ("rate_limit_redis a rate=1r/s cost=-1;", &["cost", "\"-1\"", right]),
            ("rate_limit_redis a rate=1r/s cost=0.5;", &["\"0.5\"", right]),
            ("rate_limit_redis a rate=1r/s cost=one;", &["\"one\"", right]),
            (
                "rate_limit_redis a rate=1r/s cost=9007199254740993;",
                &["\"9007199254740993\"", right],
            ),
            ("rate_limit_redis a rate=1r/s cost=1 cost=1;", &["duplicate", "\"cost=\"", ME]),
        ],
    );
}

#[test]
fn phases() {
    let right = "it must be auth";
    refused(
        Location,
        &[
            ("rate_limit_redis a rate=1r/s after=;", &["after", "\"\"", right, ME]),
            ("rate_limit_redis a rate=1r/s after=access;", &["after", "\"access\"", right, ME]),
            ("rate_limit_redis a rate=1r/s after=$arg_a;", &["\"$arg_a\"", right]),
            ("rate_limit_redis a rate=1r/s after;", &["\"after\"", ME]),
            (
                "rate_limit_redis a rate=1r/s after=auth after=auth;",
                &["duplicate", "\"after=\"", ME],
            ),
        ],
    );
    // It is no part of a definition.
    let both = "rate_limit_redis a rate=1r/s;\nrate_limit_redis $remote_user rate=1r/s after=auth;";
    conf(Location, both).config_ok();
}

#[test]
fn dry_runs() {
    refused(
        Location,
        &[
            ("rate_limit_redis a rate=1r/s dry_run dry_run;", &["duplicate", "\"dry_run\"", ME]),
            ("rate_limit_redis a rate=1r/s dry_run=on;", &["\"dry_run=on\"", ME]),
        ],
    );
    conf(Location, "rate_limit_redis a rate=1r/s;\nrate_limit_redis b rate=1r/s dry_run;")
        .config_ok();
}

#[test]
fn settlements() {
    let right = "a number of at least 0, such as 3 or 0.25";
    for value in ["-1", "one", "1.", "1e3"] {
        let line = format!("rate_limit_redis a rate=1r/s settle={value};");
        check(Location, &line, 1, &["settle", &format!("\"{value}\""), right, ME]).unwrap();
    }
    refused(
        Location,
        &[
            ("rate_limit_redis a rate=1r/s settle;", &["\"settle\"", ME]),
            ("rate_limit_redis a rate=1r/s settle=;", &["settle", right, ME]),
            ("rate_limit_redis a rate=1r/s settle=1 settle=1;", &["duplicate", "\"settle=\"", ME]),
            (
                "rate_limit_redis a rate=1r/52w capacity=50 settle=$status;",
                &["\"capacity=50\"", "a debt of ten times as much", ME],
            ),
        ],
    );
    ["$status", "0", "1.5", "${status}0"].iter().for_each(|value| {
        let line = format!("rate_limit_redis a rate=1r/s settle={value};");
        conf(Location, &line).config_ok();
    });
}

#[test]
fn blocks() {
    let right = "a time above 0 and up to a hundred years, such as 10m";
    for value in ["0", "0s", "-1s", "soon", "1.5m", "10r/s", "36501d", "$arg_a", ""] {
        let line = format!("rate_limit_redis a rate=1r/s block={value};");
        check(Location, &line, 1, &["block", &format!("\"{value}\""), right, ME]).unwrap();
    }
    refused(
        Location,
        &[
            ("rate_limit_redis a rate=1r/s block;", &["\"block\"", ME]),
            ("rate_limit_redis a rate=1r/s block=1s block=1s;", &["duplicate", "\"block=\"", ME]),
            (
                "rate_limit_redis a rate=1r/s block=1s dry_run;",
                &["\"block=\"", "\"dry_run\"", "exclude", ME],
            ),
        ],
    );
    // It is a part of the definition.
    let others = "rate_limit_redis a rate=1r/s block=1m;\nrate_limit_redis b rate=1r/s;";
    check(Location, others, 2, &["\"default\"", "block=1m", "name="]).unwrap();
    ["1ms", "90", "10m", "1d 12h", "36500d"].iter().for_each(|time| {
        conf(Location, &format!("rate_limit_redis a rate=1r/s 'block={time}';")).config_ok();
    });
}

#[test]
fn refills() {
    let right = "continuous or interval";
    let foreign = |snippet: &str| {
        ["gcra", "leaky_bucket", "sliding_window", "sliding_log", "fixed_window"].map(|algorithm| {
            (format!("rate_limit_redis a rate=1r/s algorithm={algorithm} {snippet};"), algorithm)
        })
    };
    refused(
        Location,
        &[
            ("rate_limit_redis a rate=1r/s refill;", &["\"refill\"", ME]),
            ("rate_limit_redis a rate=1r/s refill=Interval;", &["refill", "\"Interval\"", right]),
            ("rate_limit_redis a rate=1r/s refill=1s;", &["\"1s\"", right, ME]),
            ("rate_limit_redis a rate=1r/s refill=$arg_a;", &["\"$arg_a\"", right]),
            (
                "rate_limit_redis a rate=1r/s algorithm=token_bucket refill=none;",
                &["\"none\"", right],
            ),
            (
                "rate_limit_redis a rate=1r/s refill=interval refill=interval;",
                &["duplicate", "\"refill=\"", ME],
            ),
            (
                "rate_limit_redis a rate=1r/s refill=interval burst=5;",
                &["\"burst=5\"", "algorithm=token_bucket", "\"capacity=\""],
            ),
            (
                "rate_limit_redis a rate=1r/52w capacity=101 refill=interval;",
                &["\"capacity=101\"", "hundred years", ME],
            ),
            (
                "rate_limit_redis a rate=1r/s capacity=0 refill=interval;",
                &["capacity", "\"0\"", "a number from 1 to"],
            ),
        ],
    );
    for refill in ["refill=interval", "refill=continuous"] {
        for (snippet, algorithm) in foreign(refill) {
            let algorithm = format!("algorithm={algorithm}");
            let parts = [&format!("\"{refill}\"") as &str, &algorithm, ME];
            check(Location, &snippet, 1, &parts).unwrap();
        }
    }
}

#[test]
fn delays() {
    let right = "a number from 0 to";
    refused(
        Location,
        &[
            (
                "rate_limit_redis a rate=1r/s algorithm=leaky_bucket delay=;",
                &["delay", "\"\"", right],
            ),
            ("rate_limit_redis a rate=1r/s algorithm=leaky_bucket delay;", &["\"delay\"", ME]),
            ("rate_limit_redis a rate=1r/s algorithm=leaky_bucket delay=-1;", &["\"-1\"", right]),
            (
                "rate_limit_redis a rate=1r/s algorithm=leaky_bucket delay=1s;",
                &["\"1s\"", right, ME],
            ),
            (
                "rate_limit_redis a rate=1r/s algorithm=leaky_bucket delay=$arg_a;",
                &["delay", right],
            ),
            (
                "rate_limit_redis a rate=1r/s algorithm=leaky_bucket delay=99999999999999999999;",
                &["\"99999999999999999999\"", right],
            ),
            (
                "rate_limit_redis a rate=1r/s algorithm=leaky_bucket delay=1 delay=1;",
                &["duplicate", "\"delay=\"", ME],
            ),
            (
                "rate_limit_redis a rate=1r/s algorithm=leaky_bucket delay=1 nodelay;",
                &["\"delay=\"", "\"nodelay\"", "exclude", ME],
            ),
            (
                "rate_limit_redis a rate=1r/s algorithm=leaky_bucket nodelay delay=1;",
                &["\"delay=\"", "\"nodelay\"", "exclude", ME],
            ),
            (
                "rate_limit_redis a rate=1r/s algorithm=leaky_bucket nodelay=on;",
                &["nodelay=on", ME],
            ),
        ],
    );
    for algorithm in ["token_bucket", "gcra", "sliding_window", "sliding_log", "fixed_window"] {
        for parameter in ["nodelay", "delay=2"] {
            let line = format!("rate_limit_redis a rate=1r/s algorithm={algorithm} {parameter};");
            let algorithm = format!("algorithm={algorithm}");
            let parts = [&format!("\"{parameter}\"") as &str, &algorithm, ME];
            check(Location, &line, 1, &parts).unwrap();
        }
    }
}

#[test]
fn nodelay_twice() {
    let line = "rate_limit_redis a rate=1r/s algorithm=leaky_bucket nodelay nodelay;";
    check(Location, line, 1, &["duplicate", "\"nodelay\"", ME]).unwrap();
}

#[test]
fn parameters_that_windows_do_not_have() {
    for algorithm in ["sliding_window", "sliding_log", "fixed_window"] {
        for parameter in ["capacity=5", "burst=5"] {
            let line = format!("rate_limit_redis a rate=1r/s algorithm={algorithm} {parameter};");
            let algorithm = format!("algorithm={algorithm}");
            let parts = [&format!("\"{parameter}\"") as &str, &algorithm, ME];
            check(Location, &line, 1, &parts).unwrap();
        }
    }
    refused(
        Location,
        &[
            (
                "rate_limit_redis a rate=1r/s algorithm=leaky_bucket capacity=5;",
                &["\"capacity=5\"", "algorithm=leaky_bucket", "\"burst=\"", "\"nodelay\""],
            ),
            (
                "rate_limit_redis a rate=1r/s algorithm=leaky_bucket burst=few;",
                &["burst", "\"few\"", "a number from 0 to"],
            ),
            (
                "rate_limit_redis a rate=1r/52w algorithm=leaky_bucket burst=101;",
                &["\"burst=101\"", "hundred years"],
            ),
        ],
    );
}

#[test]
fn what_an_algorithm_cannot_count() {
    refused(
        Location,
        &[
            (
                "rate_limit_redis a rate=100001r/s algorithm=sliding_log;",
                &["\"rate=100001r/1s\"", "100000 entries", "sliding_log", ME],
            ),
            (
                "rate_limit_redis a rate=1000000r/1d algorithm=sliding_log;",
                &["rate", "100000 entries", ME],
            ),
            (
                "rate_limit_redis a rate=9007199254740991r/s algorithm=sliding_window;",
                &["rate", "too large", ME],
            ),
            (
                "rate_limit_redis a rate=1r/36501d algorithm=fixed_window;",
                &["\"1r/36501d\"", "too large", ME],
            ),
            (
                "rate_limit_redis a rate=7r/month;",
                &["\"rate=7r/month\"", "algorithm=fixed_window only", ME],
            ),
            (
                "rate_limit_redis a rate=7r/month capacity=$arg_a;",
                &["\"rate=7r/month\"", "algorithm=fixed_window only", ME],
            ),
            (
                "rate_limit_redis a rate=7r/month algorithm=sliding_window;",
                &["\"rate=7r/month\"", "algorithm=fixed_window only", ME],
            ),
            (
                "rate_limit_redis a rate=7r/2month algorithm=fixed_window;",
                &["\"7r/2month\"", "a rate is", ME],
            ),
        ],
    );
    for line in [
        "rate_limit_redis a rate=100000r/s algorithm=sliding_log;",
        "rate_limit_redis a rate=100000r/1w algorithm=sliding_log;",
        "rate_limit_redis a rate=50000000r/1d algorithm=sliding_window;",
        "rate_limit_redis a rate=7r/month algorithm=fixed_window;",
    ] {
        conf(Location, line).config_ok();
    }
}

#[test]
fn every_algorithm_is_named() {
    let known = "token_bucket, gcra, leaky_bucket, sliding_window, sliding_log, fixed_window";
    refused(
        Location,
        &[
            (
                "rate_limit_redis a rate=1r/s algorithm=interval_bucket;",
                &["interval_bucket", known],
            ),
            ("rate_limit_redis a rate=1r/s algorithm=sliding;", &["\"sliding\"", known, ME]),
            ("rate_limit_redis a rate=1r/s algorithm=sliding-log;", &["\"sliding-log\"", known]),
        ],
    );
}

#[test]
fn bodies() {
    let me = "\"rate_limit_redis_body\"";
    let right = "\"html\" or \"json\" or \"problem\"";
    refused_at(
        Location,
        &[
            ("rate_limit_redis_body;", 1, &["invalid number of arguments", me]),
            ("rate_limit_redis_body json problem;", 1, &["invalid number of arguments", me]),
            ("rate_limit_redis_body '';", 1, &["\"\"", me, right]),
            ("rate_limit_redis_body JSON;", 1, &["\"JSON\"", me, right]),
            ("rate_limit_redis_body off;", 1, &["\"off\"", me, right]),
            ("rate_limit_redis_body $arg_a;", 1, &["\"$arg_a\"", me, right]),
            ("rate_limit_redis_body json;\nrate_limit_redis_body json;", 2, &["duplicate", me]),
        ],
    );
}

#[test]
fn dry_runs_of_a_line() {
    let me = "\"rate_limit_redis_dry_run\"";
    let right = "\"on\" or \"off\"";
    refused_at(
        Location,
        &[
            ("rate_limit_redis_dry_run;", 1, &["invalid number of arguments", me]),
            ("rate_limit_redis_dry_run on on;", 1, &["invalid number of arguments", me]),
            ("rate_limit_redis_dry_run yes;", 1, &["\"yes\"", me, right]),
            ("rate_limit_redis_dry_run 1;", 1, &["\"1\"", me, right]),
            ("rate_limit_redis_dry_run $arg_a;", 1, &["\"$arg_a\"", me, right]),
            ("rate_limit_redis_dry_run on;\nrate_limit_redis_dry_run off;", 2, &["duplicate", me]),
        ],
    );
}

#[test]
fn ipv6_prefixes() {
    let me = "\"rate_limit_redis_ipv6_prefix\"";
    let right = "a number between 1 and 128";
    let line = |value: &str| format!("rate_limit_redis_ipv6_prefix '{value}';");
    for value in ["0", "129", "-1", "+64", "64.0", "/64", "64bits", "4294967360", "$arg_a", ""] {
        let quoted = format!("\"{value}\"");
        check(Location, &line(value), 1, &[&quoted, me, right]).unwrap();
    }
    refused_at(
        Location,
        &[
            ("rate_limit_redis_ipv6_prefix;", 1, &["invalid number of arguments", me]),
            ("rate_limit_redis_ipv6_prefix 64 64;", 1, &["invalid number of arguments", me]),
            (
                "rate_limit_redis_ipv6_prefix 64;\nrate_limit_redis_ipv6_prefix 64;",
                2,
                &["duplicate", me],
            ),
        ],
    );
    ["1", "64", "128"].iter().for_each(|value| conf(Location, &line(value)).config_ok());
}

#[test]
fn unknown_parameters() {
    refused(
        Location,
        &[
            ("rate_limit_redis a rate=1r/s nodelay;", &["\"nodelay\"", ME]),
            ("rate_limit_redis a rate=1r/s delay=5;", &["\"delay=5\"", ME]),
            ("rate_limit_redis a rate=1r/s refill=;", &["refill", "continuous or interval", ME]),
            (
                "rate_limit_redis a rate=1r/s refill=interval algorithm=gcra;",
                &["\"refill=interval\"", "algorithm=gcra", ME],
            ),
            ("rate_limit_redis a rate=1r/s zone=one;", &["\"zone=one\"", ME]),
            ("rate_limit_redis a rate=1r/s Cost=1;", &["\"Cost=1\"", ME]),
            ("rate_limit_redis a rate=1r/s off;", &["\"off\"", ME]),
            ("rate_limit_redis a rate=1r/s '';", &["\"\"", ME]),
        ],
    );
}

#[test]
fn off() {
    let beside = &["\"rate_limit_redis off\"", "beside"];
    refused_at(
        Location,
        &[
            ("rate_limit_redis off rate=1r/s;", 1, &["\"rate_limit_redis off\"", "no parameters"]),
            ("rate_limit_redis off;\nrate_limit_redis off;", 2, &["\"rate_limit_redis off\""]),
            ("rate_limit_redis off;\nrate_limit_redis a rate=1r/s;", 2, beside),
            ("rate_limit_redis a rate=1r/s;\n\nrate_limit_redis off;", 3, beside),
        ],
    );
    refused_at(Http, &[("rate_limit_redis a rate=1r/s;\nrate_limit_redis off;", 2, beside)]);
    refused_at(Server, &[("rate_limit_redis off;\nrate_limit_redis a rate=1r/s;", 2, beside)]);
}

#[test]
fn two_definitions_of_one_name() {
    // The first is in the second line of the snippet, the other in the fourth.
    let second = |first: &str, other: &str| format!("\n{first}\n\n{other}\n");
    let table = [
        ("rate_limit_redis a rate=1r/s;", "rate_limit_redis a rate=2r/s;", "\"default\""),
        ("rate_limit_redis a rate=60r/m;", "rate_limit_redis a rate=1r/s;", "\"default\""),
        ("rate_limit_redis a rate=1r/s;", "rate_limit_redis b rate=1r/s capacity=2;", "default"),
        ("rate_limit_redis a rate=$arg_a;", "rate_limit_redis a rate=$arg_b;", "rate=$arg_a"),
        (
            "rate_limit_redis a name=x rate=1r/s;",
            "rate_limit_redis a name=x rate=1r/s algorithm=gcra;",
            "\"x\"",
        ),
        (
            "rate_limit_redis a name=x rate=1r/s algorithm=gcra burst=1;",
            "rate_limit_redis a name=x rate=1r/s algorithm=gcra burst=2;",
            "burst=1",
        ),
        // They differ in what refills them only, as written.
        (
            "rate_limit_redis a name=x rate=1r/s;",
            "rate_limit_redis a name=x rate=1r/s refill=interval;",
            "refill=interval",
        ),
        (
            "rate_limit_redis a name=x rate=1r/s refill=interval;",
            "rate_limit_redis a name=x rate=1r/s refill=continuous;",
            "refill=interval",
        ),
        (
            "rate_limit_redis a name=x rate=1r/s algorithm=sliding_log;",
            "rate_limit_redis a name=x rate=1r/s algorithm=sliding_window;",
            "algorithm=sliding_log",
        ),
        (
            "rate_limit_redis a name=x rate=1r/s algorithm=gcra;",
            "rate_limit_redis a name=x rate=1r/s algorithm=leaky_bucket nodelay;",
            "algorithm=gcra",
        ),
    ];
    for (first, other, part) in table {
        let snippet = second(first, other);
        check(Location, &snippet, 4, &[part, "/snippet.conf:2", "name="]).unwrap();
        // The first at another level, in another file.
        let output = conf(Location, other).file("first.conf", &format!("\n\n{first}"));
        let output = output.http("include {prefix}/first.conf;").config_error();
        for part in [part, "/first.conf:3", "name=", "/snippet.conf:1"] {
            assert!(output.contains(part), "{part} is not in {output}");
        }
    }
}

#[test]
fn one_name_in_two_stores() {
    let snippet = "location /a { rate_limit_redis a name=x rate=1r/s; }
        location /b {
            rate_limit_redis_pass redis://:s3cret@127.0.0.1:1;
            rate_limit_redis a name=x rate=1r/s;
        }";
    let output = conf(Server, snippet).config_error();
    for part in ["\"x\"", "/snippet.conf:1", "name=", "store"] {
        assert!(output.contains(part), "{part} is not in {output}");
    }
    assert!(!output.contains("s3cret"), "{output}");
    // Either line of the second location is where it is to be mended.
    let place = ["/snippet.conf:3", "/snippet.conf:4"].iter().any(|at| output.contains(at));
    assert!(place, "the place is not in {output}");
}

/// The limits of a server apply together outside of its locations, so they must have one store.
#[test]
fn limits_of_a_server_in_two_stores() {
    let snippet = "rate_limit_redis a name=x rate=1r/s; rate_limit_redis a name=y rate=1r/s;
        location / { rate_limit_redis a name=x rate=1r/s; }
        location /y {
            rate_limit_redis_pass redis://127.0.0.1:1;
            rate_limit_redis a name=y rate=1r/s;
        }";
    let output = conf(Server, snippet).config_error();
    for part in ["\"y\"", "/snippet.conf:1", "/snippet.conf:5", "name=", "store"] {
        assert!(output.contains(part), "{part} is not in {output}");
    }
}

#[test]
fn stores() {
    let me = "\"rate_limit_redis_pass\"";
    let right = "redis://[user[:password]@]host[:port][/database]";
    let pass = |url: &str| format!("rate_limit_redis_pass {url};");
    let table: [(&str, &[&str]); 20] = [
        ("", &["invalid number of arguments"]),
        ("redis://127.0.0.1 redis://127.0.0.2", &["invalid number of arguments"]),
        ("''", &["\"\"", right]),
        ("127.0.0.1:6379", &["\"127.0.0.1:6379\"", right]),
        ("http://127.0.0.1:6379", &["\"http://127.0.0.1:6379\"", right]),
        ("REDIS://127.0.0.1", &["\"REDIS://127.0.0.1\"", right]),
        ("redis:127.0.0.1", &["\"redis:127.0.0.1\"", right]),
        ("unix:/run/redis.sock", &["\"unix:/run/redis.sock\"", right, "redis+unix:///path"]),
        ("redis://", &["\"redis://\"", "host"]),
        ("redis://:6379", &["\"redis://:6379\"", "host"]),
        ("redis:///0", &["\"redis:///0\"", "host"]),
        ("redis://127.0.0.1:abc", &["\"redis://127.0.0.1:abc\"", "port"]),
        ("redis://127.0.0.1:99999", &["\"redis://127.0.0.1:99999\"", "port"]),
        ("redis://127.0.0.1:0", &["\"redis://127.0.0.1:0\"", "port"]),
        ("redis://127.0.0.1:-1", &["\"redis://127.0.0.1:-1\"", "port"]),
        ("redis://127.0.0.1/x", &["\"redis://127.0.0.1/x\"", "database"]),
        ("redis://127.0.0.1/-1", &["\"redis://127.0.0.1/-1\"", "database"]),
        ("rediss://127.0.0.1#insecure", &["\"rediss://127.0.0.1#insecure\"", "fragment"]),
        ("redis+unix://", &["\"redis+unix://\"", "path"]),
        ("redis://$host", &["\"redis://$host\"", "variable"]),
    ];
    let snippets = table.map(|(url, parts)| (pass(url), [parts, &[me]].concat()));
    let table: Vec<_> = snippets.iter().map(|(url, parts)| (url.as_str(), &parts[..])).collect();
    refused(Location, &table);
    refused_at(
        Location,
        &[(
            "rate_limit_redis_pass redis://127.0.0.1;\nrate_limit_redis_pass redis://127.0.0.1;",
            2,
            &["duplicate", me],
        )],
    );
}

#[test]
fn tls() {
    let block =
        |url: &str, lines: &str| format!("rate_limit_redis_store a {{\nserver {url};\n{lines}\n}}");
    let many = "invalid number of arguments in \"ssl_name\"";
    // The line, and the error at its place.
    let lines: [(&str, &[&str]); 14] = [
        ("ssl_verify yes;", &["\"yes\"", "\"ssl_verify\"", "\"on\" or \"off\""]),
        ("ssl_verify;", &["invalid number of arguments in \"ssl_verify\""]),
        ("ssl_name a b;", &[many]),
        ("ssl_name '';", &["\"\"", "\"ssl_name\"", "not empty"]),
        ("ssl_name $host;", &["\"$host\"", "\"ssl_name\"", "without variables"]),
        ("ssl_certificate '';", &["\"ssl_certificate\"", "not empty"]),
        ("ssl_certificate $host;", &["\"ssl_certificate\"", "without variables"]),
        ("ssl_protocols;", &["invalid number of arguments in \"ssl_protocols\""]),
        ("ssl_protocols TLSv1.4;", &["\"TLSv1.4\"", "\"ssl_protocols\"", "\"TLSv1.3\""]),
        ("ssl_protocols TLSv1.2 on;", &["\"on\"", "\"ssl_protocols\"", "\"TLSv1.3\""]),
        ("ssl_protocols TLSv1.2; ssl_protocols TLSv1.3;", &["\"ssl_protocols\"", "duplicate"]),
        ("ssl_verify on; ssl_verify on;", &["\"ssl_verify\"", "duplicate"]),
        ("ssl_crl a; ssl_crl b;", &["\"ssl_crl\"", "duplicate"]),
        ("ssl_session_reuse on;", &["unknown", "\"ssl_session_reuse\""]),
    ];
    let lines = lines.map(|(line, parts)| (block("rediss://127.0.0.1", line), 3, parts));
    // And the error of the whole block, at its end.
    let tls = "rediss://127.0.0.1";
    let wholes: [(&str, &str, &[&str]); 11] = [
        (tls, "ssl_certificate a;", &["no \"ssl_certificate_key\"", "certificate \"a\""]),
        (tls, "ssl_certificate_key a;", &["no \"ssl_certificate\"", "key \"a\""]),
        (tls, "ssl_crl a; ssl_verify off;", &["\"ssl_crl\"", "\"ssl_verify off\""]),
        (
            tls,
            "ssl_trusted_certificate no.pem;",
            &["\"ssl_trusted_certificate\"", "/no.pem", "No such"],
        ),
        (
            tls,
            "ssl_trusted_certificate nginx.conf;",
            &["\"ssl_trusted_certificate\"", "/nginx.conf"],
        ),
        (tls, "ssl_crl no.pem;", &["\"ssl_crl\"", "/no.pem", "No such"]),
        (
            tls,
            "ssl_certificate a; ssl_certificate_key b;",
            &["\"ssl_certificate\"", "/a", "No such"],
        ),
        (tls, "ssl_ciphers NONE;", &["\"ssl_ciphers\"", "\"NONE\"", "no cipher match"]),
        ("redis://127.0.0.1", "ssl_verify on;", &["TLS", "rediss://"]),
        ("redis+unix:///s", "ssl_name a;", &["TLS", "rediss://"]),
        (tls, "server redis://127.0.0.2; cluster on;", &["TLS", "all servers"]),
    ];
    let wholes = wholes.map(|(url, lines, parts)| (block(url, lines), 4, parts));
    let all: Vec<_> = lines.iter().chain(&wholes).map(|(t, n, p)| (t.as_str(), *n, *p)).collect();
    refused_at(Http, &all);
    for good in [
        "ssl_verify off;",
        "ssl_verify on; ssl_name redis.internal; ssl_protocols TLSv1.2 TLSv1.3 TLSv1.2;",
        "ssl_ciphers HIGH:!aNULL; ssl_protocols SSLv3 TLSv1 TLSv1.1;",
    ] {
        conf(Http, &block(tls, good)).config_ok();
    }
}

#[test]
fn a_host_that_cannot_be_resolved() {
    // No resolver looks up a label over 63 bytes.
    let host = "h".repeat(64);
    let snippet = format!(
        "rate_limit_redis a rate=1r/s;\nrate_limit_redis_pass redis://:s3cret@{host}:6379/1;"
    );
    let result = check(Location, &snippet, 2, &[&host, "not found", "\"rate_limit_redis_pass\""]);
    let output = conf(Location, &snippet).config_error();
    assert!(!output.contains("s3cret"), "{output}");
    result.unwrap();
}

#[test]
fn a_password_is_never_shown() {
    let urls = [
        "redis://:s3cret@127.0.0.1:99999",
        "redis://bob:s3cret@127.0.0.1:6379/x",
        "redis://bob:s3cret@",
        "redis://bob:s3cret@:6379",
        "redis://:s3cret/word@127.0.0.1/x",
        "redis://:s3cret@word@127.0.0.1/x",
        "rediss://bob:s3cret@127.0.0.1/x",
        "rediss://bob:s3cret@127.0.0.1#insecure",
        "redis://bob:s3cret#@127.0.0.1",
        "http://bob:s3cret@127.0.0.1",
        "bob:s3cret@127.0.0.1",
        "redis+unix:///tmp/redis.sock?db=x&pass=s3cret",
        "redis+unix:///tmp/redis.sock?pass=s3cret&db=x",
        "redis://127.0.0.1/x?password=s3cret",
        "redis://127.0.0.1:99999?password=s3cret",
    ];
    let lines = |url: &&str| {
        let snippet = format!("rate_limit_redis a rate=1r/s; rate_limit_redis_pass {url};");
        let output = conf(Location, &snippet).config_error();
        (output.contains("s3cret") || !output.contains("/snippet.conf:1")).then_some(output)
    };
    let failures: Vec<_> = urls.iter().filter_map(lines).collect();
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn timeouts() {
    let me = "\"rate_limit_redis_timeout\"";
    let right = "above 0, such as 20ms";
    refused_at(
        Location,
        &[
            ("rate_limit_redis_timeout;", 1, &["invalid number of arguments", me]),
            ("rate_limit_redis_timeout 20 ms;", 1, &["invalid number of arguments", me]),
            ("rate_limit_redis_timeout 0;", 1, &["\"0\"", me, right]),
            ("rate_limit_redis_timeout 0ms;", 1, &["\"0ms\"", me, right]),
            ("rate_limit_redis_timeout 0s;", 1, &["\"0s\"", me, right]),
            ("rate_limit_redis_timeout -1s;", 1, &["\"-1s\"", me, right]),
            ("rate_limit_redis_timeout '';", 1, &["\"\"", me, right]),
            ("rate_limit_redis_timeout soon;", 1, &["\"soon\"", me, right]),
            ("rate_limit_redis_timeout 20us;", 1, &["\"20us\"", me, right]),
            ("rate_limit_redis_timeout 0.5s;", 1, &["\"0.5s\"", me, right]),
            ("rate_limit_redis_timeout $arg_a;", 1, &["\"$arg_a\"", me, right]),
            ("rate_limit_redis_timeout 99999999999999999999s;", 1, &[me, right]),
            (
                "rate_limit_redis_timeout 20ms;\nrate_limit_redis_timeout 20ms;",
                2,
                &["duplicate", me],
            ),
        ],
    );
}

#[test]
fn policies_for_errors() {
    let me = "\"rate_limit_redis_on_error\"";
    let right = "\"open\" or \"closed\" or \"local\"";
    refused_at(
        Location,
        &[
            ("rate_limit_redis_on_error;", 1, &["invalid number of arguments", me]),
            ("rate_limit_redis_on_error open closed;", 1, &["invalid number of arguments", me]),
            ("rate_limit_redis_on_error '';", 1, &["\"\"", me, right]),
            ("rate_limit_redis_on_error Open;", 1, &["\"Open\"", me, right]),
            ("rate_limit_redis_on_error redis;", 1, &["\"redis\"", me, right]),
            ("rate_limit_redis_on_error off;", 1, &["\"off\"", me, right]),
            (
                "rate_limit_redis_on_error open;\nrate_limit_redis_on_error closed;",
                2,
                &["duplicate", me],
            ),
        ],
    );
}

#[test]
fn policies_for_invalid_values() {
    let me = "\"rate_limit_redis_on_invalid\"";
    let right = "\"reject\" or \"pass\"";
    for value in ["", "Reject", "open", "closed", "off", "400", "$arg_a"] {
        let line = format!("rate_limit_redis_on_invalid '{value}';");
        check(Location, &line, 1, &[&format!("\"{value}\""), me, right]).unwrap();
    }
    refused_at(
        Location,
        &[
            ("rate_limit_redis_on_invalid;", 1, &["invalid number of arguments", me]),
            ("rate_limit_redis_on_invalid reject pass;", 1, &["invalid number of arguments", me]),
            (
                "rate_limit_redis_on_invalid pass;\nrate_limit_redis_on_invalid reject;",
                2,
                &["duplicate", me],
            ),
        ],
    );
}

#[test]
fn statuses() {
    let right = "a number between 400 and 599, but not 494 to 497";
    for name in ["rate_limit_redis_status", "rate_limit_redis_error_status"] {
        let me = &format!("\"{name}\"");
        let invalid = ["399", "600", "200", "abc", "42", "4290", "-429", "+42", "0429", "429a"];
        let of_nginx = ["494", "495", "496", "497"];
        for value in invalid.into_iter().chain(["$arg_a", "4e2", ""]).chain(of_nginx) {
            let parts = [&format!("\"{value}\""), me, right];
            check(Location, &format!("{name} '{value}';"), 1, &parts).unwrap();
        }
        for snippet in [format!("{name};"), format!("{name} 429 503;")] {
            check(Location, &snippet, 1, &["invalid number of arguments", me]).unwrap();
        }
        check(Location, &format!("{name} 429;\n{name} 429;"), 2, &["duplicate", me]).unwrap();
    }
}

#[test]
fn header_fields() {
    let me = "\"rate_limit_redis_headers\"";
    let right = "\"off\", or any of \"x-ratelimit\" or \"x-ratelimit-epoch\"";
    refused_at(
        Location,
        &[
            ("rate_limit_redis_headers;", 1, &["invalid number of arguments", me]),
            ("rate_limit_redis_headers on;", 1, &["\"on\"", me, right]),
            ("rate_limit_redis_headers X-RateLimit;", 1, &["\"X-RateLimit\"", me, right]),
            ("rate_limit_redis_headers draft;", 1, &["\"draft\"", me, right]),
            ("rate_limit_redis_headers ietf ietf;", 1, &["\"ietf\"", me, right]),
            (
                "rate_limit_redis_headers x-ratelimit x-ratelimit-epoch;",
                1,
                &["\"x-ratelimit-epoch\"", me, right],
            ),
            ("rate_limit_redis_headers off x-ratelimit;", 1, &["\"off\"", me, right]),
            ("rate_limit_redis_headers ietf off;", 1, &["\"off\"", me, right]),
            ("rate_limit_redis_headers '';", 1, &["\"\"", me, right]),
            ("rate_limit_redis_headers ietf ratelimit ratelimit;", 1, &["\"ratelimit\"", me]),
            ("rate_limit_redis_headers $arg_a;", 1, &["\"$arg_a\"", me, right]),
            (
                "rate_limit_redis_headers ietf;\nrate_limit_redis_headers ietf;",
                2,
                &["duplicate", me],
            ),
            ("rate_limit_redis_headers x-ratelimit x-ratelimit;", 1, &[me]),
            ("rate_limit_redis_headers off;\nrate_limit_redis_headers off;", 2, &["duplicate", me]),
        ],
    );
}

#[test]
fn log_levels() {
    let me = "\"rate_limit_redis_log_level\"";
    let right = "\"info\" or \"notice\" or \"warn\" or \"error\"";
    refused_at(
        Location,
        &[
            ("rate_limit_redis_log_level;", 1, &["invalid number of arguments", me]),
            ("rate_limit_redis_log_level debug;", 1, &["\"debug\"", me, right]),
            ("rate_limit_redis_log_level crit;", 1, &["\"crit\"", me, right]),
            ("rate_limit_redis_log_level warning;", 1, &["\"warning\"", me, right]),
            ("rate_limit_redis_log_level Error;", 1, &["\"Error\"", me, right]),
            ("rate_limit_redis_log_level rate=5r/s;", 1, &["\"rate=5r/s\"", me, right]),
            (
                "rate_limit_redis_log_level info rate=5r/s info;",
                1,
                &["invalid number of arguments", me],
            ),
            (
                "rate_limit_redis_log_level info;\nrate_limit_redis_log_level info;",
                2,
                &["duplicate", me],
            ),
        ],
    );
    let right = "\"rate=<n>r/s\" with n from 1, such as rate=1000r/s";
    for word in ["rate=0r/s", "rate=5", "rate=5r/m", "rate=-1r/s", "rate=1.5r/s", "rate=", "5r/s"] {
        let line = format!("rate_limit_redis_log_level warn {word};");
        check(Location, &line, 1, &[&format!("\"{word}\""), me, right]).unwrap();
    }
}

#[test]
fn retry_jitters() {
    let me = "\"rate_limit_redis_retry_jitter\"";
    let right = "a time, such as 10s";
    for value in ["-1", "soon", "1.5s", "10x", "$arg_a", ""] {
        let line = format!("rate_limit_redis_retry_jitter '{value}';");
        check(Location, &line, 1, &[&format!("\"{value}\""), me, right]).unwrap();
    }
    refused_at(
        Location,
        &[
            ("rate_limit_redis_retry_jitter;", 1, &["invalid number of arguments", me]),
            ("rate_limit_redis_retry_jitter 1s 2s;", 1, &["invalid number of arguments", me]),
            (
                "rate_limit_redis_retry_jitter 1s;\nrate_limit_redis_retry_jitter 1s;",
                2,
                &["duplicate", me],
            ),
        ],
    );
}

#[test]
fn leases() {
    let me = "\"rate_limit_redis_lease\"";
    let right = "\"off\", \"on\" or a time between 10ms and 1m";
    for value in ["9ms", "61s", "1h", "0", "-1", "1.5s", "On", "yes", "$arg_a", ""] {
        let line = format!("rate_limit_redis_lease '{value}';");
        check(Location, &line, 1, &[&format!("\"{value}\""), me, right]).unwrap();
    }
    refused_at(
        Location,
        &[
            ("rate_limit_redis_lease;", 1, &["invalid number of arguments", me]),
            ("rate_limit_redis_lease on 1s;", 1, &["invalid number of arguments", me]),
            ("rate_limit_redis_lease on;\nrate_limit_redis_lease off;", 2, &["duplicate", me]),
        ],
    );
}

/// A notice reports, once, that leases do not apply.
#[test]
fn limits_without_leases() {
    let notices = |lease: &str, algorithms: &[&str]| {
        let line = |(n, algorithm)| {
            format!(
                "location /{n} {{ rate_limit_redis a name=n{n} rate=1r/s algorithm={algorithm}; }}"
            )
        };
        let lines: String = algorithms.iter().enumerate().map(line).collect();
        let output = conf(Server, &lines).http(lease).config_notes();
        let lines =
            |line: &&str| line.contains("[notice]") && line.contains("rate_limit_redis_lease");
        output.lines().filter(lines).map(str::to_owned).collect::<Vec<_>>()
    };
    let on = "rate_limit_redis_lease on;";
    let leased = ["token_bucket", "gcra", "sliding_window", "fixed_window"];
    let others = ["gcra", "sliding_log", "leaky_bucket", "sliding_log"];
    assert_eq!(notices(on, &leased), Vec::<String>::new());
    assert_eq!(notices("rate_limit_redis_lease off;", &others), Vec::<String>::new());
    let lines = notices(on, &others);
    assert!(lines.len() == 1 && lines[0].contains("\"sliding_log\", such as \"n1\""), "{lines:?}");
}

/// A user name is what the client says until it is verified.
#[test]
fn unverified_users() {
    let parts: &[&str] = &["\"$remote_user\"", "\"after=auth\""];
    for line in [
        "$remote_user rate=1r/s",
        "${remote_user} rate=1r/s",
        "$Remote_User rate=1r/s",
        "\"$host ${remote_user}x\" rate=1r/s",
        "$host rate=$remote_user",
        "$host rate=${remote_user}r/s",
        "$host rate=1r/s capacity=$remote_user",
        "$host rate=1r/s cost=$remote_user",
        "$host rate=1r/s settle=$remote_user",
        "$remote_user rate=1r/s dry_run",
    ] {
        warned(Location, &[(&format!("rate_limit_redis {line};"), parts)]);
    }
    for line in [
        "$remote_user rate=1r/s after=auth",
        "$remote_user after=auth rate=${remote_user}r/s cost=$remote_user",
        "$remote_user_agent rate=1r/s",
        "\"$remote_addr remote_user\" rate=1r/s",
        "x-remote_user rate=1r/s",
    ] {
        let line = format!("set $remote_user_agent a; rate_limit_redis {line};");
        conf(Location, &line).config_ok();
    }
    // Each line for itself, wherever it is inherited.
    let lines = "rate_limit_redis $remote_user rate=1r/s;
        rate_limit_redis $remote_user rate=1r/s after=auth;
        rate_limit_redis $host name=b rate=1r/s cost=$remote_user;
        location /a { location /a/b { } }
        location /c { rate_limit_redis $remote_user rate=1r/s; }";
    warned_at(Server, lines, &[(1, parts), (3, parts), (5, parts)]);
}

#[test]
fn numbers_that_clients_choose() {
    for parameter in ["rate", "capacity", "cost"] {
        for variable in
            ["$arg_a", "${arg_a}", "$http_x_cost", "$cookie_a", "$HTTP_A", "$http_content_length"]
        {
            let word = format!("{parameter}={variable}");
            let rate = if parameter == "rate" { "" } else { "rate=1r/s" };
            let line = format!("rate_limit_redis $host {rate} {word};");
            warned(Location, &[(&line, &[&format!("\"{word}\""), "the client", "\"map\""])]);
        }
    }
    let burst = "rate_limit_redis $host rate=1r/s algorithm=gcra burst=$arg_a;";
    warned(Location, &[(burst, &["\"burst=$arg_a\"", "\"map\""])]);
    let length = "rate_limit_redis $host rate=1r/s capacity=$content_length;";
    warned(Location, &[(length, &["\"capacity=$content_length\"", "\"map\""])]);
    for line in [
        "$arg_a rate=1r/s cost=$content_length",
        "$http_x_api_key rate=1r/s settle=$upstream_http_x_cost",
        "$host rate=1r/s settle=$arg_a",
        "$host rate=$tier capacity=$upstream_http_a cost=$cost",
        "$host rate=1r/s cost=1$arg_a",
    ] {
        let maps = "map $arg_a $cost { default 1; } map $http_a $tier { default 1r/s; }";
        let location = format!("location / {{ rate_limit_redis {line}; }}");
        conf(Server, &location).http(maps).config_ok();
    }
}

#[test]
fn keys_that_lack_their_dollar() {
    let of = |key: &str| format!("rate_limit_redis {key} rate=1r/s;");
    for key in [
        "remote_addr",
        "binary_remote_addr",
        "http_x_api_key",
        "arg_user",
        "rate_limit_redis_client",
        "tenant",
    ] {
        let snippet = format!("set $tenant a;\n{}", of(key));
        let parts: &[&str] = &[&format!("\"{key}\""), &format!("\"${key}\"")];
        warned_at(Location, &snippet, &[(2, parts)]);
    }
    for key in ["everyone", "remote_addr:", "remote", "a", "Remote_Addr", "remote_addr$uri", "''"] {
        conf(Location, &of(key)).config_ok();
    }
}

#[test]
fn keys_that_clients_choose_anew() {
    let part: &[&str] = &["\"$http_x_forwarded_for\"", "the client", "\"set_real_ip_from\""];
    for key in ["$http_x_forwarded_for", "${http_x_forwarded_for}", "$uri:$HTTP_X_Forwarded_For"] {
        warned(Location, &[(&format!("rate_limit_redis {key} rate=1r/s;"), part)]);
    }
    let good = "rate_limit_redis $http_x_forwarded_for_a rate=1r/s settle=$http_x_forwarded_for;";
    conf(Location, good).config_ok();
}

#[test]
fn delays_above_the_burst() {
    let of = |words: &str| format!("rate_limit_redis a rate=1r/s algorithm=leaky_bucket {words};");
    warned(Location, &[(&of("burst=5 delay=6"), &["\"delay=6\"", "\"burst=5\"", "\"nodelay\""])]);
    warned(Location, &[(&of("delay=1"), &["\"delay=1\"", "\"burst=0\""])]);
    for good in ["burst=5 delay=5", "burst=5 nodelay", "delay=0", "burst=$msec delay=9"] {
        conf(Location, &of(good)).config_ok();
    }
}

#[test]
fn long_timeouts() {
    for (value, seconds) in
        [("100", " 100 s "), ("2", " 2 s "), ("1001ms", " 1.001 s "), ("1m", " 60 s ")]
    {
        let line = format!("rate_limit_redis_timeout {value};");
        let quoted = format!("\"rate_limit_redis_timeout {value}\"");
        warned(Location, &[(&line, &[&quoted, seconds])]);
    }
    let inherited = "rate_limit_redis_timeout 2s;\nlocation / { rate_limit_redis a rate=1r/s; }";
    warned_at(Server, inherited, &[(1, &[" 2 s "])]);
}

#[test]
fn sentinels_at_the_port_of_redis() {
    let snippet = "rate_limit_redis_store edge {
        server redis://127.0.0.1;
        server redis://127.0.0.2:26379;
        server redis://:secret@127.0.0.3:6379;
        sentinel mymaster;
    }";
    let part = |address| [address, "sentinel", "26379"];
    let (one, other) = (part("127.0.0.1:6379"), part("127.0.0.3:6379"));
    warned_at(Http, snippet, &[(2, &one), (4, &other)]);
    for kind in ["", "cluster on;"] {
        let good = format!("rate_limit_redis_store a {{ server redis://127.0.0.1; {kind} }}");
        conf(Http, &good).config_ok();
    }
}

/// However much is wrong with it.
#[test]
fn a_line_is_warned_of_once() {
    let line = "rate_limit_redis $remote_user$http_x_forwarded_for rate=1r/s cost=2;";
    warned(Location, &[(line, &["$remote_user", "$http_x_forwarded_for", "\"cost=2\""])]);
}

/// Every directive, used as it may be.
const DIRECTIVES: [&str; 15] = [
    "rate_limit_redis $remote_addr rate=1r/s;",
    "rate_limit_redis off;",
    "rate_limit_redis_pass redis://127.0.0.1;",
    "rate_limit_redis_timeout 20ms;",
    "rate_limit_redis_on_error closed;",
    "rate_limit_redis_on_invalid pass;",
    "rate_limit_redis_status 429;",
    "rate_limit_redis_error_status 503;",
    "rate_limit_redis_headers off;",
    "rate_limit_redis_log_level warn;",
    "rate_limit_redis_body problem;",
    "rate_limit_redis_dry_run on;",
    "rate_limit_redis_ipv6_prefix 56;",
    "rate_limit_redis_retry_jitter 10s;",
    "rate_limit_redis_lease on;",
];

#[test]
fn places() {
    for at in [Http, Server, Location] {
        DIRECTIVES.iter().for_each(|directive| conf(at, directive).config_ok());
    }
    for at in [Main, If, ServerIf, LimitExcept, Upstream] {
        for directive in DIRECTIVES {
            let name = directive.split_once(' ').map_or("", |(name, _)| name);
            let lines = format!("\"{name}\" directive is not allowed here");
            check(at, directive, 1, &[&lines]).unwrap_or_else(|why| panic!("{at:?}: {why}"));
        }
    }
}

#[test]
fn metrics_pages() {
    let me = "\"rate_limit_redis_metrics\"";
    let right = "\"prometheus\" or \"json\" or \"html\"";
    for good in ["", " prometheus", " json", " html"] {
        conf(Location, &format!("rate_limit_redis_metrics{good};")).config_ok();
    }
    refused_at(
        Location,
        &[
            ("rate_limit_redis_metrics xml;", 1, &["\"xml\"", me, right]),
            ("rate_limit_redis_metrics on;", 1, &["\"on\"", me, right]),
            ("rate_limit_redis_metrics JSON;", 1, &["\"JSON\"", me, right]),
            ("rate_limit_redis_metrics '';", 1, &["\"\"", me, right]),
            ("rate_limit_redis_metrics $arg_a;", 1, &["\"$arg_a\"", me, right]),
            ("rate_limit_redis_metrics json html;", 1, &["invalid number of arguments", me]),
            ("rate_limit_redis_metrics;\nrate_limit_redis_metrics;", 2, &["duplicate", me]),
            ("rate_limit_redis_metrics json;\nrate_limit_redis_metrics;", 2, &["duplicate", me]),
            ("rate_limit_redis_metrics;\nrate_limit_redis_metrics json;", 2, &["duplicate", me]),
        ],
    );
    for at in [Main, Http, Server, If, ServerIf, LimitExcept, Upstream] {
        let lines = format!("{me} directive is not allowed here");
        check(at, "rate_limit_redis_metrics;", 1, &[&lines])
            .unwrap_or_else(|why| panic!("{at:?}: {why}"));
    }
}

#[test]
fn good_limits() {
    let name = "n".repeat(64);
    let good = [
        "rate_limit_redis $remote_addr rate=10r/s;",
        "rate_limit_redis $binary_remote_addr rate=100r/m;",
        "rate_limit_redis $remote_addr rate=5r/10s;",
        "rate_limit_redis $remote_addr rate=1000r/1d;",
        "rate_limit_redis $remote_addr rate=1r/h;",
        "rate_limit_redis $remote_addr rate=1r/d;",
        "rate_limit_redis $remote_addr rate=1r/2w;",
        "rate_limit_redis $remote_addr rate=3r/500ms;",
        "rate_limit_redis $remote_addr rate=1r/365d;",
        "rate_limit_redis $remote_addr rate=1000000r/s;",
        "rate_limit_redis '$remote_addr $uri' rate=1r/s;",
        "rate_limit_redis everyone rate=1r/s;",
        "rate_limit_redis $remote_addr name=a.b-c_D9 rate=1r/s;",
        &format!("rate_limit_redis $remote_addr name={name} rate=1r/s;"),
        "rate_limit_redis $remote_addr rate=1r/s capacity=1;",
        "rate_limit_redis $remote_addr capacity=50 rate=10r/s cost=5 name=x;",
        "rate_limit_redis $remote_addr rate=10r/s algorithm=token_bucket capacity=50;",
        "rate_limit_redis $remote_addr rate=10r/s algorithm=gcra;",
        "rate_limit_redis $remote_addr rate=10r/s algorithm=gcra burst=0;",
        "rate_limit_redis $remote_addr rate=10r/s algorithm=gcra burst=49;",
        "rate_limit_redis $remote_addr rate=1r/s cost=0;",
        "rate_limit_redis $remote_addr rate=10r/s cost=10;",
        "set $x 1; rate_limit_redis $remote_addr rate=${x}r/s capacity=$x cost=$x;",
        "rate_limit_redis $remote_addr rate=${arg_n}r/s algorithm=gcra burst=$msec;",
        "rate_limit_redis $remote_addr rate=10r/s refill=continuous;",
        "rate_limit_redis $remote_addr rate=10r/s refill=interval;",
        "rate_limit_redis $remote_addr rate=10r/s capacity=50 refill=interval;",
        "rate_limit_redis $remote_addr refill=interval rate=10r/s algorithm=token_bucket;",
        "rate_limit_redis $remote_addr rate=10r/s algorithm=leaky_bucket;",
        "rate_limit_redis $remote_addr rate=10r/s algorithm=leaky_bucket burst=5;",
        "rate_limit_redis $remote_addr rate=10r/s algorithm=leaky_bucket burst=5 delay=0;",
        "rate_limit_redis $remote_addr rate=10r/s algorithm=leaky_bucket burst=5 delay=3;",
        "rate_limit_redis $remote_addr rate=10r/s algorithm=leaky_bucket burst=5 nodelay;",
        "rate_limit_redis $remote_addr rate=10r/s algorithm=leaky_bucket burst=$pid cost=$msec;",
        "rate_limit_redis $remote_addr rate=10r/s algorithm=sliding_window;",
        "rate_limit_redis $remote_addr rate=10r/s algorithm=sliding_log cost=2;",
        "rate_limit_redis $remote_addr rate=10r/s algorithm=fixed_window name=w;",
        "rate_limit_redis $remote_addr rate=$hostname algorithm=sliding_log;",
        "rate_limit_redis $rate_limit_redis_client rate=10r/s;",
        // What may differ under one name.
        "rate_limit_redis a rate=1r/s algorithm=leaky_bucket burst=5 nodelay;
         rate_limit_redis b rate=1r/s algorithm=leaky_bucket burst=5 delay=2;
         rate_limit_redis c rate=1r/s algorithm=leaky_bucket burst=5 cost=0;",
        "rate_limit_redis a rate=1r/s;\nrate_limit_redis b rate=1r/s cost=0;",
        "rate_limit_redis a rate=1r/s;\nrate_limit_redis a name=b rate=2r/s;",
    ];
    for snippet in good {
        conf(Location, snippet).config_ok();
    }
}

#[test]
fn good_stores() {
    let good = [
        "redis://127.0.0.1",
        "redis://127.0.0.1:6380",
        "redis://127.0.0.1/",
        "redis://127.0.0.1:6379/15",
        "redis://localhost:6379",
        "redis://[::1]:6379/1",
        "redis://:secret@127.0.0.1",
        "redis://bob:p%40ss%2Fw%3Ard@127.0.0.1:6379/3",
        "redis+unix:///run/redis/redis.sock",
        "redis+unix:///run/redis/redis.sock?db=2",
    ];
    for url in good {
        let snippet = format!("rate_limit_redis_pass {url}; rate_limit_redis a rate=1r/s;");
        for at in [Http, Server, Location] {
            conf(at, &snippet).config_ok();
        }
    }
}

#[test]
fn good_settings() {
    let good = [
        "rate_limit_redis_timeout 1ms;",
        "rate_limit_redis_timeout 1s;",
        "rate_limit_redis_timeout 1000ms;",
        "rate_limit_redis_on_error open;",
        "rate_limit_redis_on_invalid reject;",
        "rate_limit_redis_status 400;",
        "rate_limit_redis_status 493;",
        "rate_limit_redis_status 498;",
        "rate_limit_redis_status 599;",
        "rate_limit_redis_error_status 400;",
        "rate_limit_redis_error_status 599;",
        "rate_limit_redis_headers x-ratelimit;",
        "rate_limit_redis_headers x-ratelimit-epoch;",
        "rate_limit_redis_headers ratelimit;",
        "rate_limit_redis_headers ietf;",
        "rate_limit_redis_headers ietf ratelimit x-ratelimit-epoch;",
        "rate_limit_redis_body html;",
        "rate_limit_redis_body json;",
        "rate_limit_redis_body problem;",
        "rate_limit_redis_dry_run off;",
        "rate_limit_redis_log_level info;",
        "rate_limit_redis_log_level notice;",
        "rate_limit_redis_log_level error;",
        "rate_limit_redis_log_level warn rate=1r/s;",
        "rate_limit_redis_retry_jitter 0;",
        "rate_limit_redis_retry_jitter 1m;",
        "rate_limit_redis_lease off;",
        "rate_limit_redis_lease 10ms;",
        "rate_limit_redis_lease 1m;",
    ];
    for snippet in good {
        conf(Location, snippet).config_ok();
    }
    conf(Http, &DIRECTIVES.map(|line| line.replace("rate_limit_redis off;", "")).join("\n"))
        .config_ok();
}

#[test]
fn good_wholes() {
    // One definition, in several servers and levels.
    let shared = "rate_limit_redis $remote_addr name=shared rate=9r/s";
    conf(Http, &format!("{shared};\nserver {{ location / {{ {shared} cost=2; }} }}")).config_ok();
    // One limit of http, which is checked at the store of each server that has one.
    let server = "location / { rate_limit_redis_pass redis://127.0.0.1:1; }";
    conf(Server, server).http(&format!("{shared};")).config_ok();
    // Settings without any limit.
    conf(Http, "rate_limit_redis_pass redis://127.0.0.1:1; rate_limit_redis_status 503;")
        .config_ok();
}
