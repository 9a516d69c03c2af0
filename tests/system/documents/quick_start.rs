//! scripts/run, scripts/build and scripts/package, as a newcomer starts them.

use std::fs::{self, Permissions};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use harness::{Http, Redis, ScriptRun, free_port};
use tempfile::TempDir;

use crate::seen::keys;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// `scripts/build` with these arguments, where the NGINX in the PATH is this script.
fn build(script: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    let directory = tempfile::tempdir().expect("a directory");
    let nginx = directory.path().join("nginx");
    fs::write(&nginx, format!("#!/bin/sh\n{script}\n")).expect("write a script");
    fs::set_permissions(&nginx, Permissions::from_mode(0o755)).expect("make it executable");
    let path = std::env::var("PATH").expect("a path");
    let mut command = Command::new(format!("{ROOT}/scripts/build"));
    command.env("PATH", format!("{}:{path}", directory.path().display())).args(arguments);
    let (status, output) = ScriptRun::of(command).end();
    (status, output, nginx.display().to_string())
}

/// A directory of NGINX's sources, as far as their version is read.
fn sources(version: &str) -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let core = directory.path().join("src/core");
    fs::create_dir_all(&core).expect("make directories");
    let line = format!("#define NGINX_VERSION      \"{version}\"\n");
    fs::write(core.join("nginx.h"), line).expect("write a header");
    directory
}

/// A module loads only into the version that it was built for.
#[test]
fn sources_of_another_version_are_explained() {
    let other = sources("1.99.0");
    let other = other.path().to_str().expect("a path");
    for (version, arguments, have) in [
        ("nginx/1.99.1", &[][..], "the sources of nginx-dev are of nginx/1."),
        ("nginx/1.99.1 (own)", &[], "the sources of nginx-dev are of nginx/1."),
        ("openresty/1.99.1.1", &[], "the sources of nginx-dev are of nginx/1."),
        ("nginx/1.99.1", &["--source", other], "are of nginx/1.99.0.\n"),
    ] {
        let script = format!("echo 'nginx version: {version}' >&2");
        let (status, output, nginx) = build(&script, arguments);
        assert_eq!(status, Some(1), "{output}");
        let word = version.split(' ').next().expect("a word");
        for part in [
            &format!("{nginx} is {word}, and the sources "),
            have,
            "nginx-1.99.1.tar.gz",
            &format!("scripts/build --nginx {nginx} --source /path/to/nginx-1.99.1\n"),
        ] {
            assert!(output.contains(part), "{part} is not in {output}");
        }
        assert!(!output.contains("building the module"), "{output}");
    }
}

#[test]
fn what_is_no_nginx_is_explained() {
    for (script, message) in [
        ("echo 'nginx version: Angie/1.10.0' >&2", "is Angie/1.10.0: the module cannot be built"),
        ("echo hello >&2", "is no NGINX: its -v shows nothing like nginx/1.28.0"),
        // The one of the distribution, but for its flags.
        (
            "# 8,4,8,1111111111111111111111111111111111\nexec /usr/sbin/nginx \"$@\"",
            "has the signature 8,4,8,1111",
        ),
    ] {
        let (status, output, nginx) = build(script, &[]);
        assert_eq!(status, Some(1), "{output}");
        assert!(output.contains(&format!("{nginx} {message}")), "{output}");
        assert!(!output.contains("building the module"), "{output}");
    }
    let cases = [
        (
            &["--nginx", "/nowhere/nginx"][..],
            "--nginx needs the path of an NGINX, not '/nowhere/nginx'",
        ),
        (
            &["--source", "/tmp"],
            "--source needs NGINX's sources, with src/core/nginx.h, not '/tmp'",
        ),
        (&["--source"], "--source needs a directory with NGINX's sources, not ''"),
        (&["--vendored"], "unknown option --vendored; usage: scripts/build [--nginx PATH]"),
    ];
    for (arguments, message) in cases {
        let (status, output, _) = build("exec /usr/sbin/nginx \"$@\"", arguments);
        assert_eq!(status, Some(1), "{output}");
        assert!(output.starts_with(&format!("build: {message}")), "{output}");
    }
}

#[test]
fn what_cannot_be_packaged_is_explained() {
    let sources = sources("1.99.0");
    let sources = sources.path().to_str().expect("a path");
    let together =
        "--nginx-org and --source go together; usage: scripts/package [--revision NUMBER]";
    let other = format!("the sources in {sources} are those of nginx 1.99.0, not 1.99.1");
    let cases = [
        (&["--revision", "0"][..], "--revision needs a number from 1 on, not '0'"),
        (&["--nginx-org", "stable"], "--nginx-org needs a version like 1.30.6, not 'stable'"),
        (&["--nginx-org", "1.99.0"], together),
        (&["--source", sources], together),
        (
            &["--source", "/tmp"],
            "--source needs NGINX's sources, with src/core/nginx.h, not '/tmp'",
        ),
        (&["--nginx-org", "1.99.1", "--source", sources], &other),
        (&["--rpm"], "unknown option --rpm; usage: scripts/package [--revision NUMBER]"),
    ];
    for (arguments, message) in cases {
        let mut command = Command::new(format!("{ROOT}/scripts/package"));
        command.args(arguments);
        let (status, output) = ScriptRun::of(command).end();
        assert_eq!(status, Some(1), "{output}");
        assert!(output.starts_with(&format!("package: {message}")), "{output}");
    }
}

#[test]
fn every_script_has_help() {
    for entry in fs::read_dir(format!("{ROOT}/scripts")).expect("the scripts") {
        let script = entry.expect("an entry").path();
        // Those are for other scripts.
        if script.extension().is_some() {
            continue;
        }
        let mut command = Command::new(&script);
        command.arg("--help");
        let (status, output) = ScriptRun::of(command).end();
        assert_eq!(status, Some(0), "{}: {output}", script.display());
        assert!(
            output.ends_with('\n') && !output.contains("==>"),
            "{}: {output}",
            script.display()
        );
    }
}

#[test]
fn a_bad_value_is_explained() {
    let cases = [
        (&["--port", "0"][..], "--port needs a number from 1 to 65535, not '0'"),
        (&["--port", "65536"], "--port needs a number from 1 to 65535, not '65536'"),
        (&["--port"], "--port needs a number from 1 to 65535, not ''"),
        (&["--redis", "http://a"], "--redis needs redis://host[:port], "),
        (&["--redis", "redis://a; b"], "--redis needs redis://host[:port], "),
        (&["--redis"], "--redis needs redis://host[:port], "),
        (&["--redis", "redis://a", "--cluster"], "--cluster and --redis exclude each other"),
        (&["--port=8080"], "unknown option --port=8080; usage: scripts/run "),
    ];
    for (arguments, message) in cases {
        let (status, output) = ScriptRun::demo(arguments).end();
        assert_eq!(status, Some(1), "{arguments:?}");
        assert!(output.starts_with(&format!("run: {message}")), "{arguments:?}: {output}");
        assert_eq!(output.lines().count(), 1, "{output}");
    }
    let (status, help) = ScriptRun::demo(&["--help"]).end();
    assert_eq!(status, Some(0));
    assert!(help.contains("scripts/run --redis URL") && !help.contains('#'), "{help}");
}

#[test]
fn a_port_that_is_taken_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("its address").port().to_string();
    let (status, output) = ScriptRun::demo(&["--once", "--port", &port]).end();
    assert_eq!(status, Some(1));
    assert!(output.contains(&format!("run: port {port} of 127.0.0.1 is taken")), "{output}");
}

#[test]
fn once_limits_as_configured() {
    let (status, output) = ScriptRun::demo(&["--once"]).end();
    assert_eq!(status, Some(0), "{output}");
    assert!(output.contains("limited as configured"), "{output}");
}

#[test]
fn a_redis_of_ones_own_keeps_what_it_holds() {
    let redis = Redis::start();
    redis.command::<()>(&["SET", "foreign", "1"]);
    redis.command::<()>(&["SET", "rl:api:127.0.0.1", "not ours"]);
    let addr: SocketAddr = ([127, 0, 0, 1], free_port()).into();
    let port = addr.port().to_string();
    let mut run = ScriptRun::demo(&["--redis", &redis.url(), "--port", &port]);
    run.wait_for("Ctrl-C ends", 1);
    let output = run.output();
    assert!(output.contains("limited as configured"), "{output}");
    assert!(output.contains(&format!("Open http://{addr}/ in a browser")), "{output}");

    let mut http = Http::connect(addr);
    let page = fs::read_to_string(format!("{ROOT}/nginx-conf/demo/index.html")).expect("the page");
    assert_eq!(http.get("/").text(), page);
    // The period is an hour: its key is still there at the end.
    let answer = http.get("/demo/gcra?key=me&n=1&per=1h");
    assert_eq!(answer.header("X-RateLimit-Limit"), Some("11"));

    run.process.signal(libc::SIGTERM);
    let (status, output) = run.end();
    assert_eq!(status, Some(143), "{output}");
    assert!(Http::try_connect(addr).is_err(), "nginx has ended");
    assert_eq!(redis.command::<String>(&["GET", "rl:api:127.0.0.1"]), "not ours");
    let (own, foreign): (Vec<_>, Vec<_>) =
        keys(&redis).into_iter().partition(|key| key.starts_with("rl:demo."));
    assert_eq!(foreign, ["foreign", "rl:api:127.0.0.1"]);
    assert!(own.iter().any(|key| key.ends_with(":demo_gcra:a:me:1r/1h:10")), "{own:?}");
    for key in own {
        // One that has just expired has no time left either.
        assert_ne!(redis.command::<i64>(&["PTTL", &key]), -1, "{key} stays");
    }
}
