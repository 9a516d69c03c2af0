//! docs/admin.md, what Operations says of clients that are limited, and scripts/limits.

use std::process::{Command, Output};

use harness::{Conf, Nginx, Redis};

use crate::documents::pages::{block, conf};
use crate::seen::{StartConnected as _, quota, remaining};

const RECIPES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/recipes.md");
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/limits");

/// The configuration of the page, but that nothing comes back in the time of a test.
fn machine(redis: &Redis) -> Nginx {
    let text = block("docs/admin.md", "name=api");
    conf(&text.replace("100r/m", "100r/d"), redis).start_connected(redis)
}

fn script(arguments: &[&str]) -> Output {
    Command::new(SCRIPT).args(arguments).output().expect("run the script")
}

/// The output of `scripts/limits`, which must succeed.
#[track_caller]
fn limits(nginx: &Nginx, arguments: &[&str]) -> String {
    let url = nginx.url("/limits");
    let output = script(&[&[url.as_str()], arguments].concat());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {text}{errors}");
    text
}

/// The error of `scripts/limits`.
#[track_caller]
fn failure(url: &str, arguments: &[&str]) -> String {
    let output = script(&[&[url], arguments].concat());
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_terminal_shows_and_changes_a_client() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = machine(&redis);
    let shown = |arguments: &[&str], part: &str| {
        let text = limits(&nginx, arguments);
        assert!(text.contains(part), "{part} is not in {text}");
        serde_json::from_str::<serde_json::Value>(&text).expect("JSON");
    };
    assert_eq!(remaining(&nginx.get("/api")), 99);
    let of = |action| [action, "api", "127.0.0.1"];
    let with = |action, words: &[&'static str]| [&of(action)[..], words].concat();
    shown(&[], "{\"name\":\"api\",");
    shown(&of("show"), "\"remaining\":99,\n");
    shown(&with("grant", &["1"]), "\"remaining\":100,\n");
    shown(&with("block", &["15m"]), "\"blocked_for\":900,\n");
    assert_eq!(nginx.get("/api").status, 429);
    shown(&of("unblock"), "\"blocked_for\":0,\n");
    shown(&with("override", &["1000r/d", "1h"]), "\"capacity\":1000,\n");
    assert_eq!(quota(&nginx.get("/api"))[..2], [1000, 999]);
    shown(&with("override", &["1000r/d", "50", "1h"]), "\"quota\":50,\n");
    shown(&with("override", &["2000r/d"]), "\"ends\":null}");
    shown(&with("override", &["none"]), "\"override\":null,\n");
    shown(&of("reset"), "\"remaining\":100,\n");
    shown(&["top", "api"], "{\"top\":[]}");
    shown(&["show", "api", "--help"], "\"key\":\"--help\",\n");
    shown(&["show", "api", "a b\u{e4}%\"&\n"], "\"key\":\"a b\u{e4}%\\\"&\\u000a\",\n");
}

/// A client chooses its key, and the operator's terminal obeys what is in it.
#[test]
fn no_key_controls_a_terminal() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = Conf::new()
        .redis(&redis)
        .http("rate_limit_redis_top 9;")
        .server("location /limits { rate_limit_redis_admin; rate_limit_redis off; }")
        .server("location / { rate_limit_redis $http_x_key name=api rate=1r/d; }")
        .start_connected(&redis);
    let key = "evil\u{9b}31m\u{9b}2J\u{7f}\u{202e}\u{2066}";
    let escaped = "\"key\":\"evil\\u009b31m\\u009b2J\\u007f\\u202e\\u2066\",";
    for status in [200, 429] {
        let mut http = nginx.http();
        http.send("GET", "/", &[("X-Key", key)]);
        assert_eq!(http.read_response().status, status);
    }
    for arguments in [&["top", "api"][..], &["show", "api", key]] {
        let text = limits(&nginx, arguments);
        assert!(text.contains(escaped), "{text:?}");
        assert!(text.chars().all(|c| c == '\n' || (' '..='~').contains(&c)), "{text:?}");
    }
    let missing = failure(&nginx.url("/limits"), &["show", key, "a"]);
    assert!(missing.trim_end().chars().all(|c| (' '..='~').contains(&c)), "{missing:?}");
}

/// DNS rebinding: the browser takes such a page for one of the same site.
#[test]
fn a_page_with_another_host_name_gets_no_answer() {
    let redis = Redis::start();
    let nginx = conf(&block("docs/admin.md", "return 444"), &redis).start();
    let send = |method, host| {
        let mut http = nginx.http();
        http.send(method, "/limits", &[("Host", host)]);
        http
    };
    let response = send("GET", "limits.internal:8080").read_response();
    assert_eq!((response.status, response.text()), (200, "{\"limits\":[]}"));
    for method in ["GET", "PUT", "PATCH", "DELETE"] {
        assert!(send(method, "page.example:8080").is_closed(), "{method}");
    }
}

/// Whether a limit has a burst or a capacity is that of its own.
#[test]
fn a_terminal_finds_a_limit_with_a_dot_in_its_name() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .server("location /limits { rate_limit_redis_admin; rate_limit_redis off; }")
        .server("location /a { rate_limit_redis a name=shop.api rate=100r/d override; }")
        .server(
            "location /b { rate_limit_redis a name=shop-api rate=100r/d algorithm=gcra override; }",
        )
        .start_connected(&redis);
    for (name, member) in [("shop.api", "capacity"), ("shop-api", "burst")] {
        let text = limits(&nginx, &["override", name, "x", "1000r/d", "50"]);
        assert!(text.contains(&format!("\"{member}\":50,\n")), "{text}");
    }
}

#[test]
fn a_terminal_shows_errors() {
    let redis = Redis::start();
    let nginx = machine(&redis);
    let url = nginx.url("/limits");
    let unknown = failure(&url, &["show", "nobody", "a"]);
    assert_eq!(unknown, "limits: there is no limit \"nobody\"\n");
    let grant = failure(&url, &["grant", "api", "a", "0"]);
    assert!(
        grant.starts_with("limits: invalid grant \"0\": it must be a number from 1"),
        "{grant}"
    );
    let other = failure(&nginx.url("/nowhere"), &["show", "api", "a"]);
    assert!(other.contains("/nowhere answers 404: is it a location with rate_limit_redis_admin"));
    let query = failure(&format!("{url}?limit=api"), &["show", "api", "a"]);
    assert!(query.starts_with("limits: URL must end with the path of the location"), "{query}");
    assert!(failure("http://127.0.0.1:1/", &["show", "api", "a"]).contains("curl: (7)"));

    for (arguments, reason) in [
        (&[][..], ""),
        (&["--all"], "limits: unknown option \"--all\"\n"),
        (&[&url, "show"], "limits: \"show\" takes other arguments\n"),
        (&[&url, "show", "api"], "limits: \"show\" takes other arguments\n"),
        (&[&url, "pay", "api", "a"], "limits: unknown command \"pay\"\n"),
        (
            &[&url, "override", "api", "a", "9r/m", "5", "1h", "x"],
            "limits: \"override\" takes other arguments\n",
        ),
    ] {
        let output = script(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(error.starts_with(reason), "{error}");
        assert!(error.contains("scripts/limits URL show NAME KEY"), "{error}");
    }
    let help = script(&["--help"]);
    assert!(help.status.success() && help.stderr.is_empty(), "{help:?}");
}

/// It shows a line every second until it is ended.
#[test]
fn a_client_is_watched() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = machine(&redis);
    assert_eq!(remaining(&nginx.get("/api")), 99);
    let mut command = Command::new(SCRIPT);
    command.args([&nginx.url("/limits"), "watch", "api", "127.0.0.1"]);
    let watch = harness::ScriptRun::of(command);
    let lines = || {
        watch
            .output()
            .matches("  99 of 100, whole in 864 s, passes in 0 s, blocked for 0 s\n")
            .count()
    };
    harness::wait_until(harness::PATIENCE, || lines() >= 2, "two lines");
}

/// The recipe, with the request that it shows.
#[test]
fn a_customer_has_more() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = conf(&block("docs/recipes.md", "$subscriber"), &redis).start_connected(&redis);
    let get = || {
        let mut http = nginx.http();
        http.send("GET", "/api", &[("X-API-Key", "4b0c1de55f7a4d3c9f20")]);
        quota(&http.read_response())
    };
    assert_eq!(get()[..2], [100, 99]);
    let page = std::fs::read_to_string(RECIPES).expect("a page");
    let (_, query) =
        page.split_once("curl -X PUT 'http://127.0.0.1:8080/limits?").expect("a request");
    let query = query.split('\'').next().expect("its end");
    let mut http = nginx.http();
    http.send("PUT", &format!("/limits?{query}"), &[]);
    assert_eq!(http.read_response().status, 200);
    assert_eq!(get()[..2], [1000, 998]);
}
