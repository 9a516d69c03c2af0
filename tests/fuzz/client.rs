//! The whole client: any events in any order, and any bytes in any chunks as replies.
//!
//! Whatever comes, each request is complete once and keeps its outcome, none waits for longer than its timeout, no
//! connection is made again before it is closed, each settlement ends once, and in the end nothing is left.

mod driver;
mod server;

use std::rc::Rc;
use std::sync::{Arc, LazyLock};

use rate_limit_core::charge::{Charge, Effect, Template};
use rate_limit_core::client::{Client, Config, Fault, Kind, Server, Settlement, Target, Turn};
use rate_limit_core::key::Head;
use rate_limit_core::lease::{Lease, Report};
use rate_limit_core::limit::{Algorithm, Quota};
use rate_limit_core::rate::{MILLISECOND, SECOND};
use rate_limit_core::redis::endpoint::Endpoint;
use rate_limit_core::redis::script::Scripts;

use crate::input::Input;
use driver::Driver;

/// The most events of a run.
const MOST: usize = 256;

static SCRIPTS: LazyLock<Arc<Scripts>> = LazyLock::new(|| Arc::new(Scripts::new()));

/// The charges of the limits of requests: all algorithms and a month, the fourth one with a block.
static QUOTAS: LazyLock<Vec<Quota>> = LazyLock::new(|| {
    let quota = |algorithm, rate: &str| Quota::new(algorithm, rate.parse().unwrap(), 5).unwrap();
    let month = quota(Algorithm::FixedWindow, "5r/month");
    let all = Algorithm::ALL.map(|algorithm| quota(algorithm, "5r/s"));
    let mut quotas: Vec<_> = all.into_iter().chain([month]).collect();
    quotas[3] = quotas[3].with_block(SECOND);
    quotas
});

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let config = config(&mut input);
    let password = config.account.password.clone();
    let mut driver = Driver::new(Client::new(config, Arc::clone(&SCRIPTS)), password);
    driver.client.start(driver.now);
    for _ in 0..MOST {
        driver.carry_out(&mut input);
        if input.is_empty() {
            break;
        }
        event(&mut input, &mut driver);
    }
    end(&mut driver);
}

fn config(input: &mut Input<'_>) -> Config {
    let kind = [Kind::Single, Kind::Cluster, Kind::Sentinel("mymaster".to_owned())];
    let kind = kind[input.below(3)].clone();
    let urls =
        ["redis://10.0.0.1:7000", "redis://:s3cret@10.0.0.1:7000/1", "redis://node-1.example"];
    let account: Endpoint = urls[input.below(3)].parse().unwrap();
    let servers = if kind == Kind::Single { 1 } else { input.below(3) + 1 };
    let server = |at| {
        let endpoint = format!("redis://10.0.0.{}:7000", at + 1).parse().unwrap();
        Server { endpoint, targets: Vec::new() }
    };
    let mut servers: Vec<_> = (0..servers).map(server).collect();
    servers[0].endpoint.address = account.address.clone();
    Config {
        kind,
        servers,
        account,
        store: "store".to_owned(),
        client_name: "fuzz".to_owned(),
        auth_interval: [0, SECOND][input.below(2)],
        connect_timeout: 250 * MILLISECOND,
        connections: input.below(3) + 1,
        max_fails: input.below(4),
        fail_timeout: SECOND,
        longest_timeout: 100 * MILLISECOND,
        seed: input.byte().into(),
    }
}

fn event(input: &mut Input<'_>, driver: &mut Driver) {
    match input.below(14) {
        0 | 1 => submit(input, driver),
        2 => driver.now += u64::from(input.byte()),
        3 => driver.now += u64::from(input.byte()) * 10 * MILLISECOND,
        4 | 5 => driver.turn(),
        6 => driver.connect(input),
        7 => driver.resolve(input),
        8 | 9 => driver.reply(input),
        10 => driver.receive(input),
        11 => driver.lose(input),
        12 => driver.release(input),
        _ => rare(input, driver),
    }
}

fn rare(input: &mut Input<'_>, driver: &mut Driver) {
    let (since, cost) = (input.number(), input.number());
    let change = input.number() as i64;
    match input.below(6) {
        0 => driver.is_blocked = !driver.is_blocked,
        1 => driver.client.leave(input.flag().then_some(driver.now + SECOND), driver.now),
        2 => charge(input, |charge, _| {
            driver.client.refund(&Charge { cost, ..charge }, since, driver.now);
        }),
        3 => {
            driver.log_in_again();
        }
        _ => charge(input, |charge, _| {
            let tag = driver.next_tag();
            driver.client.settle(&charge, Settlement { since, change, tag }, driver.now);
        }),
    }
}

fn submit(input: &mut Input<'_>, driver: &mut Driver) {
    let timeout = [5, 20, 1_000][input.below(3)] * MILLISECOND;
    match input.below(4) {
        0 => charge(input, |first, input| {
            charge(input, |second, _| driver.submit(&[first, second], timeout));
        }),
        _ => charge(input, |charge, _| driver.submit(&[charge], timeout)),
    }
}

/// A charge of one of a few clients.
fn charge(input: &mut Input<'_>, act: impl FnOnce(Charge<'_>, &mut Input<'_>)) {
    let which = input.below(QUOTAS.len());
    let quota = &QUOTAS[which];
    let head = Head::new("rl:", &format!("limit{which}")).expect("a name");
    let template = Rc::new(Template::new(head, None));
    let key = [b'a' + input.byte() % 4];
    let digest = (which as u128 * 8 + u128::from(key[0])).into();
    let lease = input.flag().then(|| Lease {
        span: SECOND,
        want: input.number(),
        keep: input.number(),
        report: Report { of: input.number(), unused: input.number(), ..Report::default() },
    });
    let cost = u64::from(input.byte() % 4);
    let effect = if input.flag() { Effect::DryRun } else { Effect::Enforced };
    let lease = lease.as_ref().filter(|_| quota.algorithm().has_leases());
    let charge = Charge { template: &template, key: &key, quota, cost, effect, digest, lease };
    act(charge, input);
}

/// All connections are lost and none is made any more: requests end, and nothing is left of any.
fn end(driver: &mut Driver) {
    let mut nothing = Input::new(&[]);
    driver.is_blocked = false;
    for _ in 0..40 {
        driver.lose_all();
        driver.carry_out(&mut nothing);
        driver.now += 100 * MILLISECOND;
        driver.turn();
        driver.carry_out(&mut nothing);
    }
    driver.release_all();
    driver.client.leave(Some(driver.now), driver.now);
    for _ in 0..40 {
        driver.lose_all();
        driver.carry_out(&mut nothing);
        driver.now += 100 * MILLISECOND;
        driver.turn();
        driver.carry_out(&mut nothing);
    }
    driver.check_end();
}

/// The action of a driver that cannot connect.
fn refused() -> Fault {
    Fault::Connect("connection refused".to_owned())
}

/// The addresses of a host.
fn targets(input: &mut Input<'_>) -> Vec<Target> {
    let target = |at| Target::Ip(([10, 0, 1, at as u8], 7_000).into());
    (0..input.below(3)).map(target).collect()
}
