//! The snippets of docs/kubernetes.md, where a controller puts them.

use harness::{Conf, Nginx, Redis};

use crate::documents::examples::read;
use crate::seen::StartConnected as _;

/// The text of a block of YAML, `name: |`, without its indentation.
fn block(page: &str, name: &str) -> String {
    let (before, rest) = page.split_once(&format!("{name}: |\n")).expect("a block");
    let line = before.rsplit('\n').next().expect("a line");
    let indent = line.len() - line.trim_start().len();
    let is_inside = |line: &&str| line.len() - line.trim_start().len() > indent;
    rest.lines().take_while(is_inside).map(|line| format!("{}\n", line.trim())).collect()
}

/// The value of a snippet of a SnippetsFilter.
fn value<'a>(page: &'a str, context: &str) -> &'a str {
    let (_, rest) = page.split_once(&format!("- context: {context}\n")).expect("a snippet");
    rest.lines().next().and_then(|line| line.trim().strip_prefix("value: ")).expect("a value")
}

/// An NGINX whose configuration was made from three snippets.
fn start(main: &str, http: &str, location: &str, redis: &Redis) -> Nginx {
    // The harness loads the module itself.
    assert_eq!(main.trim(), "load_module modules/ngx_http_rate_limit_redis_module.so;");
    let url = "redis://redis.rate-limit.svc.cluster.local:6379";
    assert!(http.contains(url), "{http}");
    let http = http
        .replace(url, &redis.url())
        .replace("listen 8082;", "listen unix:{prefix}/metrics.sock;");
    Conf::new()
        .http(&format!("rate_limit_redis_timeout 5s; {http}"))
        .server(&format!("location / {{ {location} try_files /index.html =404; }}"))
        .start_connected(redis)
}

#[test]
fn an_ingress_is_limited() {
    let redis = Redis::start_with_stopped_clock();
    let page = read("../docs/kubernetes.md");
    let blocks = ["main-snippets", "http-snippets", "nginx.org/location-snippets"];
    let [main, http, location] = blocks.map(|name| block(&page, name));
    assert!(http.contains("rate_limit_redis_metrics;"), "{http}");
    let nginx = start(&main, &http, &location.replace("100r/m", "1r/m"), &redis);
    assert_eq!(nginx.get("/").status, 200);
    let rejection = nginx.get("/");
    assert_eq!(rejection.status, 429);
    assert_eq!(rejection.header("Content-Type"), Some("application/json"));
}

#[test]
fn a_route_is_limited() {
    let redis = Redis::start_with_stopped_clock();
    let page = read("../docs/kubernetes.md");
    let values = ["main", "http", "http.server.location"].map(|context| value(&page, context));
    let [main, http, location] = values;
    let nginx = start(main, http, &location.replace("100r/m", "1r/m"), &redis);
    assert_eq!([(); 2].map(|()| nginx.get("/").status), [200, 429]);
}
