//! NGINX and the module are upgraded while they serve.

use harness::{Conf, PATIENCE, Redis, has_pid_namespaces, wait_until};

use super::control::{CONTROL, ControlledLoad};
use crate::seen::times;

fn limited(redis: &Redis) -> Conf {
    Conf::new()
        .redis(redis)
        .workers(2)
        .journal()
        .http("rate_limit_redis_log_level info;")
        .server("location / { rate_limit_redis k rate=1r/h capacity=500; }")
        .server(CONTROL)
}

/// Another build of the module takes the place of the one that is loaded, as a package does it, and NGINX is reloaded.
#[test]
fn another_build_of_the_module_is_loaded_unnoticed() {
    let redis = Redis::start();
    let conf = limited(&redis).copied_module();
    let mut nginx = conf.start();
    let load = ControlledLoad::start(&nginx);
    let reloads = times(4, 50);
    for reload in 1..=reloads {
        wait_until(PATIENCE, || nginx.journal().0.len() >= reload * 750 / reloads, "requests");
        nginx.reload_with(&conf);
    }
    wait_until(PATIENCE, || nginx.journal().count("REJECTED") > 100, "rejections");
    let tally = load.stop();
    assert_eq!(tally.of(200), 500, "{tally:?}");
    let journal = nginx.journal();
    assert_eq!(journal.count("PASSED") + journal.count("REJECTED"), journal.0.len());
    assert_eq!(nginx.logged("[error]"), Vec::<String>::new());
}

/// `USR2`, `WINCH` and `QUIT`: both binaries serve for a while.
#[test]
fn binary_upgrade_goes_unnoticed() {
    if !has_pid_namespaces() {
        println!("not tested: it needs PID namespaces");
        return;
    }
    let redis = Redis::start();
    let mut nginx = limited(&redis).daemon().start();
    let load = ControlledLoad::start(&nginx);
    let upgrades = times(2, 20);
    for upgrade in 1..=upgrades {
        wait_until(PATIENCE, || nginx.journal().0.len() >= upgrade * 750 / upgrades, "requests");
        nginx.upgrade();
    }
    wait_until(PATIENCE, || nginx.journal().count("REJECTED") > 100, "rejections");
    let tally = load.stop();
    assert_eq!(tally.of(200), 500, "{tally:?}");
    let journal = nginx.journal();
    assert_eq!(journal.count("PASSED") + journal.count("REJECTED"), journal.0.len());
    let connected = || redis.clients().len() == nginx.worker_pids().len();
    wait_until(PATIENCE, connected, "a connection for each worker of the new binary, no other");
    assert_eq!(nginx.logged("[error]"), Vec::<String>::new());
}
