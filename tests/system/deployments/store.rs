//! The block `rate_limit_redis_store`, line by line.

use std::thread::sleep;
use std::time::{Duration, Instant};

use harness::{Conf, Nginx, PATIENCE, Redis, wait_until};

use crate::seen::wait_for_connections;

/// An nginx whose limits are kept in a store of these lines.
fn with(lines: &str) -> Conf {
    let generous = if lines.contains("connect_timeout") { "" } else { "connect_timeout 30s;" };
    Conf::new()
        .http(&format!("rate_limit_redis_store edge {{ {lines} {generous} }}"))
        .http("rate_limit_redis_pass edge; rate_limit_redis_timeout 5s;")
        .decisions()
        .server("location / { rate_limit_redis $arg_k rate=1r/h capacity=10; }")
}

fn keys(redis: &Redis, database: &str) -> Vec<String> {
    let mut connection = redis.client();
    redis::cmd("SELECT").arg(database).exec(&mut connection).expect("SELECT");
    redis::cmd("KEYS").arg("*").query(&mut connection).expect("KEYS")
}

fn clients(redis: &Redis) -> Vec<String> {
    let ours = |line: &String| line.contains("name=nginx_rate_limit_redis:");
    redis.clients().into_iter().filter(ours).collect()
}

#[track_caller]
fn decides(nginx: &Nginx) {
    assert_eq!(nginx.get("/?k=a").decision(), "PASSED redis");
}

/// The error of `nginx -t` about a store of these lines.
#[track_caller]
fn refused(lines: &str, parts: &[&str]) {
    let output = with(lines).config_error();
    for part in parts {
        assert!(output.contains(part), "{part:?} is not in {output}");
    }
    assert!(!output.contains("s3cret"), "{output}");
}

#[test]
fn each_location_may_have_a_store_of_its_own() {
    let (first, second) = (Redis::start(), Redis::start());
    let nginx = Conf::new()
        .set("first", first.url())
        .set("second", second.url())
        .decisions()
        .http("rate_limit_redis_timeout 5s;")
        // The name is used before it is defined.
        .http("rate_limit_redis_pass one;")
        .http("rate_limit_redis_store one { server {first}; prefix one:; connect_timeout 30s; }")
        .server(
            "location = /1 { rate_limit_redis k rate=9r/h name=a; try_files /index.html =404; }",
        )
        .server("location = /2 { rate_limit_redis_pass two; rate_limit_redis k rate=9r/h name=b;")
        .server("try_files /index.html =404; }")
        .server(
            "location = /3 { rate_limit_redis_pass {second}; rate_limit_redis k rate=9r/h name=c;",
        )
        .server("try_files /index.html =404; }")
        .server("}\nrate_limit_redis_store two { server {second}; connect_timeout 30s; }\nserver {")
        .start();
    // One of a store, and one of the URL, whose time for connecting cannot be set.
    wait_for_connections(&second, 2);
    for path in ["/1", "/2", "/3"] {
        assert_eq!(nginx.get(path).decision(), "PASSED redis", "{path}");
    }
    assert_eq!(keys(&first, "0"), ["one:a:k"]);
    let mut second_keys = keys(&second, "0");
    second_keys.sort();
    assert_eq!(second_keys, ["rl:b:k", "rl:c:k"]);
    // On a busy machine the first attempt to connect to the URL may have taken too long.
    let late = ["down: timed out while connecting", "up again"]
        .map(|what| format!("redis {} is {what}", second.addr()));
    let mut errors = nginx.logged("[error]");
    errors.retain(|line| !late.iter().any(|late| line.contains(late)));
    assert_eq!(errors, Vec::<String>::new());
}

#[test]
fn a_store_without_limits_is_not_connected_to() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .http(&format!("rate_limit_redis_store idle {{ server {}; }}", redis.url()))
        .start();
    assert_eq!(nginx.get("/").status, 200);
    sleep(Duration::from_millis(100));
    assert_eq!(redis.clients(), Vec::<String>::new());
}

#[test]
fn user_password_database_and_prefix_are_used() {
    let redis = Redis::start_with(&["user limiter on >s3cret ~my:* +@all"]);
    let lines =
        format!("server {}; user limiter; password s3cret; database 3; prefix my:;", redis.url());
    let nginx = with(&lines).start();
    decides(&nginx);
    assert_eq!(keys(&redis, "3"), ["my:default:a"]);
    let client = &clients(&redis)[0];
    assert!(client.contains("user=limiter") && client.contains("db=3"), "{client}");
    assert_eq!(nginx.logged("s3cret"), Vec::<String>::new());
}

#[test]
fn lines_may_stand_in_another_file() {
    let redis = Redis::start_with(&["requirepass s3cret"]);
    let lines = format!("server {}; include {{prefix}}/secrets/*.conf;", redis.url());
    let nginx = with(&lines)
        .file("secrets/password.conf", "password s3cret;")
        .file("secrets/prefix.conf", "prefix my:;")
        .start();
    decides(&nginx);
    assert_eq!(keys(&redis, "0"), ["my:default:a"]);
}

#[test]
fn a_mistake_in_another_file_is_reported_there() {
    let conf = |lines| with(lines).file("lines.conf", "cluster on;\npasword s3cret;");
    let output = conf("include {prefix}/lines.conf;").config_error();
    assert!(output.contains("\"pasword\"") && output.contains("lines.conf:2"), "{output}");
    let output = conf("include one two;").config_error();
    assert!(output.contains("\"include\""), "{output}");
}

#[test]
fn a_wrong_password_is_logged_without_it() {
    let redis = Redis::start_with(&["requirepass right"]);
    let nginx = with(&format!("server {}; password s3cret;", redis.url())).start();
    nginx.wait_for_error_log("AUTH was refused: \"WRONGPASS");
    assert_eq!(nginx.get("/?k=a").decision(), "ERROR_PASSED none");
    assert_eq!(nginx.logged("s3cret"), Vec::<String>::new());
}

#[test]
fn a_password_file_is_read_again_on_reload() {
    let redis = Redis::start_with(&["user default on >first >second ~* &* +@all"]);
    let conf = with(&format!("server {}; password_file redis.password;", redis.url()))
        .file("redis.password", "first\r\nanother line\n");
    let mut nginx = conf.start();
    decides(&nginx);
    redis.command::<()>(&["ACL", "SETUSER", "default", "<first"]);
    std::fs::write(nginx.path("redis.password"), "\u{feff}second").expect("write the password");
    nginx.reload();
    decides(&nginx);
    assert_eq!(nginx.logged("[error]"), Vec::<String>::new());
}

#[test]
fn several_connections_share_the_load() {
    let redis = Redis::start();
    let mut nginx = with(&format!("server {}; connections 3;", redis.url())).workers(2).start();
    three_of_each_worker(&nginx, &redis);
    for key in 0..60 {
        assert_eq!(nginx.get(&format!("/?k={key}")).decision(), "PASSED redis");
    }
    let used = clients(&redis).iter().filter(|line| line.contains("cmd=evalsha")).count();
    assert!(used >= 3, "{used} connections were used");
    nginx.reload();
    three_of_each_worker(&nginx, &redis);
    // A connection that could be used for a second is made again at once.
    sleep(Duration::from_secs(3));
    redis.command::<i32>(&["CLIENT", "KILL", "TYPE", "normal"]);
    three_of_each_worker(&nginx, &redis);
    for key in 0..60 {
        assert_eq!(nginx.get(&format!("/?k={key}")).remaining(), Some(8));
    }
    assert_eq!(nginx.logged("[error]"), Vec::<String>::new());
}

/// Waits until each worker has three connections, and nobody else has any.
#[track_caller]
fn three_of_each_worker(nginx: &Nginx, redis: &Redis) {
    let mut expected: Vec<u32> = nginx.worker_pids().into_iter().flat_map(|pid| [pid; 3]).collect();
    expected.sort_unstable();
    let connected = || {
        let pid = |line: &String| {
            let name = line.split("name=nginx_rate_limit_redis:").nth(1)?;
            name.split(' ').next()?.parse().ok()
        };
        let mut pids: Vec<u32> = clients(redis).iter().filter_map(pid).collect();
        pids.sort_unstable();
        pids == expected
    };
    wait_until(PATIENCE, connected, "three connections of each worker");
}

/// A server that accepts and sends nothing: an attempt takes as long as is configured.
#[test]
fn an_attempt_takes_as_long_as_connect_timeout() {
    let mut redis = Redis::start();
    redis.stop_signal();
    for timeout in [100, 2_500].map(Duration::from_millis) {
        let line = format!("server {}; connect_timeout {}ms;", redis.url(), timeout.as_millis());
        let conf = with(&line).server("rate_limit_redis_timeout 60s;");
        let before = Instant::now();
        let nginx = conf.start();
        let start = Instant::now();
        assert_eq!(nginx.get("/?k=a").decision(), "ERROR_PASSED none");
        // It waits for the first attempt, which began before it came.
        assert!(before.elapsed() >= timeout, "{:?} of {timeout:?}", before.elapsed());
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
        nginx.wait_for_error_log("is down: timed out while connecting");
    }
    redis.cont();
}

/// The errors that words alone make are tested in the pure crate.
#[test]
fn wrong_lines_are_refused_with_their_reason() {
    let a = "server redis://127.0.0.1:1;";
    let cases: [(String, &[&str]); 15] = [
        (String::new(), &["in \"rate_limit_redis_store\" \"edge\"", "there must be a \"server\""]),
        ("server;".into(), &["\"server\"", "number of arguments"]),
        ("server redis://:s3cret@127.0.0.1:x;".into(), &["***@127.0.0.1:x", "\"server\"", "port"]),
        (format!("{a} server redis://127.0.0.1:2;"), &["\"edge\": several", "cluster on"]),
        (format!("{a} cluster yes;"), &["\"yes\"", "\"cluster\"", "\"on\" or \"off\""]),
        (format!("{a} user a; user b;"), &["\"user\" directive is duplicate"]),
        (format!("{a} password s3cret; password_file x;"), &["\"password_file\""]),
        (format!("{a} password_file empty; password s3cret;"), &["no password in the first line"]),
        (format!("{a} password_file nowhere;"), &["/nowhere\"", "\"password_file\"", "No such"]),
        (format!("{a} password_file empty;"), &["no password in the first line of", "/empty\""]),
        (format!("{a} password_file \"\";"), &["\"\" in \"password_file\"", "not empty"]),
        (format!("{a} key_hmac \"\";"), &["\"\" in \"key_hmac\"", "not empty"]),
        ("server redis://u:s3cret@127.0.0.1:1; user b;".into(), &["in the URL and by"]),
        (
            format!("server redis+unix:///{};", "s".repeat(107)),
            &["\"server\"", "longer than 107 bytes"],
        ),
        (format!("{a} weight 5;"), &["unknown directive \"weight\"", "rate_limit_redis_store"]),
    ];
    for (lines, parts) in &cases {
        let conf = with(lines).file("empty", "\n");
        let output = conf.config_error();
        for part in *parts {
            assert!(output.contains(part), "{lines}: {part:?} is not in {output}");
        }
        assert!(!output.contains("s3cret"), "{output}");
        assert!(output.contains("nginx.conf:"), "{output}");
    }
}

#[test]
fn wrong_names_are_refused() {
    refused(
        "server redis://127.0.0.1:1; } rate_limit_redis_store edge { server redis://127.0.0.1:1;",
        &["\"edge\""],
    );
    let elsewhere = Conf::new().server("rate_limit_redis_store a { server redis://127.0.0.1:1; }");
    assert!(
        elsewhere.config_error().contains("\"rate_limit_redis_store\" directive is not allowed")
    );
    for name in ["''", "redis://a", "a b", "$a"] {
        let conf = Conf::new()
            .http(&format!("rate_limit_redis_store {name} {{ server redis://127.0.0.1:1; }}"));
        assert!(conf.config_error().contains("rate_limit_redis_store"), "{name}");
    }
    let conf = Conf::new().http("rate_limit_redis_pass nowhere; rate_limit_redis a rate=1r/s;");
    let output = conf.config_error();
    for part in ["\"nowhere\"", "\"rate_limit_redis_pass\"", "nginx.conf:"] {
        assert!(output.contains(part), "{output}");
    }
}

/// Without these errors NGINX would wait for a pipe that nobody writes to, at a reload too, and read a device without end.
#[test]
fn what_is_no_regular_file_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let of = |name| dir.path().join(name).display().to_string();
    harness::run("mkfifo", &[&of("pipe")]);
    std::fs::write(of("long"), [b'a'; (64 << 10) + 1]).expect("write a file");
    for line in ["password_file", "key_hmac"] {
        for (path, reason) in [
            (of("pipe"), "no regular file"),
            (of(""), "no regular file"),
            ("/dev/zero".into(), "no regular file"),
            (of("long"), "longer than 64 KB"),
        ] {
            let output =
                with(&format!("server redis://127.0.0.1:1; {line} {path};")).config_error();
            for part in [&path, line, reason, "nginx.conf:"] {
                assert!(output.contains(part), "{line} {path}: {part:?} is not in {output}");
            }
        }
    }
}

/// Two stores at one server, of which one is refused: each is logged, and neither again and
/// again.
#[test]
fn two_stores_at_one_server_are_logged_each() {
    let redis = Redis::start();
    let nginx = with(&format!("server {};", redis.url()))
        .http(&format!(
            "rate_limit_redis_store wrong {{ server {}; database 99; connect_timeout 30s; }}",
            redis.url()
        ))
        .server("location /wrong { rate_limit_redis $arg_k name=wrong rate=1r/h;")
        .server("rate_limit_redis_pass wrong; try_files /index.html =404; }")
        .server("location = /metrics { rate_limit_redis_metrics; }")
        .start();
    nginx.wait_for_error_log("SELECT was refused");
    // Time for several attempts.
    for _ in 0..20 {
        decides(&nginx);
        assert_eq!(nginx.get("/wrong?k=a").decision(), "ERROR_PASSED none");
        sleep(Duration::from_millis(50));
        redis.command::<()>(&["FLUSHALL"]);
    }
    assert_eq!(nginx.logged("is down").len(), 1, "{:#?}", nginx.logged("[error]"));
    assert_eq!(nginx.logged("is up again"), Vec::<String>::new());
    // The metrics know them as one server.
    let page = nginx.get("/metrics");
    let open = format!("nginx_rate_limit_redis_breaker_open{{node=\"{}\"}}", redis.addr());
    let lines: Vec<_> = page.text().lines().filter(|line| line.starts_with(&open)).collect();
    assert_eq!(lines, [format!("{open} 1")]);
}
