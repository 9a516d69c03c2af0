//! Real nginx, real Redis and real clients, for tests of the whole system.
//!
//! ```no_run
//! use harness::{Conf, Redis};
//!
//! let redis = Redis::start();
//! let nginx = Conf::new()
//!     .redis(&redis)
//!     .server("location / { rate_limit_redis $remote_addr rate=2r/m; }")
//!     .start();
//! assert_eq!(nginx.get("/").status, 200);
//! ```
//!
//! Every server has a temp directory and ports of its own, so tests may run side by side. It ends
//! with the value that stands for it, or with the test process, however that ends. When nginx is
//! dropped its error log is checked; when a test fails, the log of each server is shown.

#![warn(missing_docs)]

mod browser;
mod cluster;
mod conf;
mod demo;
mod dns;
mod fake;
pub mod frames;
mod http;
mod journal;
mod lag;
mod library;
mod load;
mod netns;
mod nginx;
mod port;
mod prefix;
mod process;
mod prometheus;
mod proxy;
mod redis;
mod remote;
pub mod reply;
mod sentinel;
pub mod stop;
mod tls;
mod usage;

use std::time::{Duration, Instant};

pub use browser::Browser;
pub use cluster::{Cluster, ClusterConf, Migration, SLOTS, slot};
pub use conf::{Conf, check_file, is_configured, is_installed, is_of_distribution};
pub use demo::ScriptRun;
pub use dns::{Answer, Dns};
pub use fake::{ALLOWED, Act, Command, Fake};
pub use http::{Http, Response};
pub use journal::{Entry, Journal};
pub use library::Library;
pub use load::{Load, Tally, ab, h2load, hey, run};
pub use nginx::{Nginx, has_pid_namespaces, state as process_state};
pub use port::{free as free_port, is_free as is_free_port, is_free_with_bus};
pub use prefix::Prefix;
pub use process::{Process, mortal};
pub use prometheus::Prometheus;
pub use proxy::{Mode, Proxy};
pub use redis::{Home, Redis, servers};
pub use remote::Remote;
pub use sentinel::{MASTER_NAME, SentinelConf, Sentinels};
pub use tls::{Authority, Identity, Recorder};
pub use usage::{Usage, allocations, cpu_of_children, cpu_of_this, wakes};

/// How long anything may take that should happen at once, on a machine that is as busy as can be. A test
/// that passes waits for events, and never so long.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `condition` holds; panics, naming `what`, if it does not within `timeout`.
#[track_caller]
pub fn wait_until(timeout: Duration, condition: impl FnMut() -> bool, what: &str) {
    assert!(holds_within(timeout, condition), "not within {timeout:?}: {what}");
}

/// Waits until `condition` holds, and returns whether it does within `timeout`. The longer that takes, the less often it
/// looks, to leave the processor to other tests.
pub fn holds_within(timeout: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() >= timeout {
            return false;
        }
        let pause =
            (start.elapsed() / 10).clamp(Duration::from_millis(5), Duration::from_millis(25));
        std::thread::sleep(pause);
    }
    true
}

/// Runs what has one shape for all of these cases at once, each on a thread of its own: most of it waits. Panics if
/// one of them does.
pub fn at_once<T: Send>(cases: impl IntoIterator<Item = T>, run: impl Fn(T) + Sync) {
    std::thread::scope(|scope| {
        for case in cases {
            scope.spawn(|| run(case));
        }
    });
}
