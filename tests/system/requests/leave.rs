//! A client that leaves while its request waits for a decision.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};

use harness::{Conf, Http, Nginx, PATIENCE, Redis, wait_until};

use crate::seen::{StartConnected as _, remaining, tokens};

fn conf(redis: &Redis) -> Conf {
    // However long Redis is silent, requests wait for it.
    Conf::new()
        .set("redis", redis.url())
        .http("rate_limit_redis_store redis { server {redis}; connect_timeout 30s;")
        .http("fail_timeout 5m; }\nrate_limit_redis_pass redis;")
        .status()
        .server("rate_limit_redis $arg_key rate=10000r/52w; rate_limit_redis_timeout 5m;")
}

/// Sends a request, and waits until so many wait in nginx.
fn waiting(nginx: &Nginx, path: &str, number: usize) -> Http {
    let mut http = nginx.http();
    http.send("GET", path, &[]);
    nginx.wait_for_requests(number, 0);
    http
}

/// Waits until so many requests are logged as left by their client.
#[track_caller]
fn wait_for_499(nginx: &Nginx, number: usize) {
    let logged = || nginx.access_log().matches("\" 499 ").count();
    // Far less than the timeout for decisions.
    wait_until(PATIENCE, || logged() >= number, "requests that are logged as left by the client");
    assert_eq!(logged(), number, "{}", nginx.access_log());
}

fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).expect("list descriptors").count()
}

/// The memory in use by a process, in KiB.
fn memory(pid: u32) -> i64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("read status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
fn is_noticed_at_once() {
    let mut redis = Redis::start();
    let nginx = conf(&redis).start_connected(&redis);
    assert_eq!(remaining(&nginx.get("/?key=a")), 9999);
    redis.stop_signal();
    let http = waiting(&nginx, "/?key=a", 1);
    assert_eq!(nginx.access_log().lines().count(), 1, "it does wait:\n{}", nginx.access_log());
    drop(http);
    wait_for_499(&nginx, 1);
    redis.cont();
    // The command was in flight, so the request is charged.
    assert_eq!(remaining(&nginx.get("/?key=a")), 9997);
    assert_eq!(tokens(&redis, "rl:default:a"), Some(9997));
}

#[test]
fn leaves_others_what_is_theirs() {
    let mut redis = Redis::start();
    let nginx = conf(&redis).start_connected(&redis);
    assert_eq!(remaining(&nginx.get("/?key=a")), 9999);
    assert_eq!([(); 5].map(|()| remaining(&nginx.get("/?key=c")))[4], 9995);
    redis.stop_signal();
    let a = waiting(&nginx, "/?key=a", 1);
    let mut b = waiting(&nginx, "/?key=b", 2);
    let a_again = waiting(&nginx, "/?key=a", 3);
    let mut c = waiting(&nginx, "/?key=c", 4);
    drop(a);
    drop(a_again);
    wait_for_499(&nginx, 2);
    redis.cont();
    assert_eq!(remaining(&c.read_response()), 9994);
    assert_eq!(remaining(&b.read_response()), 9999);
    assert_eq!(remaining(&nginx.get("/?key=a")), 9996);
}

#[test]
fn leaves_in_the_middle_of_its_body() {
    let mut redis = Redis::start();
    let nginx = conf(&redis).start_connected(&redis);
    assert_eq!(nginx.get("/?key=a").status, 200);
    redis.stop_signal();
    let mut http = nginx.http();
    http.send("POST", "/?key=a", &[("Content-Length", "1000")]);
    http.send_raw(b"not all");
    nginx.wait_for_requests(1, 0);
    drop(http);
    wait_for_499(&nginx, 1);
    redis.cont();
    assert_eq!(nginx.get("/?key=a").status, 200);
}

#[test]
fn leaves_its_pipelined_requests_uncharged() {
    let mut redis = Redis::start();
    let nginx = conf(&redis).start_connected(&redis);
    assert_eq!(nginx.get("/?key=a").status, 200);
    redis.stop_signal();
    let mut http = nginx.http();
    http.send_raw("GET /?key=b HTTP/1.1\r\nHost: a\r\n\r\n".repeat(3).as_bytes());
    nginx.wait_for_requests(1, 0);
    drop(http);
    wait_for_499(&nginx, 1);
    redis.cont();
    assert_eq!(remaining(&nginx.get("/?key=b")), 9998, "only the first was charged");
}

#[test]
fn leaves_no_memory_with_a_thousand_others() {
    let mut redis = Redis::start();
    let nginx = conf(&redis).start_connected(&redis);
    let worker = nginx.worker_pids()[0];
    assert_eq!(nginx.get("/?key=a").status, 200);
    redis.stop_signal();
    let before = descriptors(worker);
    let mut gone = 0;
    let mut thousand = || {
        for _ in 0..10 {
            let request = |_| {
                let mut http = nginx.http();
                http.send("GET", "/?key=a", &[]);
                http
            };
            let clients: Vec<_> = (0..100).map(request).collect();
            nginx.wait_for_requests(100, 0);
            drop(clients);
            gone += 100;
            wait_for_499(&nginx, gone);
        }
        memory(worker)
    };
    // The first ones fill pools and buffers that stay.
    let first = thousand();
    let last = [(); 2].map(|()| thousand())[1];
    assert!(last - first < 1024, "{} KiB more after 2000 further clients", last - first);
    wait_until(PATIENCE, || descriptors(worker) <= before, "no more open descriptors than before");

    redis.cont();
    let response = nginx.get("/?key=a");
    assert_eq!(response.status, 200);
    let spent = 10_000 - remaining(&response);
    assert!((2..=3002).contains(&spent), "{spent} spent");
    wait_until(PATIENCE, || descriptors(worker) <= before, "the last client's descriptor");
}

#[test]
fn leaves_before_redis_has_answered_and_pays_nothing() {
    let mut redis = Redis::start();
    redis.stop_signal();
    let nginx = conf(&redis).start();
    let http = waiting(&nginx, "/?key=a", 1);
    drop(http);
    // It left while nginx was still connecting.
    nginx.wait_for_access_log(1);
    redis.cont();
    wait_until(
        PATIENCE,
        || !nginx.get("/?key=b").headers("X-RateLimit-Limit").is_empty(),
        "a decision",
    );
    assert_eq!(tokens(&redis, "rl:default:a"), None, "its command was never sent");
}

/// NGINX runs the action of a request whose client leaves, whatever the request has waited for.
#[test]
fn an_action_after_a_client_has_left_runs_at_once() {
    let mut redis = Redis::start();
    let nginx = conf(&redis)
        .http("server { listen 127.0.0.1:{port2}; return 204; }")
        .server("location /late { rate_limit_redis k name=late rate=1r/52w; post_action @after; }")
        .server("location /slow { rate_limit_redis k name=slow rate=1r/h algorithm=leaky_bucket burst=9; post_action @after; }")
        .server("location @after { rate_limit_redis off; proxy_pass http://127.0.0.1:{port2}; }")
        .start_connected(&redis);
    assert_eq!(nginx.get("/slow?now").status, 404);
    let leave = |path: &str, waiting: usize| {
        let mut http = nginx.http();
        http.send("GET", path, &[]);
        nginx.wait_for_requests(waiting, 0);
    };
    leave("/slow?delayed", 1);
    redis.stop_signal();
    leave("/late?undecided", 1);
    // One line for the action, and one for the request that then ends.
    let has_acted = |path: &str| nginx.access_log().matches(path).count() == 2;
    for path in ["/slow?delayed", "/late?undecided"] {
        wait_until(PATIENCE, || has_acted(path), "the request of the action");
    }
    redis.cont();
}

/// The response has been sent, so that the client may go, and NGINX does not watch it.
#[test]
fn an_action_after_the_response_is_not_left_with_the_client() {
    let mut redis = Redis::start();
    let nginx = conf(&redis)
        .http("server { listen 127.0.0.1:{port2}; return 204; }")
        .server("location /page { rate_limit_redis off; try_files /index.html =404; post_action /after; }")
        .server("location /after { rate_limit_redis k name=after rate=9r/52w;")
        .server("proxy_pass http://127.0.0.1:{port2}/upstream; }")
        .start_connected(&redis);
    redis.stop_signal();
    let mut http = nginx.http();
    assert_eq!(http.get("/page").status, 200);
    nginx.wait_for_requests(1, 0);
    drop(http);
    // Another client's end shows that NGINX has had the time to notice.
    drop(waiting(&nginx, "/?key=b", 2));
    wait_for_499(&nginx, 1);
    redis.cont();
    let has_acted = || nginx.access_log().contains("GET /upstream");
    wait_until(PATIENCE, has_acted, "the request of the action");
    assert_eq!(tokens(&redis, "rl:after:k"), Some(8), "and it is charged");
}

/// The response could not be sent, as the client has reset the connection; NGINX acts all the same, and its event must not
/// end that.
#[test]
fn an_action_after_a_response_that_fails_is_not_left_with_the_client() {
    let redis = Redis::start();
    let upstream = TcpListener::bind("127.0.0.1:0").expect("a port");
    let nginx = conf(&redis)
        .set("up", upstream.local_addr().expect("an address").to_string())
        .http("server { listen 127.0.0.1:{port2}; return 204; }")
        .server("location /streamed { rate_limit_redis off; proxy_buffering off;")
        .server("proxy_pass http://{up}; post_action /after; }")
        .server("location /after { rate_limit_redis k name=after rate=9r/52w;")
        .server("proxy_pass http://127.0.0.1:{port2}/upstream; }")
        .start_connected(&redis);
    let mut client = TcpStream::connect(nginx.addr()).expect("connect");
    client.write_all(b"GET /streamed HTTP/1.1\r\nHost: a\r\n\r\n").expect("send");
    let (mut sender, _) = upstream.accept().expect("a request");
    let mut head = BufReader::new(sender.try_clone().expect("a socket")).lines();
    while head.next().is_some_and(|line| !line.expect("a line").is_empty()) {}
    sender.write_all(b"HTTP/1.0 200 OK\r\n\r\nfirst").expect("send");
    client.peek(&mut [0]).expect("the beginning of the response");
    nginx.in_one_turn(|| {
        sender.write_all(b"second").expect("send");
        // With a reset, as there is something unread.
        drop(client);
    });
    let has_acted = || nginx.access_log().contains("GET /upstream");
    wait_until(PATIENCE, has_acted, "the request of the action");
    assert_eq!(tokens(&redis, "rl:after:k"), Some(8), "and it is charged");
}
