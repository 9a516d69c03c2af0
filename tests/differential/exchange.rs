//! The example of a driver of the client, with a real Redis.

use harness::Redis;

#[path = "../../core/examples/exchange.rs"]
mod driver;

#[test]
fn the_smallest_driver_is_decided_by_redis() {
    let redis = Redis::start();
    for host in ["127.0.0.1", "localhost"] {
        let url = format!("redis://{host}:{}", redis.port());
        let verdicts = [(); 6].map(|()| driver::charge(&url, host).expect("a verdict"));
        assert_eq!(verdicts.map(|verdict| verdict.allowed), [true, true, true, true, true, false]);
        assert_eq!(verdicts.map(|verdict| verdict.remaining), [4, 3, 2, 1, 0, 0]);
    }
}
