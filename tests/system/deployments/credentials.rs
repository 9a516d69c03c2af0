//! `password_file` and `auth_interval` in a store: passwords that change while NGINX runs.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::thread::sleep;
use std::time::Duration;

use harness::{ClusterConf, Conf, Load, Nginx, PATIENCE, Redis, Sentinels, wait_until};

use crate::seen::wait_for_connections;

/// A server whose account for limits has this password.
fn redis(password: &str) -> Redis {
    Redis::start_with(&[&format!("user limiter on >{password} ~* &* +@all")])
}

/// An nginx whose limits are kept in a store of these lines, with this password in a file.
fn with(lines: &str, password: &str) -> Conf {
    Conf::new()
        .http(&format!(
            "rate_limit_redis_store edge {{ {lines} user limiter; password_file redis.password; connect_timeout \
             30s; }}"
        ))
        .http("rate_limit_redis_pass edge; rate_limit_redis_timeout 5s; keepalive_requests 1000000;")
        .http("rate_limit_redis_on_error closed; rate_limit_redis_deny_cache off;")
        .decisions()
        .server("location / { rate_limit_redis $arg_k rate=1000000r/d; }")
        .file("redis.password", &format!("{password}\n"))
}

/// Changes the file as a sidecar does: it is never there in part.
fn write(nginx: &Nginx, content: &str) {
    let new = nginx.path("redis.password.new");
    fs::write(&new, content).expect("write the password");
    fs::rename(new, nginx.path("redis.password")).expect("rename the password");
}

fn set_password(redis: &Redis, changes: &[&str]) {
    let words = [&["ACL", "SETUSER", "limiter"], changes].concat();
    redis.command::<()>(&words);
}

/// Waits until connections have logged in so many times more.
#[track_caller]
fn wait_for_logins(redis: &Redis, number: u64) {
    let before = redis.calls("auth");
    wait_until(PATIENCE, || redis.calls("auth") >= before + number, "AUTH");
}

#[track_caller]
fn decides(nginx: &Nginx) {
    assert_eq!(nginx.get("/?k=a").decision(), "PASSED redis");
}

/// Waits until a request is decided: the connection may be made anew.
#[track_caller]
fn decides_again(nginx: &Nginx) {
    wait_until(PATIENCE, || nginx.get("/?k=a").decision() == "PASSED redis", "a decision");
}

/// So many lines of the log hold the text, and none a password.
#[track_caller]
fn logged(nginx: &Nginx, text: &str, number: usize) {
    let lines = nginx.logged(text);
    assert_eq!(lines.len(), number, "{lines:?}");
    assert_eq!(nginx.logged("s3cret"), Vec::<String>::new());
}

#[test]
fn passwords_may_change_each_second_under_load() {
    let redis = redis("s3cret-0");
    let lines = format!("server {}; auth_interval 200ms; connections 2;", redis.url());
    let mut nginx = with(&lines, "s3cret-0").workers(2).start();
    wait_for_connections(&redis, 4);
    let load = Load::start(nginx.addr(), "/?k=a", 8);
    for round in 1..=6 {
        let (old, new) = (format!("s3cret-{}", round - 1), format!("s3cret-{round}"));
        set_password(&redis, &[&format!(">{new}")]);
        write(&nginx, &format!("{new}\n"));
        set_password(&redis, &[&format!("<{old}")]);
        if round == 3 {
            nginx.reload();
        }
        sleep(Duration::from_secs(1));
    }
    let tally = load.stop();
    assert!(tally.failures.is_empty() && tally.of(200) > 0, "{tally:?}");
    assert_eq!(tally.of(200), tally.total(), "{tally:?}");
    assert!(redis.calls("auth") >= 4 * 6, "{}", redis.calls("auth"));
    assert_eq!(nginx.logged("s3cret"), Vec::<String>::new());
}

#[test]
fn a_new_connection_reads_the_file_again() {
    let redis = redis("s3cret-1");
    let nginx = with(&format!("server {};", redis.url()), "s3cret-1").start();
    wait_for_connections(&redis, 1);
    decides(&nginx);
    write(&nginx, "s3cret-2\n");
    set_password(&redis, &[">s3cret-2", "<s3cret-1"]);
    // An open connection stays.
    decides(&nginx);
    redis.command::<i32>(&["CLIENT", "KILL", "USER", "limiter"]);
    decides_again(&nginx);
    logged(&nginx, "refused", 0);
}

#[test]
fn a_refused_password_leaves_connections_open() {
    let redis = redis("s3cret-1");
    let lines = format!("server {}; auth_interval 50ms;", redis.url());
    let nginx = with(&lines, "s3cret-1").start();
    wait_for_connections(&redis, 1);
    let refused = "refused the password, with which connections were to log in again: \"WRONGPASS";
    for times in 1..=2 {
        write(&nginx, "wr0ng\n");
        wait_until(PATIENCE, || nginx.logged(refused).len() == times, "a refusal");
        wait_for_logins(&redis, 5);
        decides(&nginx);
        write(&nginx, "s3cret-1\n");
        // The first of them may have read the file before.
        wait_for_logins(&redis, 3);
        logged(&nginx, refused, times);
    }
    decides(&nginx);
    logged(&nginx, " is down", 0);
    logged(&nginx, "wr0ng", 0);
}

#[test]
fn a_file_that_cannot_be_read_is_told_once() {
    let redis = redis("s3cret-1");
    let lines = format!("server {}; auth_interval 50ms;", redis.url());
    let nginx = with(&lines, "s3cret-1").start();
    wait_for_connections(&redis, 1);
    wait_for_logins(&redis, 2);
    let told = |text: &str| format!("/redis.password\" of \"password_file\": {text}");
    let missing = told("No such file or directory (os error 2); the password before stays in use");
    let empty = told("there is no password in its first line");
    let pipe = told("it is no regular file");
    let causes: [(&str, &dyn Fn()); 3] = [
        (&missing, &|| fs::remove_file(nginx.path("redis.password")).expect("remove the file")),
        (&empty, &|| write(&nginx, "\n")),
        (&pipe, &|| {
            // At no moment is the file missing.
            let pipe = nginx.path("redis.pipe");
            harness::run("mkfifo", &[&pipe.display().to_string()]);
            fs::rename(pipe, nginx.path("redis.password")).expect("put the pipe in its place");
        }),
    ];
    for (line, cause) in causes {
        cause();
        nginx.wait_for_error_log(line);
        wait_for_logins(&redis, 4);
        decides(&nginx);
        logged(&nginx, line, 1);
        redis.command::<i32>(&["CLIENT", "KILL", "USER", "limiter"]);
        decides_again(&nginx);
        write(&nginx, "s3cret-1");
        wait_for_logins(&redis, 3);
    }
    logged(&nginx, "of \"password_file\"", 3);
    logged(&nginx, "refused", 0);
}

/// The password that the master process has read counts.
#[test]
fn a_file_for_root_alone_is_read_by_the_master_process() {
    // SAFETY: it only returns a number.
    if unsafe { libc::geteuid() } != 0 {
        return;
    }
    let redis = redis("s3cret-1");
    let lines = format!("server {}; auth_interval 50ms;", redis.url());
    let mut nginx = with(&lines, "s3cret-1").start();
    wait_for_connections(&redis, 1);
    let keep_to_root = |content: &str| {
        let new = nginx.path("redis.password.new");
        fs::write(&new, content).expect("write the password");
        fs::set_permissions(&new, Permissions::from_mode(0o600)).expect("set the mode");
        fs::rename(new, nginx.path("redis.password")).expect("rename the password");
    };
    keep_to_root("s3cret-1");
    nginx.reload();
    let nginx_log = |nginx: &Nginx| nginx.logged("password").len();
    let before = nginx_log(&nginx);
    let keep = |nginx: &Nginx, content: &str| {
        fs::write(nginx.path("redis.password"), content).expect("write the password");
    };
    keep(&nginx, "wr0ng");
    wait_for_logins(&redis, 4);
    redis.command::<i32>(&["CLIENT", "KILL", "USER", "limiter"]);
    decides_again(&nginx);
    assert_eq!(nginx_log(&nginx), before, "{}", nginx.error_log());
    set_password(&redis, &[">s3cret-2", "<s3cret-1"]);
    keep(&nginx, "s3cret-2");
    nginx.reload();
    decides_again(&nginx);
}

#[test]
fn every_master_of_a_cluster_is_logged_in_to_again() {
    let cluster = ClusterConf::steady(3, 0).line("user limiter on >s3cret-1 ~* &* +@all").start();
    let servers: String = cluster.urls().iter().map(|url| format!("server {url};")).collect();
    let lines = format!("{servers} cluster on; auth_interval 50ms;");
    let nginx = with(&lines, "s3cret-1").start();
    for key in 0..30 {
        assert_eq!(nginx.get(&format!("/?k={key}")).decision(), "PASSED redis");
    }
    for node in 0..3 {
        set_password(cluster.node(node), &[">s3cret-2"]);
    }
    write(&nginx, "s3cret-2");
    for node in 0..3 {
        wait_for_logins(cluster.node(node), 3);
        set_password(cluster.node(node), &["<s3cret-1"]);
        cluster.command::<i32>(node, &["CLIENT", "KILL", "USER", "limiter"]);
    }
    decides_again(&nginx);
    logged(&nginx, "refused the password", 0);
}

/// A sentinel takes no `AUTH` from a connection that is subscribed to a channel.
#[test]
fn a_master_that_sentinels_know_is_logged_in_to_again() {
    let sentinels = Sentinels::start(0);
    let master = sentinels.server(sentinels.master());
    master.command::<()>(&["ACL", "SETUSER", "limiter", "on", ">s3cret-1", "~*", "&*", "+@all"]);
    let servers: String = sentinels.urls().iter().map(|url| format!("server {url};")).collect();
    let lines = format!("{servers} sentinel mymaster; auth_interval 50ms;");
    let nginx = with(&lines, "s3cret-1").start();
    decides_again(&nginx);
    set_password(master, &[">s3cret-2", "<s3cret-1"]);
    write(&nginx, "s3cret-2");
    wait_for_logins(master, 3);
    assert_eq!(sentinels.sentinel(0).calls("auth"), 0);
    master.command::<i32>(&["CLIENT", "KILL", "USER", "limiter"]);
    decides_again(&nginx);
}

#[test]
fn an_interval_needs_a_password() {
    let conf = Conf::new()
        .http("rate_limit_redis_store edge { server redis://127.0.0.1:1; auth_interval 1m; }")
        .http("rate_limit_redis_pass edge;")
        .server("rate_limit_redis $arg_k rate=1r/s;");
    let output = conf.config_error();
    assert!(output.contains("\"auth_interval\" needs a password to log in with"), "{output}");
}
