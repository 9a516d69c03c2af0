//! The least that must work.

use harness::{Conf, Redis};

#[test]
fn limits() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .server("location / { rate_limit_redis $remote_addr rate=2r/m; }")
        .start();
    let statuses = [(); 3].map(|()| nginx.get("/").status);
    assert_eq!(statuses, [200, 200, 429]);
}
