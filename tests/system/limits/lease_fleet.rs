//! Leases of a fleet: many clients, workers that die, and keys that move to other servers.

use std::time::{Duration, Instant};

use harness::{
    ClusterConf, Conf, MASTER_NAME, Nginx, PATIENCE, Redis, SentinelConf, slot, wait_until,
};

use crate::limits::lease::{
    METRICS, ended, few_are_commands, flood, flood_while_workers_die, leased, location,
};
use crate::seen::StartConnected as _;

/// The units that each client may spend.
const LIMIT: u64 = 200;

/// Two machines with two workers each, and hundreds of clients: half of what they may takes few
/// commands, and of all that they may nearly everything passes and nothing more, while workers are
/// killed and replaced.
#[test]
fn hundreds_of_clients_spend_all_with_few_commands() {
    const CLIENTS: usize = 300;
    let redis = Redis::start();
    let conf = leased(&redis)
        .server(&location("/", "rate_limit_redis $arg_k rate=200r/h;"))
        .server(METRICS);
    let start = Instant::now();
    let mut machines = [conf.start_connected(&redis), conf.start()];
    let half = flood(&machines, CLIENTS, 100);
    let (calls, all) = (redis.calls("evalsha"), (CLIENTS * 100) as u64);
    few_are_commands(calls, all, CLIENTS, start);
    let ended_before = ended(&machines, start);
    assert!(half.iter().all(|passed| passed + ended_before >= 100), "{half:?}");
    assert!(half.iter().sum::<u64>() + ended_before >= all, "{ended_before} lost: {half:?}");

    let (rest, lost) = flood_while_workers_die(&mut machines, CLIENTS, 12_000, 3_000);
    let passed: Vec<_> = half.iter().zip(&rest).map(|(half, rest)| half + rest).collect();
    let most = LIMIT + 1 + start.elapsed().as_secs() * LIMIT / 3_600;
    assert!(passed.iter().all(|passed| *passed <= most), "{most}: {passed:?}");
    let (passed, limit) = (passed.iter().sum::<u64>(), CLIENTS as u64 * LIMIT);
    let lost = lost + ended(&machines, start);
    assert!((passed + lost) * 100 >= limit * 99, "{passed} of {limit}, {lost} lost");
}

/// A machine whose store has these servers.
fn machine(servers: &[String], kind: &str) -> Nginx {
    let servers: String = servers.iter().map(|url| format!("server {url}; ")).collect();
    Conf::new()
        .decisions()
        .workers(2)
        .http(&format!("rate_limit_redis_store edge {{ {servers} {kind}; connect_timeout 30s; }}"))
        .http("rate_limit_redis_pass edge; rate_limit_redis_timeout 5s; rate_limit_redis_lease 1m;")
        .http("rate_limit_redis_on_error closed; rate_limit_redis_log_level info;")
        .server(&location("/", "rate_limit_redis $arg_k rate=1r/h capacity=200;"))
        .server(METRICS)
        .start()
}

/// Ten clients, and how much of their quotas has passed.
struct Clients {
    nginx: Nginx,
    passed: [u64; 10],
    start: Instant,
}

impl Clients {
    fn new(nginx: Nginx) -> Self {
        Self { nginx, passed: [0; 10], start: Instant::now() }
    }

    /// So many requests of each, in turn; some of them are hits, and some are commands.
    #[track_caller]
    fn request(&mut self, times: usize) {
        let mut sources = [0; 2];
        for _ in 0..times {
            for (client, passed) in self.passed.iter_mut().enumerate() {
                let decision = self.nginx.get(&format!("/?k={{t}}{client}")).decision().to_owned();
                *passed += u64::from(decision.starts_with("PASSED"));
                let is =
                    ["PASSED lease", "PASSED redis"].map(|passed| usize::from(passed == decision));
                sources.iter_mut().zip(is).for_each(|(sum, one)| *sum += one);
                assert!(!decision.starts_with("ERROR"), "{client}: {decision}");
            }
        }
        assert!(sources.iter().all(|number| *number > 0), "leases and commands: {sources:?}");
    }

    /// All that is left of each: in all nearly everything has passed, and nothing more.
    #[track_caller]
    fn exhaust(mut self) {
        self.request(LIMIT as usize);
        let lost = ended(std::slice::from_ref(&self.nginx), self.start);
        let bounds = LIMIT.saturating_sub(2 + lost)..=LIMIT + 1;
        assert!(self.passed.iter().all(|passed| bounds.contains(passed)), "{:?}", self.passed);
    }
}

#[test]
fn another_master_goes_on_with_the_leases() {
    let sentinels = SentinelConf::new(1).down_after(Duration::from_secs(10)).start();
    let nginx = machine(&sentinels.urls(), &format!("sentinel {MASTER_NAME}"));
    wait_until(PATIENCE, || nginx.get("/?k=a").decision() == "PASSED redis", "decisions");
    let mut clients = Clients::new(nginx);
    clients.request(60);
    let offsets = || [0, 1].map(|n| sentinels.server(n).info("master_repl_offset"));
    wait_until(
        PATIENCE,
        || {
            let [one, other] = offsets();
            one == other
        },
        "replication",
    );
    assert_eq!(sentinels.failover(), 1);
    let recovered = || clients.nginx.get("/?k=b").decision() == "PASSED redis";
    wait_until(PATIENCE, recovered, "decisions of the new master");
    clients.request(60);
    clients.exhaust();
}

#[test]
fn keys_may_move_to_another_node_with_their_leases() {
    let cluster = ClusterConf::new(2, 2).node_timeout(Duration::from_secs(10)).start();
    let nginx = machine(&cluster.urls(), "cluster on");
    wait_until(PATIENCE, || nginx.get("/?k=a").decision() == "PASSED redis", "decisions");
    let mut clients = Clients::new(nginx);
    clients.request(40);
    let tagged = slot("{t}");
    let to = 1 - cluster.master_of(tagged);
    let migration = cluster.begin_migration(tagged, to);
    assert_eq!(cluster.migrate_keys(migration, 5), 5);
    // Some are found by ASK.
    clients.request(40);
    while cluster.migrate_keys(migration, 5) > 0 {}
    cluster.finish_migration(migration);
    // All are found by MOVED.
    clients.request(40);
    cluster.failover(cluster.replicas_of(to)[0]);
    clients.exhaust();
}
