//! The metrics page in a real browser.

use harness::{Browser, Conf, Nginx, Redis};

use super::page::{self, fits_everywhere};
use crate::seen::StartConnected as _;

/// A machine with a limit of five requests a day, and one that nobody meets.
fn machine(redis: &Redis) -> Nginx {
    Conf::new()
        .redis(redis)
        .server("location = /metrics { rate_limit_redis_metrics; }")
        .server("location = /html { rate_limit_redis_metrics html; }")
        .server("location / { rate_limit_redis k name=five rate=5r/d; }")
        .server("location /idle { rate_limit_redis k name=nobody rate=5r/d; }")
        .start_connected(redis)
}

fn visit(nginx: &Nginx) -> Browser {
    let is_live = "document.querySelector('#state').textContent.startsWith('Live, ')";
    page::visit(nginx, "/metrics?format=html", is_live)
}

fn wait_for_text(browser: &Browser, selector: &str, pattern: &str) {
    browser
        .wait_for(&format!("/{pattern}/.test(document.querySelector({selector:?}).textContent)"));
}

#[test]
fn a_summary_comes_first_and_idle_limits_are_folded() {
    let redis = Redis::start();
    let nginx = machine(&redis);
    let browser = visit(&nginx);
    assert_eq!(browser.text("h1"), format!("Rate limits of {}", nginx.addr()));
    wait_for_text(&browser, "#no-limits", "^No requests in the last 2 minutes");
    wait_for_text(&browser, "#idle-title", "^2 idle limits$");
    wait_for_text(&browser, "#redis", "^✓ up$");
    wait_for_text(&browser, "#local", "^0 of 2\\.[0-9] MB$");

    (0..20).for_each(|_| drop(nginx.get("/")));
    wait_for_text(&browser, "#requests", "^[1-9]");
    wait_for_text(&browser, "#rejected", "^[1-9.]+\\/s 75 %$");
    wait_for_text(&browser, "#undecided", "^0\\/s$");
    wait_for_text(&browser, "#p50", "s$");
    wait_for_text(&browser, "#p99", "s$");
    wait_for_text(&browser, "#idle-title", "^1 idle limit$");
    assert_eq!(browser.text("#limits tbody th"), "five");
    assert_eq!(browser.text("#idle-limits tbody th"), "nobody");
    for path in ["#limits .passed", "#limits .rejected", "#latency .p50", "#latency .p99"] {
        browser.wait_for(&format!("document.querySelector({path:?}).getAttribute('d') !== ''"));
    }
    let links =
        "return [...document.querySelectorAll('#forms a:not([hidden])')].map((a) => a.href)";
    let expected = ["json", "prometheus"].map(|form| nginx.url(&format!("/metrics?format={form}")));
    assert_eq!(browser.run(links), serde_json::json!(expected));
    assert_eq!(browser.console(), Vec::<String>::new());

    // Where the page is the only form, only its numbers are to be had.
    browser.open(&nginx.url("/html"));
    browser.wait_for("document.querySelector('#prometheus').hidden");
    assert_eq!(browser.console(), Vec::<String>::new());
}

#[test]
fn what_is_undecided_stands_out() {
    let mut redis = Redis::start();
    let mut nginx = machine(&redis);
    nginx.allow_log("redis");
    let browser = visit(&nginx);
    redis.kill9();
    wait_for_text(&browser, "#redis", "^✕ down$");
    (0..20).for_each(|_| drop(nginx.get("/")));
    wait_for_text(&browser, "#undecided", "^[1-9.]+\\/s 100 %$");
    let color = |id: &str| browser.run(&format!("return getComputedStyle({id}).color"));
    assert_ne!(color("undecided"), color("rejected"));
    browser.wait_for("document.querySelector('#limits .undecided').getAttribute('d') !== ''");
    assert_eq!(browser.console(), Vec::<String>::new());
}

#[test]
fn it_fits_a_phone_and_both_colour_schemes() {
    let redis = Redis::start();
    let nginx = machine(&redis);
    let browser = visit(&nginx);
    (0..20).for_each(|_| drop(nginx.get("/")));
    wait_for_text(&browser, "#rejected", "75 %$");
    fits_everywhere(&browser);
}
