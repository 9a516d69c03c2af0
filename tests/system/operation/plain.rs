//! The harness itself, on an nginx without the module: a test can only be trusted as far as what
//! it stands on.

use std::time::{Duration, Instant};

use harness::{Conf, Load, Redis, ab, h2load, hey, run, wait_until};

fn plain() -> Conf {
    Conf::new().plain()
}

#[test]
fn serves_and_logs() {
    let nginx = plain().file("html/a.txt", "{port}").start();
    let response = nginx.get("/a.txt");
    assert_eq!((response.status, response.text()), (200, "{port}"));
    assert_eq!(response.header("content-type"), Some("text/plain"));
    assert_eq!(nginx.get("/none").status, 404);
    let log = nginx.wait_for_access_log(2);
    assert!(log.contains("GET /a.txt") && log.contains("GET /none"), "{log}");
    nginx.wait_for_error_log("No such file");
}

#[test]
fn proxies_to_a_second_server() {
    let nginx = plain()
        .http("server { listen 127.0.0.1:{port2}; return 200 $request_uri; }")
        .server("location / { proxy_pass http://127.0.0.1:{port2}; }")
        .start();
    assert_eq!(nginx.get("/x?y").text(), "/x?y");
}

#[test]
fn keeps_connections_and_pipelines() {
    let nginx = plain().server("location = /no { return 204; }").start();
    let mut http = nginx.http();
    assert_eq!(http.get("/").text(), "hello\n");
    let head = http.head("/");
    assert_eq!((head.header("Content-Length"), head.text()), (Some("6"), ""));
    assert_eq!(http.post("/", b"abc").status, 405);
    http.send_raw("GET /no HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.0\r\n\r\n".as_bytes());
    assert_eq!(http.read_response().status, 204);
    assert_eq!(http.read_response().text(), "hello\n");
    assert!(http.is_closed());
    assert!(http.try_read_response().is_err());
}

#[test]
fn reads_a_chunked_response() {
    let nginx = plain()
        .http("server { listen 127.0.0.1:{port2}; gzip off; ssi on; ssi_types *; }")
        .server("location / { proxy_pass http://127.0.0.1:{port2}; proxy_http_version 1.1; }")
        .file("html/long.html", &"<!--# echo var='scheme' --> long".repeat(9_999))
        .start();
    let response = nginx.get("/long.html");
    assert_eq!(response.header("transfer-encoding"), Some("chunked"));
    assert_eq!(response.text(), "http long".repeat(9_999));
}

#[test]
fn reloads_without_failed_requests() {
    let conf = plain().workers(2);
    let mut nginx = conf.start();
    let old = nginx.worker_pids();
    assert_eq!(old.len(), 2);
    let load = Load::start(nginx.addr(), "/", 4);
    nginx.reload();
    let new = nginx.worker_pids();
    assert!(new.len() == 2 && new.iter().all(|pid| !old.contains(pid)), "{old:?} {new:?}");
    nginx.reload_with(&conf.clone().workers(1).server("error_page 404 =418 /index.html;"));
    assert_eq!(nginx.worker_pids().len(), 1);
    assert_eq!(nginx.get("/none").status, 418);
    let tally = load.stop();
    assert!(tally.of(200) > 10 && tally.of(200) == tally.total(), "{tally:?}");
    assert!(tally.failures.is_empty(), "{tally:?}");
}

#[test]
fn judges_good_and_bad_configurations() {
    plain().config_ok();
    let error = plain().server("nonsense on;").config_error();
    assert!(error.contains("unknown directive \"nonsense\" in"), "{error}");
}

#[test]
#[should_panic(expected = "nginx accepts")]
fn a_valid_configuration_is_no_error() {
    plain().config_error();
}

#[test]
#[should_panic(expected = "does not like")]
fn a_warning_is_not_ok() {
    plain().http("types { a/b html; c/d html; }").config_ok();
}

#[test]
#[should_panic(expected = "exited on signal 9")]
fn notices_a_dead_worker() {
    let nginx = plain().start();
    let worker = nginx.worker_pids()[0];
    run("kill", &["-9", &worker.to_string()]);
    nginx.wait_for_error_log("exited on signal 9");
}

#[test]
fn a_dead_worker_may_be_meant() {
    let mut nginx = plain().start();
    nginx.allow_log("exited on signal 9");
    let worker = nginx.worker_pids()[0];
    run("kill", &["-9", &worker.to_string()]);
    nginx.wait_for_error_log("exited on signal 9");
}

#[test]
fn leaves_nothing_behind() {
    let nginx = plain().workers(2).start();
    let (addr, mut pids) = (nginx.addr(), nginx.worker_pids());
    pids.push(nginx.pid());
    drop(nginx);
    assert!(std::net::TcpStream::connect(addr).is_err());
    let alive = |pid: &u32| std::path::Path::new(&format!("/proc/{pid}")).exists();
    wait_until(Duration::from_secs(1), || !pids.iter().any(alive), "end of every worker");
}

#[test]
fn counts_what_load_generators_get() {
    let nginx = plain().http2().server("location = /no { return 429; }").start();
    let (yes, no) = (nginx.url("/"), nginx.url("/no"));

    let tally = hey(&["-n", "40", "-c", "4", &no]);
    assert_eq!((tally.of(429), tally.total(), tally.failures.len()), (40, 40, 0));
    let tally = hey(&["-n", "4", "-c", "2", "http://127.0.0.1:1/"]);
    assert_eq!((tally.total(), tally.failures.is_empty()), (0, false));

    assert_eq!(ab(&["-n", "40", "-c", "4", &yes]).of(200), 40);
    let tally = ab(&["-k", "-n", "40", "-c", "4", &no]);
    assert_eq!((tally.of(429), tally.of(200), tally.failures.len()), (40, 0, 0));

    let tally = h2load(&["-n", "40", "-c", "2", "-m", "10", &nginx.h2_url("/no")]);
    assert_eq!((tally.of(400), tally.total(), tally.failures.len()), (40, 40, 0));
}

#[test]
fn redis_comes_and_goes() {
    let mut redis = Redis::start_with(&["requirepass secret", "user bob on >pw ~* +@all"]);
    assert!(redis.url().ends_with(&redis.port().to_string()));
    redis.command::<()>(&["SET", "a", "1"]);
    assert_eq!(redis.command::<i64>(&["GET", "a"]), 1);
    assert_eq!((redis.calls("get"), redis.calls("eval")), (1, 0));
    assert_eq!(redis.clients(), Vec::<String>::new());

    redis.restart();
    assert_eq!(redis.command::<Option<i64>>(&["GET", "a"]), None);
    assert_eq!(redis.command::<Vec<String>>(&["ACL", "USERS"]), ["bob", "default"]);

    let mut client = redis.client();
    redis.stop_signal();
    client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let start = Instant::now();
    assert!(redis::cmd("PING").exec(&mut client).is_err());
    assert!(start.elapsed() >= Duration::from_millis(50));
    redis.cont();
    redis.kill9();
    assert!(std::net::TcpStream::connect(("127.0.0.1", redis.port())).is_err());
}
