//! The life of a connection to Redis: made, introduced, kept, and made again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use harness::{Act, Conf, Fake, Library, Nginx, PATIENCE, Redis, wait_until};

use crate::seen::{StartConnected as _, has_event_method, wait_for_connections};

fn limited(url: &str) -> Conf {
    Conf::new()
        .decisions()
        .store(url)
        .server("location / { rate_limit_redis $arg_k rate=1r/m capacity=9; }")
}

/// The names of the connections that nginx has to `redis`.
fn names(redis: &Redis) -> Vec<String> {
    fields(redis, "name=")
}

fn fields(redis: &Redis, label: &str) -> Vec<String> {
    let clients = redis.clients();
    let ours = clients.iter().filter(|line| line.contains("name=nginx_rate_limit_redis:"));
    let field = |line: &String| Some(line.split(' ').find_map(|f| f.strip_prefix(label))?.into());
    let mut fields: Vec<String> = ours.filter_map(field).collect();
    fields.sort();
    fields
}

/// The timers of the open connections to this port, as the kernel numbers them.
fn timers(port: u16) -> Vec<String> {
    let sockets = std::fs::read_to_string("/proc/net/tcp").expect("the list of sockets");
    let of_port = |line: &str| {
        let [_, _, remote, state, _, timer] = line.split_whitespace().collect::<Vec<_>>()[..6]
        else {
            return None;
        };
        let is_open = remote.ends_with(&format!(":{port:04X}")) && state == "01";
        is_open.then(|| timer.split(':').next().unwrap_or_default().to_owned())
    };
    sockets.lines().skip(1).filter_map(of_port).collect()
}

/// An idle connection is probed by the system: a firewall that drops it is noticed before a request is.
#[test]
fn an_idle_connection_is_kept_alive() {
    let redis = Redis::start();
    let _nginx = limited(&redis.url()).start_connected(&redis);
    // The timer of keepalive.
    wait_until(PATIENCE, || timers(redis.port()) == ["02"], "the timer of an idle connection");
}

/// A socket that can be written to is reported by these event methods for as long as it is watched.
#[test]
fn a_worker_sleeps_while_redis_does_not_greet() {
    for method in ["poll", "select"].into_iter().filter(|method| has_event_method(method)) {
        let fake = Fake::start(|_| Act::Ignore);
        let nginx = limited(&fake.url())
            .server("rate_limit_redis_timeout 1s;")
            .events(&format!("use {method};"))
            .connections(512)
            .debug()
            .start();
        nginx.wait_for_error_log(" is open");
        assert_eq!(nginx.get("/?k=a").decision(), "ERROR_PASSED none");
        let log = nginx.error_log();
        let turns =
            log.rsplit(" is open").next().expect("the rest").matches("worker cycle").count();
        assert!(turns < 100, "{turns} turns with {method}");
    }
}

#[track_caller]
fn decides(nginx: &Nginx) {
    let response = nginx.get("/?k=a");
    assert_eq!((response.decision(), response.remaining()), ("PASSED redis", Some(8)));
    assert_eq!(nginx.get("/?k=a").remaining(), Some(7));
}

#[track_caller]
fn recovers(nginx: &Nginx) {
    let recovered = || nginx.get("/?k=recovered").decision() == "PASSED redis";
    wait_until(PATIENCE, recovered, "decisions by Redis");
}

#[test]
fn each_worker_connects_before_the_first_request_and_stays_connected() {
    let redis = Redis::start();
    let nginx = limited(&redis.url()).workers(2).start();
    let names_of = |pid| format!("nginx_rate_limit_redis:{pid}");
    let mut expected: Vec<_> = nginx.worker_pids().into_iter().map(names_of).collect();
    expected.sort();
    wait_until(PATIENCE, || names(&redis) == expected, "a connection of each worker");
    assert_eq!(redis.calls("evalsha"), 0);

    let before = fields(&redis, "id=");
    let mut clients = [(); 20].map(|()| nginx.http());
    for client in &mut clients {
        assert_eq!(client.get("/?k=a").header("X-RateLimit-Limit"), Some("9"));
    }
    assert_eq!(fields(&redis, "id="), before);
}

#[test]
fn no_limit_no_connection() {
    let redis = Redis::start();
    let nginx = Conf::new().redis(&redis).start();
    assert_eq!(nginx.get("/").status, 200);
    sleep(Duration::from_millis(100));
    assert_eq!(redis.clients(), Vec::<String>::new());
}

#[test]
fn a_password_is_percent_encoded() {
    let redis = Redis::start_with(&["requirepass p@s/s:w%rd"]);
    let url = format!("redis://:p%40s%2Fs%3Aw%25rd@127.0.0.1:{}", redis.port());
    decides(&limited(&url).start());
}

#[test]
fn a_url_names_user_password_and_database() {
    let redis = Redis::start_with(&["user li:mit on >p@ss ~* +@all"]);
    let url = format!("redis://li%3Amit:p%40ss@127.0.0.1:{}/5", redis.port());
    let nginx = limited(&url).start();
    decides(&nginx);
    assert_eq!(fields(&redis, "user="), ["li:mit"]);
    assert_eq!(fields(&redis, "db="), ["5"]);
    let keyspace: String = redis.command(&["INFO", "keyspace"]);
    assert!(keyspace.contains("db5:keys=1") && !keyspace.contains("db0"), "{keyspace}");
}

#[test]
fn a_url_names_a_unix_socket_and_a_database() {
    let redis = Redis::start();
    decides(&limited(&format!("{}?db=3", redis.unix_url())).start());
    let keyspace: String = redis.command(&["INFO", "keyspace"]);
    assert!(keyspace.contains("db3:keys=1") && !keyspace.contains("db0"), "{keyspace}");
}

#[test]
fn a_host_name_is_resolved_at_the_start() {
    let redis = Redis::start();
    let nginx = limited(&format!("redis://localhost:{}", redis.port())).start();
    decides(&nginx);
    assert_eq!(nginx.logged("is down"), Vec::<String>::new());
}

#[test]
fn an_ipv6_address_stands_in_brackets() {
    let redis = Redis::start_with(&["bind 127.0.0.1 ::1"]);
    decides(&limited(&format!("redis://[::1]:{}", redis.port())).start());
}

#[test]
fn each_location_may_have_its_redis() {
    let (first, second) = (Redis::start(), Redis::start());
    let nginx = Conf::new()
        .decisions()
        .set("first", first.url())
        .set("second", second.url())
        .http("rate_limit_redis_timeout 5s;")
        .server("rate_limit_redis_pass {first};")
        .server(
            "location = /a { rate_limit_redis a rate=9r/m name=a; try_files /index.html =404; }",
        )
        .server("location = /b { rate_limit_redis b rate=9r/m name=b; try_files /index.html =404;")
        .server("rate_limit_redis_pass {second}; }")
        .start();
    for redis in [&first, &second] {
        wait_for_connections(redis, 1);
    }
    for path in ["/a", "/b"] {
        assert_eq!(nginx.get(path).decision(), "PASSED redis");
    }
    assert_eq!(first.command::<Vec<String>>(&["KEYS", "*"]), ["rl:a:a"]);
    assert_eq!(second.command::<Vec<String>>(&["KEYS", "*"]), ["rl:b:b"]);
}

#[test]
fn one_redis_is_down_and_the_other_is_not_concerned() {
    let (mut first, second) = (Redis::start(), Redis::start());
    first.kill9();
    let nginx = Conf::new()
        .decisions()
        .set("first", first.url())
        .set("second", second.url())
        .http("rate_limit_redis_timeout 5s;")
        .server("location = /a { rate_limit_redis a rate=9r/m name=a; try_files /index.html =404;")
        .server("rate_limit_redis_pass {first}; }")
        .server("location = /b { rate_limit_redis b rate=9r/m name=b; try_files /index.html =404;")
        .server("rate_limit_redis_pass {second}; }")
        .start_connected(&second);
    for _ in 0..3 {
        assert_eq!(nginx.get("/a").decision(), "ERROR_PASSED none");
        assert_eq!(nginx.get("/b").decision(), "PASSED redis");
    }
}

#[test]
fn a_wrong_password_is_logged_once_and_costs_no_time() {
    let redis = Redis::start_with(&["requirepass right"]);
    let nginx = limited(&format!("redis://:wr0ng-s3cret@127.0.0.1:{}", redis.port()))
        .debug()
        .server("rate_limit_redis_on_error closed;")
        .start();
    nginx.wait_for_error_log("is down");
    for _ in 0..20 {
        let start = Instant::now();
        let response = nginx.get("/?k=a");
        assert_eq!((response.status, response.decision()), (503, "ERROR_REJECTED none"));
        // Far from the timeout of five seconds.
        assert!(start.elapsed() < Duration::from_millis(2_500), "{:?}", start.elapsed());
    }
    // Time for several attempts.
    sleep(Duration::from_millis(800));
    assert_eq!(nginx.logged("[error]").len(), 1, "{:?}", nginx.logged("[error]"));
    assert!(nginx.logged("[error]")[0].contains("AUTH was refused: \"WRONGPASS"));

    redis.command::<()>(&["ACL", "SETUSER", "default", ">wr0ng-s3cret"]);
    recovers(&nginx);
    nginx.wait_for_error_log("is up again");
    for log in ["error.log", "access.log", "stderr.log"] {
        assert!(!nginx.read(log).contains("s3cret"), "the password is in {log}");
    }
}

#[test]
fn a_password_that_is_missing_is_logged() {
    let redis = Redis::start_with(&["requirepass right"]);
    let nginx = limited(&redis.url()).start();
    nginx.wait_for_error_log("NOAUTH");
    assert_eq!(nginx.get("/?k=a").decision(), "ERROR_PASSED none");
    redis.command::<()>(&["ACL", "SETUSER", "default", "nopass"]);
    recovers(&nginx);
}

/// A Redis without AUTH repeats the arguments of the command that it does not know.
#[test]
fn a_password_that_redis_repeats_is_not_logged() {
    let redis = Redis::start_with(&["rename-command AUTH \"\""]);
    let url = format!("redis://limiter:s3cret@127.0.0.1:{}", redis.port());
    let nginx = limited(&url).debug().start();
    nginx.wait_for_error_log("is down");
    assert!(!nginx.error_log().contains("s3cret"), "{:?}", nginx.logged("s3cret"));
}

#[test]
fn a_database_that_is_not_there_is_logged() {
    let redis = Redis::start();
    let nginx = limited(&format!("{}/99", redis.url())).start();
    nginx.wait_for_error_log("SELECT was refused: \"ERR DB index is out of range\"");
    assert_eq!(nginx.get("/?k=a").decision(), "ERROR_PASSED none");
}

#[test]
fn a_redis_that_is_full_is_logged() {
    let redis = Redis::start();
    let held = redis.client();
    // Not from the start: Redis may not have noticed yet that the connection of the harness is closed.
    redis.command::<()>(&["CONFIG", "SET", "maxclients", "1"]);
    let nginx = limited(&redis.url()).start();
    nginx.wait_for_error_log("is down");
    assert_eq!(nginx.get("/?k=a").decision(), "ERROR_PASSED none");
    let errors = nginx.logged("is down");
    assert!(errors.len() == 1 && errors[0].contains("max number of clients reached"), "{errors:?}");
    drop(held);
    recovers(&nginx);
}

/// The last words of Redis before it closes a connection are read, also if it closes while the worker sends.
#[test]
fn a_redis_that_is_full_is_logged_by_a_worker_that_sends() {
    let library = Library::compile("slow_send");
    let redis = Redis::start();
    let _held = redis.client();
    redis.command::<()>(&["CONFIG", "SET", "maxclients", "1"]);
    let nginx = limited(&redis.url()).env("LD_PRELOAD", library.path()).start();
    nginx.wait_for_error_log("is down");
    let errors = nginx.logged("is down");
    assert!(errors.len() == 1 && errors[0].contains("max number of clients reached"), "{errors:?}");
}

/// The harness finds an alert of each attempt.
#[test]
fn an_address_of_a_family_that_the_system_lacks_is_like_one_that_is_down() {
    let library = Library::compile("no_ipv6");
    let nginx = limited("redis://[::1]:6379")
        .server("location = /metrics { rate_limit_redis_metrics; }")
        .env("LD_PRELOAD", library.path())
        .workers(2)
        .start();
    let name = "connection_attempts_total{node=\"[::1]:6379\",result=\"refused\"} ";
    let attempts = || {
        let page = nginx.get("/metrics");
        let number = page.text().split_once(name)?.1.split('\n').next()?.parse::<u64>();
        Some(number.expect("a number"))
    };
    wait_until(PATIENCE, || attempts() >= Some(5), "several attempts");
    assert_eq!(nginx.get("/?k=a").decision(), "ERROR_PASSED none");
    let errors = nginx.logged("[::1]:6379");
    assert!(errors.len() == 1 && errors[0].contains("(97: Address family not supp"), "{errors:?}");
}

#[test]
fn a_redis_that_loads_is_waited_for() {
    let loads = Arc::new(AtomicBool::new(true));
    // How many connections were made meanwhile: nothing on them is answered otherwise.
    let refused = Arc::new(AtomicUsize::new(0));
    let fake = Fake::start({
        let (loads, refused) = (Arc::clone(&loads), Arc::clone(&refused));
        move |command| match command.words.is_empty() {
            true if loads.load(Ordering::SeqCst) => {
                refused.store(command.connection + 1, Ordering::SeqCst);
                Act::Usual
            }
            false if command.connection < refused.load(Ordering::SeqCst) => {
                Act::line("-LOADING Redis is loading the dataset in memory")
            }
            _ => Act::Usual,
        }
    });
    let nginx = limited(&fake.url()).start();
    nginx.wait_for_error_log("LOADING");
    assert_eq!(nginx.get("/?k=a").decision(), "ERROR_PASSED none");
    wait_until(PATIENCE, || fake.count("") >= 4, "several attempts");
    loads.store(false, Ordering::SeqCst);
    recovers(&nginx);
    nginx.wait_for_error_log("is up again");
    assert_eq!(nginx.logged("[error]").len(), 2);
    assert_eq!(fake.count(""), refused.load(Ordering::SeqCst) + 1);
}

/// The ACL rule of docs/operations.md: it allows all commands that are ever sent.
#[test]
fn the_least_rights_are_enough() {
    let rule = "user limiter on >pw ~rl:* resetchannels -@all \
        +select +client|setname +script|exists +script|load +evalsha +eval +time +get +set";
    let redis = Redis::start_with(&[rule]);
    let nginx = limited(&format!("redis://limiter:pw@127.0.0.1:{}/2", redis.port())).start();
    decides(&nginx);
    assert_eq!(fields(&redis, "user="), ["limiter"]);
    redis.command::<()>(&["SCRIPT", "FLUSH"]);
    assert_eq!(nginx.get("/?k=a").remaining(), Some(6));
    let denied = redis.command::<Vec<redis::Value>>(&["ACL", "LOG"]);
    assert!(denied.is_empty(), "{denied:?}");
}

#[test]
fn an_account_need_not_load_scripts_or_name_itself() {
    let rule = "user limiter on >pw ~rl:* resetchannels -@all +evalsha +eval +time +get +set";
    let redis = Redis::start_with(&[rule]);
    let nginx = limited(&format!("redis://limiter:pw@127.0.0.1:{}", redis.port())).start();
    decides(&nginx);
    // The first EVALSHA met no script.
    assert_eq!((redis.calls("eval"), redis.calls("evalsha")), (1, 2));
    assert_eq!(nginx.logged("[error]"), Vec::<String>::new());
}

/// A proxy may end a connection with a command that it does not know.
#[test]
fn what_a_server_hangs_up_at_is_left_out() {
    let fake = Fake::start(|command| match command.name().as_str() {
        "CLIENT" | "SCRIPT" => Act::Close(Vec::new()),
        _ => Act::Usual,
    });
    let nginx = limited(&fake.url()).start();
    let is_decided = || nginx.get("/?k=a").decision() == "PASSED redis";
    for _ in 0..2 {
        wait_until(PATIENCE, is_decided, "a decision");
        fake.hang_up();
    }
    wait_until(PATIENCE, is_decided, "a decision over another connection");
    // EXISTS and LOAD.
    assert_eq!((fake.count("CLIENT"), fake.count("SCRIPT")), (1, 2));
    let lines = nginx.logged("does not accept");
    let all = "does not accept CLIENT SETNAME, SCRIPT EXISTS, SCRIPT LOAD: it is done without";
    assert!(lines.len() == 1 && lines[0].contains(all), "{lines:?}");
}

#[test]
fn what_an_account_may_not_do_is_left_out() {
    let rule = "user limiter on >pw ~rl:* resetchannels -@all +evalsha +eval +time +get +set";
    let redis = Redis::start_with(&[rule]);
    let nginx = limited(&format!("redis://limiter:pw@127.0.0.1:{}", redis.port())).start();
    decides(&nginx);
    let denied = || -> Vec<Vec<redis::Value>> { redis.command(&["ACL", "LOG"]) };
    let first = denied();
    assert_eq!(first.len(), 3, "CLIENT SETNAME, SCRIPT EXISTS and SCRIPT LOAD: {first:?}");
    redis.command::<()>(&["ACL", "LOG", "RESET"]);
    redis.command::<i64>(&["CLIENT", "KILL", "USER", "limiter"]);
    let is_decided = || nginx.get("/?k=a").decision() == "PASSED redis";
    wait_until(PATIENCE, is_decided, "a decision over another connection");
    assert_eq!(denied(), Vec::<Vec<redis::Value>>::new());
    assert_eq!(nginx.logged("does not accept").len(), 1);
}

#[test]
fn an_account_without_a_permission_is_logged() {
    for missing in ["+evalsha", "+time", "+get", "+set", "~rl:*"] {
        let rights = "~rl:* +script|load +evalsha +eval +time +get +set".replace(missing, "");
        let redis = Redis::start_with(&[&format!("user limiter on >pw -@all {rights}")]);
        let nginx = limited(&format!("redis://limiter:pw@127.0.0.1:{}", redis.port())).start();
        for _ in 0..3 {
            assert_eq!(nginx.get("/?k=a").decision(), "ERROR_PASSED none", "without {missing}");
        }
        let errors = nginx.logged("[error]");
        assert!(
            errors.len() == 1 && errors[0].contains("refused to decide"),
            "{missing}: {errors:?}"
        );
    }
}

#[test]
fn a_connection_that_redis_closes_is_replaced_at_once() {
    let redis = Redis::start();
    let nginx = limited(&redis.url()).start();
    assert_eq!(nginx.get("/?k=a").remaining(), Some(8));
    for left in [7, 6] {
        // A connection that did not last might be replaced with some hesitation.
        sleep(Duration::from_millis(1_200));
        let before = fields(&redis, "id=");
        redis.command::<()>(&["CLIENT", "KILL", "TYPE", "normal"]);
        assert_eq!(nginx.get("/?k=a").remaining(), Some(left));
        assert_ne!(fields(&redis, "id="), before);
    }
    assert_eq!(nginx.logged("[error]"), Vec::<String>::new());
}

#[test]
fn connections_that_were_lost_leave_nothing_behind() {
    let redis = Redis::start();
    let nginx = limited(&redis.url()).http("rate_limit_redis_deny_cache off;").start();
    let sockets = || {
        let descriptors = format!("/proc/{}/fd", nginx.worker_pids()[0]);
        let descriptors = std::fs::read_dir(descriptors).expect("the descriptors of the worker");
        let links = descriptors.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
    };
    let mut http = nginx.http();
    let mut works = || {
        let working = || http.get("/?k=a").decision().ends_with("redis");
        wait_until(PATIENCE, working, "decisions by Redis");
    };
    works();
    let before = sockets();
    for _ in 0..12 {
        redis.command::<()>(&["CLIENT", "KILL", "TYPE", "normal"]);
        works();
    }
    assert_eq!(sockets(), before);
}

#[test]
fn redis_may_close_idle_connections() {
    // Long enough for a connection that a busy worker finds ready late to have had a useful life of a second.
    let redis = Redis::start_with(&["timeout 3"]);
    let nginx = limited(&redis.url()).start();
    nginx.wait_for_error_log("reconnecting");
    // The next one is not to be closed between two requests.
    redis.command::<()>(&["CONFIG", "SET", "timeout", "0"]);
    decides(&nginx);
    assert_eq!(nginx.logged("[error]"), Vec::<String>::new());
}

/// The events of a connection after nonsense, such as its end, are not taken for those of the new one.
#[test]
fn nonsense_before_the_end_of_a_connection_costs_but_that_connection() {
    let fake = Fake::start(|_| Act::Usual);
    let nginx = limited(&fake.url()).start();
    let decided = || nginx.get("/?k=a").decision() == "PASSED redis";
    wait_until(PATIENCE, decided, "decisions by Redis");
    nginx.in_one_turn(|| {
        fake.shout(b"nonsense\r\n");
        fake.hang_up();
    });
    nginx.wait_for_error_log("reconnecting");
    wait_until(PATIENCE, decided, "decisions by Redis again");
    assert_eq!(fake.count(""), 2);
    assert_eq!(nginx.logged("[error]"), Vec::<String>::new());
}

/// NGINX's cached time is older by then than an attempt to connect may take.
#[test]
fn a_configuration_that_takes_long_to_read_is_no_reason_to_give_up() {
    let redis = Redis::start();
    let networks: String = (0..400_000u32)
        .map(|n| format!("10.{}.{}.{} {n};\n", n >> 16, n >> 8 & 255, n & 255))
        .collect();
    let nginx = limited(&redis.url())
        .file("networks", &networks)
        .http("geo $network { include {prefix}/networks; }")
        .start();
    assert_eq!(nginx.get("/?k=a").decision(), "PASSED redis");
    assert_eq!(nginx.logged("[error]"), Vec::<String>::new());
}

#[test]
fn a_user_needs_no_password() {
    let redis = Redis::start_with(&["user limiter on nopass ~rl:* +@all"]);
    let nginx = limited(&format!("redis://limiter@127.0.0.1:{}", redis.port())).start();
    decides(&nginx);
    assert_eq!(fields(&redis, "user="), ["limiter"]);
}
