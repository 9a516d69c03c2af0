//! Redis Cluster.

use harness::{Cluster, Conf, Nginx};

fn limited(cluster: &Cluster, lines: &str) -> Conf {
    let servers: String = cluster.urls().iter().map(|url| format!("server {url};")).collect();
    Conf::new()
        .http(&format!("rate_limit_redis_store edge {{ {servers} cluster on; {lines} }}"))
        .http("rate_limit_redis_pass edge; rate_limit_redis_timeout 200ms; rate_limit_redis_on_error closed;")
        .decisions()
        .server("location / { rate_limit_redis $arg_k rate=1r/h capacity=10; }")
        .server("location /two { rate_limit_redis $arg_a name=a rate=1r/h capacity=10;")
        .server("rate_limit_redis $arg_b name=b rate=1r/h capacity=5; try_files /index.html =404; }")
}

#[test]
fn keys_of_all_slots_are_counted() {
    let cluster = Cluster::start(3, 0);
    let nginx: Nginx = limited(&cluster, "").start();
    let mut http = nginx.http();
    for number in 0..300 {
        let response = http.get(&format!("/?k={number}"));
        assert_eq!((response.decision(), response.remaining()), ("PASSED redis", Some(9)));
    }
    assert_eq!(nginx.logged("[error]"), Vec::<String>::new());
}

#[test]
fn what_was_spent_is_given_back() {
    let cluster = Cluster::start(3, 0);
    let nginx: Nginx = limited(&cluster, "").start();
    let mut http = nginx.http();
    for _ in 0..5 {
        assert_eq!(http.get("/two?a=x&b=y").decision(), "PASSED redis");
    }
    for _ in 0..20 {
        assert_eq!(http.get("/two?a=x&b=y").decision(), "REJECTED redis");
    }
    assert_eq!(http.get("/two?a=x&b=z").decision(), "PASSED redis");
    let response = http.get("/two?a=x&b=y2");
    assert_eq!((response.decision(), response.remaining()), ("PASSED redis", Some(3)));
}
