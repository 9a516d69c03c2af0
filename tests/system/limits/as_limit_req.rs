//! Equal traffic to this module and to NGINX's own `limit_req`.

use std::thread::sleep;
use std::time::Instant;

use harness::Redis;

use super::leaky::{conf, log, ms, sent};
use crate::seen::StartConnected as _;

#[test]
fn is_delayed_and_rejected_alike() {
    let redis = Redis::start();
    let shapes = ["", "burst=3", "burst=3 nodelay", "burst=4 delay=2"];
    let mut conf = conf(&redis).http("limit_req_status 429;");
    for (n, shape) in shapes.iter().enumerate() {
        conf = conf
            .http(&format!("limit_req_zone $arg_k zone=z{n}:1m rate=30r/m;"))
            .server(&format!("location /theirs{n} {{ try_files /index.html =404;"))
            .server(&format!("limit_req zone=z{n} {shape}; }}"))
            .server(&format!("location /ours{n} {{ try_files /index.html =404; rate_limit_redis"))
            .server(&format!("$arg_k name=z{n} rate=30r/m algorithm=leaky_bucket {shape}; }}"));
    }
    let nginx = conf.start_connected(&redis);
    let start = Instant::now();
    let mut clients = Vec::new();
    // A burst, some of what comes back, and a pause after which all has.
    let times = [0, 0, 0, 0, 0, 0, 4_800, 4_800, 4_800, 15_000, 15_000];
    for (n, time) in times.into_iter().enumerate() {
        sleep(ms(time).saturating_sub(start.elapsed()));
        // Each of a pair is to come as late as the other.
        nginx.in_one_turn(|| {
            for shape in 0..shapes.len() {
                for whose in ["theirs", "ours"] {
                    clients.push(sent(&nginx, &format!("/{whose}{shape}?k=a&{n}")));
                }
            }
        });
    }
    for http in &mut clients {
        http.read_response();
    }
    let logged = log(&nginx, clients.len());
    let find = |uri: String| logged.iter().find(|entry| entry.uri == uri).expect("it is logged");
    let mut kinds = [0; 3];
    for (shape, parameters) in shapes.iter().enumerate() {
        for n in 0..times.len() {
            let theirs = find(format!("/theirs{shape}?k=a&{n}"));
            let ours = find(format!("/ours{shape}?k=a&{n}"));
            let what = format!("{parameters:?}, {n}: {theirs:?}, {ours:?}");
            assert_eq!(ours.status, theirs.status, "{what}");
            assert_eq!(ours.decision, theirs.limit_req, "{what}");
            assert!(ours.time.abs_diff(theirs.time) < ms(1_600), "{what}");
            let kind = ["PASSED", "DELAYED", "REJECTED"].iter().position(|k| *k == ours.decision);
            kinds[kind.expect("a known status")] += 1;
        }
    }
    assert!(kinds.iter().all(|number| *number >= 5), "a traffic that shows little: {kinds:?}");
}
