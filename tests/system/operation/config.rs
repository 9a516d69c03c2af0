//! The errors and warnings of a configuration, as far as NGINX has a part in them: where a mistake is, where a
//! directive may stand, what another level has set, and what variables, files and addresses there are. What words
//! alone make is tested in the pure crate, in `conf`.

use std::panic::catch_unwind;

use harness::Conf;
use rate_limit_core::conf::{Arguments, Contexts, DIRECTIVES, Directive, PolicyLevel, Row, Sets};
use rate_limit_core::limit::Algorithm;

use crate::seen::choice;

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
    warned_of(&conf(at, snippet), snippet, lines);
}

/// Checks the same of a configuration that has `snippet`.
#[track_caller]
fn warned_of(conf: &Conf, snippet: &str, lines: &[(usize, &[&str])]) {
    let (valid, output) = conf.check();
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

const ME: &str = "\"rate_limit_redis\"";

/// Each kind of error is shown with the place of its line.
#[test]
fn a_mistake_is_reported_with_its_place() {
    let url = "the port must be a number between 1 and 65535";
    refused_at(
        Location,
        &[
            ("\nrate_limit_redis $remote_addr;", 2, &["rate=", ME, "such as"]),
            ("rate_limit_redis a\n    rate=10r;", 2, &["rate \"10r\"", "<n>r/<period>", ME]),
            (
                "rate_limit_redis a rate=1r/s;\nrate_limit_redis b rate=1r/s zone=a;",
                2,
                &["\"zone=a\""],
            ),
            ("rate_limit_redis a rate=1r/s settle=x;", 1, &["settle \"x\"", "such as 3 or 0.25"]),
            (
                "rate_limit_redis a rate=1r/52w capacity=101;",
                1,
                &["\"capacity=101\"", "hundred years"],
            ),
            (
                "rate_limit_redis_timeout 0;",
                1,
                &["\"0\"", "\"rate_limit_redis_timeout\"", "above 0"],
            ),
            (
                "rate_limit_redis_metrics xml;",
                1,
                &["\"xml\"", "\"rate_limit_redis_metrics\"", "\"json\""],
            ),
            ("rate_limit_redis_pass redis://127.0.0.1:0;", 1, &["\"rate_limit_redis_pass\"", url]),
            ("rate_limit_redis_pass 'redis://:s3cret@a b/x';", 1, &["\"redis://***@a b/x\""]),
        ],
    );
}

/// NGINX counts the arguments of a directive. Which number each directive may have is in the table of directives,
/// which a test compares with the reference.
#[test]
fn arguments_are_counted() {
    let one_of =
        |arguments| DIRECTIVES.iter().find(|row| row.arguments == arguments).expect("a row");
    for (arguments, wrong) in [
        (Arguments::None, &["on"][..]),
        (Arguments::AtMostOne, &["json html"]),
        (Arguments::One, &["", "a b"]),
        (Arguments::OneOrTwo, &["", "a b c"]),
        (Arguments::OneOrMore, &[""]),
    ] {
        let name = one_of(arguments).name.to_str().expect("a name");
        for words in wrong {
            let message = format!("invalid number of arguments in \"{name}\" directive");
            check(Location, &format!("{name} {words};"), 1, &[&message]).unwrap();
        }
    }
    let block = "rate_limit_redis_store a;";
    check(Http, block, 1, &["directive \"rate_limit_redis_store\" has no opening \"{\""]).unwrap();
    check(Http, "rate_limit_redis_store { }", 1, &["invalid number of arguments"]).unwrap();
    check(Http, "rate_limit_redis_timeout 1s { }", 1, &["is not terminated by \";\""]).unwrap();
}

#[test]
fn broken_variables_are_reported_at_their_place() {
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
fn an_unknown_variable_is_refused() {
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

/// Whether the pure crate reads a value of a directive that has a time or a size.
fn is_read(name: &str, value: &str) -> bool {
    let directive = Directive::new([name.as_bytes(), value.as_bytes()]);
    match Row::find(name).expect("a directive").sets {
        Sets::Policy(set) => set(&mut PolicyLevel::default(), &directive).is_ok(),
        Sets::Memory { read, .. } | Sets::Top { read, .. } => read(&directive).is_ok(),
        _ => panic!("{name} has neither a time nor a size"),
    }
}

/// The pure crate reads the times and sizes that NGINX reads, and refuses the others.
#[test]
fn times_and_sizes_are_those_of_nginx() {
    let times = [
        "0",
        "20ms",
        "90",
        "1h30m",
        "1h 30m",
        "1w1d1h1m1s1ms",
        "1h30",
        "1ms2",
        "1s2",
        "5 6",
        "90 ",
        " 5",
        "m5",
        "007s",
        "9223372036854775807ms",
        "9223372036854775",
    ];
    let no_times = ["", "-1s", "1y", "30m1h", "1 s", "9223372036854775808ms"];
    let sizes = ["256k", "262144", "1M", "008m", "8796093022207m", "9223372036854775807"];
    let no_sizes = ["k", "1g", "8796093022208m"];
    for (own, of_nginx, good, bad) in [
        ("rate_limit_redis_retry_jitter", "send_timeout", &times[..], &no_times[..]),
        ("rate_limit_redis_shared_memory", "client_body_buffer_size", &sizes, &no_sizes),
    ] {
        let location = |(n, value)| format!("location /{n} {{ {of_nginx} '{value}'; }}\n");
        conf(Server, &good.iter().enumerate().map(location).collect::<String>()).config_ok();
        for value in bad {
            check(Location, &format!("{of_nginx} '{value}';"), 1, &[of_nginx, "invalid value"])
                .unwrap();
        }
        assert_eq!(good.iter().find(|value| !is_read(own, value)), None);
        assert_eq!(bad.iter().find(|value| is_read(own, value)), None);
    }
}

/// A directive may stand once at a level, and again at the next one.
#[test]
fn a_directive_stands_once_at_a_level() {
    refused_at(
        Location,
        &[
            (
                "rate_limit_redis_body json;\nrate_limit_redis_body json;",
                2,
                &["\"rate_limit_redis_body\" directive is duplicate"],
            ),
            (
                "rate_limit_redis_pass a;\nrate_limit_redis_pass redis://127.0.0.1;",
                2,
                &["\"rate_limit_redis_pass\" directive is duplicate"],
            ),
            (
                "rate_limit_redis_metrics;\nrate_limit_redis_admin;",
                2,
                &["\"rate_limit_redis_admin\" directive cannot", "\"rate_limit_redis_metrics\""],
            ),
            (
                "rate_limit_redis_admin;\nrate_limit_redis_metrics;",
                2,
                &["\"rate_limit_redis_metrics\" directive cannot", "\"rate_limit_redis_admin\""],
            ),
            (
                "rate_limit_redis_metrics;\nrate_limit_redis_metrics json;",
                2,
                &["\"rate_limit_redis_metrics\" directive is duplicate"],
            ),
        ],
    );
    let memory = "rate_limit_redis_shared_memory 1m;\nrate_limit_redis_shared_memory 1m;";
    refused_at(
        Http,
        &[(memory, 2, &["\"rate_limit_redis_shared_memory\" directive is duplicate"])],
    );
    let all = EVERYWHERE.join("\n").replace("rate_limit_redis off;", "");
    conf(Location, &all).http(&all).server(&all).config_ok();
}

#[test]
fn off_stands_beside_no_other_line() {
    let beside = &["\"rate_limit_redis off\"", "beside"];
    refused_at(
        Location,
        &[
            ("rate_limit_redis off rate=1r/s;", 1, &["\"rate_limit_redis off\"", "no parameters"]),
            ("rate_limit_redis off;\nrate_limit_redis off;", 2, beside),
            ("rate_limit_redis off;\nrate_limit_redis a rate=1r/s;", 2, beside),
            ("rate_limit_redis a rate=1r/s;\n\nrate_limit_redis off;", 3, beside),
        ],
    );
    refused_at(Http, &[("rate_limit_redis a rate=1r/s;\nrate_limit_redis off;", 2, beside)]);
    refused_at(Server, &[("rate_limit_redis off;\nrate_limit_redis a rate=1r/s;", 2, beside)]);
}

/// The rules of a definition are tested in the pure crate.
#[test]
fn two_definitions_of_one_name_are_refused() {
    for (first, other, part) in [
        ("rate_limit_redis a rate=60r/m;", "rate_limit_redis a rate=1r/s;", "\"default\""),
        (
            "rate_limit_redis a name=x rate=$arg_a;",
            "rate_limit_redis a name=x rate=$arg_b;",
            "rate=$arg_a",
        ),
    ] {
        // The first is in the second line of the snippet, the other in the fourth.
        let snippet = format!("\n{first}\n\n{other}\n");
        check(Location, &snippet, 4, &[part, "/snippet.conf:2", "name="]).unwrap();
        // The first at another level, in another file.
        let output = conf(Location, other).file("first.conf", &format!("\n\n{first}"));
        let output = output.http("include {prefix}/first.conf;").config_error();
        for part in [part, "/first.conf:3", "name=", "/snippet.conf:1"] {
            assert!(output.contains(part), "{part} is not in {output}");
        }
    }
    for line in [
        "rate_limit_redis a rate=1r/s;\nrate_limit_redis $remote_user rate=1r/s after=auth;",
        "rate_limit_redis a rate=1r/s;\nrate_limit_redis b rate=1r/s dry_run cost=0;",
    ] {
        conf(Location, line).config_ok();
    }
}

#[test]
fn one_name_in_two_stores_is_refused() {
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
fn limits_of_a_server_in_two_stores_are_refused() {
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

/// An error of OpenSSL about the settings of TLS is one of the whole block, at its end.
#[test]
fn errors_of_tls_are_those_of_the_block() {
    let block =
        |url: &str, lines: &str| format!("rate_limit_redis_store a {{\nserver {url};\n{lines}\n}}");
    let tls = "rediss://127.0.0.1";
    let wholes: [(&str, &str, &[&str]); 7] = [
        (
            tls,
            "ssl_trusted_certificate no.pem;",
            &[
                "in \"rate_limit_redis_store\" \"a\"",
                "\"ssl_trusted_certificate\"",
                "/no.pem",
                "No such",
            ],
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
        (tls, "ssl_certificate a;", &["no \"ssl_certificate_key\"", "certificate \"a\""]),
        (tls, "ssl_ciphers NONE;", &["\"ssl_ciphers\"", "\"NONE\"", "no cipher match"]),
        ("redis://127.0.0.1", "ssl_verify on;", &["TLS", "rediss://"]),
    ];
    let wholes = wholes.map(|(url, lines, parts)| (block(url, lines), 4, parts));
    let all: Vec<_> =
        wholes.iter().map(|(text, line, parts)| (text.as_str(), *line, *parts)).collect();
    refused_at(Http, &all);
    let line = block(tls, "ssl_protocols TLSv1.2 on;");
    refused_at(Http, &[(&line, 3, &["\"on\"", "\"ssl_protocols\"", "\"TLSv1.3\""])]);
    for good in [
        "ssl_verify off;",
        "ssl_verify on; ssl_name redis.internal; ssl_protocols TLSv1.2 TLSv1.3 TLSv1.2;",
        "ssl_ciphers HIGH:!aNULL; ssl_protocols SSLv3 TLSv1 TLSv1.1;",
    ] {
        conf(Http, &format!("{} rate_limit_redis_pass a;", block(tls, good))).config_ok();
    }
}

#[test]
fn a_host_that_cannot_be_resolved_is_refused() {
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

/// A notice reports, once, that leases do not apply.
#[test]
fn limits_without_leases_are_noted_once() {
    let notices = |lease: &str, algorithms: &[Algorithm]| {
        let line = |(n, algorithm): (usize, &Algorithm)| {
            let words = choice(*algorithm);
            format!("location /{n} {{ rate_limit_redis a name=n{n} rate=1r/s {words}; }}")
        };
        let lines: String = algorithms.iter().enumerate().map(line).collect();
        let output = conf(Server, &lines).http(lease).config_notes();
        let lines =
            |line: &&str| line.contains("[notice]") && line.contains("rate_limit_redis_lease");
        output.lines().filter(lines).map(str::to_owned).collect::<Vec<_>>()
    };
    let on = "rate_limit_redis_lease on;";
    let (leased, others): (Vec<_>, Vec<_>) =
        Algorithm::ALL.into_iter().partition(|algorithm| algorithm.has_leases());
    assert_eq!(notices(on, &leased), Vec::<String>::new());
    assert_eq!(notices("rate_limit_redis_lease off;", &others), Vec::<String>::new());
    for other in others {
        let lines = notices(on, &[Algorithm::Gcra, other, Algorithm::SlidingLog]);
        let first = format!("\"{}\", such as \"n1\"", other.name());
        assert!(lines.len() == 1 && lines[0].contains(&first), "{lines:?}");
    }
}

/// Each line gets a warning of its own, once, wherever it is inherited.
#[test]
fn a_line_is_warned_of_at_its_place() {
    let user: &[&str] = &["\"$remote_user\"", "\"after=auth\""];
    let lines = "rate_limit_redis $remote_user rate=1r/s;
        rate_limit_redis $remote_user rate=1r/s after=auth;
        rate_limit_redis $host name=b rate=1r/s cost=$remote_user;
        location /a { location /a/b { } }
        location /c { rate_limit_redis $remote_user rate=1r/s; }
        location /d { rate_limit_redis $host name=d rate=1r/s cost=2; }";
    let cost: &[&str] = &["\"cost=2\"", "every request will be rejected"];
    warned_at(Server, lines, &[(1, user), (3, user), (5, user), (6, cost)]);
    let inherited = "rate_limit_redis_timeout 2s;\nlocation / { rate_limit_redis a rate=1r/s; }";
    warned_at(Server, inherited, &[(1, &["\"rate_limit_redis_timeout 2s\"", " 2 s "])]);
}

/// A line gets one warning, however much is wrong with it.
#[test]
fn a_line_is_warned_of_once() {
    let line = "rate_limit_redis $remote_user$http_x_forwarded_for rate=1r/s cost=2;";
    warned_at(Location, line, &[(1, &["$remote_user", "$http_x_forwarded_for", "\"cost=2\""])]);
}

/// NGINX knows the variables: its own, those of any name with a prefix, the module's and those of the configuration.
#[test]
fn keys_that_lack_their_dollar_are_warned_of() {
    let of = |key: &str| format!("rate_limit_redis {key} rate=1r/s;");
    let keys = [
        "remote_addr",
        "binary_remote_addr",
        "http_x_api_key",
        "arg_user",
        "rate_limit_redis_client",
        "tenant",
    ];
    let lines: Vec<_> = keys.iter().map(|key| of(key)).collect();
    let snippet = format!("set $tenant a;\n{}", lines.join("\n"));
    let parts = keys.map(|key| [format!("\"{key}\""), format!("\"${key}\"")]);
    let parts: Vec<_> = parts.iter().map(|parts| parts.each_ref().map(String::as_str)).collect();
    let numbers = parts.iter().enumerate().map(|(n, parts)| (n + 2, &parts[..]));
    warned_at(Location, &snippet, &numbers.collect::<Vec<_>>());
    let good = ["everyone", "remote_addr:", "remote", "a", "Remote_Addr", "remote_addr$uri"];
    conf(Location, &good.map(of).join("\n")).config_ok();
}

#[test]
fn sentinels_at_the_port_of_redis_are_warned_of() {
    let snippet = "rate_limit_redis_store edge {
        server redis://127.0.0.1;
        server redis://127.0.0.2:26379;
        server redis://:secret@127.0.0.3:6379;
        sentinel mymaster;
    }
    rate_limit_redis_pass edge;";
    let part = |address| [address, "sentinel", "26379"];
    let (one, other) = (part("127.0.0.1:6379"), part("127.0.0.3:6379"));
    warned_at(Http, snippet, &[(2, &one), (4, &other)]);
}

/// A store counts as used where any `rate_limit_redis_pass` names it, at whatever level, before it or after it.
#[test]
fn stores_that_no_limit_uses_are_warned_of() {
    let snippet = "rate_limit_redis_pass before;
rate_limit_redis_store before { server redis://127.0.0.1; }

rate_limit_redis_store idle {
    server redis://127.0.0.1;
}
rate_limit_redis_store inside { server redis://127.0.0.1; }";
    let parts = ["\"rate_limit_redis_store\" \"idle\"", "\"rate_limit_redis_pass\""];
    let conf = conf(Http, snippet).server("location / { rate_limit_redis_pass inside; }");
    warned_of(&conf, snippet, &[(4, &parts)]);
}

#[test]
fn a_time_to_connect_that_lacks_its_unit_is_warned_of() {
    let snippet = "rate_limit_redis_store edge {
        server redis://127.0.0.1;
        connect_timeout 250;
    }
    rate_limit_redis_pass edge;";
    warned_at(Http, snippet, &[(3, &["\"connect_timeout 250\"", "250 s", "without a unit"])]);
}

#[test]
fn a_file_that_cannot_be_read_is_refused() {
    let snippet =
        "rate_limit_redis_store edge {\nserver redis://127.0.0.1;\npassword_file nonexist;\n}";
    let parts =
        ["cannot read \"/", "/nonexist\" of \"password_file\" (2: No such file or directory) in"];
    refused_at(Http, &[(snippet, 3, &parts)]);
}

/// Each copy of a line is warned of, at its own place.
#[test]
fn lines_that_are_given_twice_are_warned_of() {
    let line = "rate_limit_redis $remote_addr rate=1r/s;";
    let snippet = format!("{line}\nrate_limit_redis $uri rate=1r/s;\n{line}");
    warned_at(Location, &snippet, &[(3, &["given twice", "\"default\"", "/snippet.conf:1,"])]);
    conf(Location, line).server(line).config_ok();
}

/// Every directive that may stand at any level, used as it may be.
const EVERYWHERE: &[&str] = &[
    "rate_limit_redis $remote_addr rate=1r/s;",
    "rate_limit_redis off;",
    "rate_limit_redis_pass redis://127.0.0.1;",
    "rate_limit_redis_timeout 20ms;",
    "rate_limit_redis_on_error closed;",
    "rate_limit_redis_on_invalid pass;",
    "rate_limit_redis_status 429;",
    "rate_limit_redis_error_status 503;",
    "rate_limit_redis_headers off;",
    "rate_limit_redis_log_level warn rate=5r/s;",
    "rate_limit_redis_log_key off;",
    "rate_limit_redis_body problem;",
    "rate_limit_redis_dry_run on;",
    "rate_limit_redis_ipv4_prefix 24;",
    "rate_limit_redis_ipv6_prefix 56;",
    "rate_limit_redis_retry_jitter 10s;",
    "rate_limit_redis_deny_cache off;",
    "rate_limit_redis_lease on;",
];

/// NGINX knows where a directive may stand. Where each may is in the table of directives, which a test compares with
/// the reference; all of a kind are the same to NGINX.
#[test]
fn a_directive_stands_where_it_may() {
    let elsewhere = |at, line: &str| {
        let name = line.split([' ', ';']).next().expect("a name");
        let message = format!("\"{name}\" directive is not allowed here");
        check(at, line, 1, &[&message]).unwrap_or_else(|why| panic!("{at:?}: {why}"));
    };
    for at in [Http, Server, Location] {
        conf(at, "rate_limit_redis off;").config_ok();
    }
    for at in [Main, If, ServerIf, LimitExcept, Upstream] {
        elsewhere(at, "rate_limit_redis $remote_addr rate=1r/s;");
    }
    conf(Http, "rate_limit_redis_shared_memory 1m;").config_ok();
    for at in [Main, Server, Location, If, ServerIf, LimitExcept, Upstream] {
        elsewhere(at, "rate_limit_redis_shared_memory 1m;");
    }
    conf(Location, "rate_limit_redis_metrics;").config_ok();
    for at in [Main, Http, Server, If, ServerIf, LimitExcept, Upstream] {
        elsewhere(at, "rate_limit_redis_metrics;");
    }
}

/// The table names every directive that may stand at any level.
#[test]
fn every_directive_is_used_as_it_may_be() {
    let rows = DIRECTIVES.iter().filter(|row| row.contexts == Contexts::Everywhere);
    for row in rows {
        let name = format!("{} ", row.name.to_str().expect("a name"));
        assert!(EVERYWHERE.iter().any(|line| line.starts_with(&name)), "{name}");
    }
}

#[test]
fn good_limits_are_accepted() {
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
        "rate_limit_redis $remote_addr rate=${msec}r/s algorithm=gcra burst=$msec;",
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
        // These parameters may differ under one name.
        "rate_limit_redis a rate=1r/s algorithm=leaky_bucket burst=5 nodelay;
         rate_limit_redis b rate=1r/s algorithm=leaky_bucket burst=5 delay=2;
         rate_limit_redis c rate=1r/s algorithm=leaky_bucket burst=5 cost=0;",
        "rate_limit_redis a rate=1r/s;\nrate_limit_redis b rate=1r/s cost=0;",
        "rate_limit_redis a rate=1r/s;\nrate_limit_redis a name=b rate=2r/s;",
    ];
    // Each in a location of its own, and with a name of its own where it has none.
    let location = |(n, snippet): (usize, &&str)| {
        let named = match snippet.contains("name=") {
            true => snippet.to_string(),
            false => snippet.replace(" rate=", &format!(" name=n{n} rate=")),
        };
        format!("location /{n} {{ {named} }}\n")
    };
    conf(Server, &good.iter().enumerate().map(location).collect::<String>()).config_ok();
}

#[test]
fn good_stores_are_accepted() {
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
    let of = |url: &str, n: usize| {
        format!("rate_limit_redis_pass {url}; rate_limit_redis a name=n{n} rate=1r/s;")
    };
    let location = |(n, url): (usize, &&str)| format!("location /{n} {{ {} }}\n", of(url, n));
    conf(Server, &good.iter().enumerate().map(location).collect::<String>()).config_ok();
    for at in [Http, Server, Location] {
        conf(at, &of(good[0], 0)).config_ok();
    }
}

#[test]
fn good_settings_are_accepted() {
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
        "rate_limit_redis_metrics;",
        "rate_limit_redis_metrics prometheus;",
        "rate_limit_redis_metrics json;",
        "rate_limit_redis_metrics html;",
    ];
    let location = |(n, snippet)| format!("location /{n} {{ {snippet} }}\n");
    conf(Server, &good.iter().enumerate().map(location).collect::<String>()).config_ok();
}

#[test]
fn good_wholes_are_accepted() {
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
