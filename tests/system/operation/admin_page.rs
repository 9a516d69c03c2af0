//! The page of the admin interface in a real browser.

use harness::{Browser, Conf, Nginx, Redis};

use super::page::{self, fits_everywhere};
use crate::seen::{StartConnected as _, quota};

fn machine(redis: &Redis) -> Nginx {
    Conf::new()
        .redis(redis)
        .http("map $arg_tier $rate { gold 9r/d; default 3r/d; }")
        .server("location = /admin { rate_limit_redis_admin; }")
        .server("location / { rate_limit_redis $arg_k name=five rate=5r/d override; }")
        .server("location /fixed { rate_limit_redis $arg_k name=fixed rate=5r/d algorithm=gcra; }")
        .server("location /tiers { rate_limit_redis $arg_k name=tiers rate=$rate; }")
        .start_connected(redis)
}

fn visit(nginx: &Nginx, query: &str) -> Browser {
    let is_loaded = "document.querySelectorAll('#limits tr').length === 3";
    page::visit(nginx, &format!("/admin{query}"), is_loaded)
}

#[track_caller]
fn wait_for_text(browser: &Browser, selector: &str, text: &str) {
    browser
        .wait_for(&format!("document.querySelector({selector:?}).textContent.includes({text:?})"));
}

/// Looks a client up.
#[track_caller]
fn look(browser: &Browser, limit: &str, key: &str) {
    browser.choose("#limit", limit);
    browser.run("document.querySelector('#limit').dispatchEvent(new Event('change'))");
    browser.fill("#key", key);
    browser.click("#look");
}

/// Confirms what a dialog asks, which must hold this text.
#[track_caller]
fn confirm(browser: &Browser, text: &str) {
    browser.wait_for("document.querySelector('#confirm').open");
    assert!(browser.text("#question").contains(text), "{}", browser.text("#question"));
    browser.click("#yes");
}

#[test]
fn a_client_is_looked_up_and_changed() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = machine(&redis);
    (0..5).for_each(|_| drop(nginx.get("/?k=a:b+c%25")));
    let browser = visit(&nginx, "");
    look(&browser, "five", "a:b+c%25");
    wait_for_text(&browser, "#client-title", "a:b+c%25 of five");
    wait_for_text(&browser, "#remaining", "0 of 5");
    wait_for_text(&browser, "#now", "the quota is spent");

    browser.fill("#units", "2");
    browser.click("#grant");
    wait_for_text(&browser, "#remaining", "2 of 5");
    wait_for_text(&browser, "#now", "passes");

    browser.fill("#block-time", "15m");
    browser.click("#block");
    confirm(&browser, "Reject all requests of a:b+c%25 of five for 15m?");
    wait_for_text(&browser, "#blocked", "for 15 m");
    assert_eq!(nginx.get("/?k=a:b+c%25").status, 429);
    browser.click("#unblock");
    wait_for_text(&browser, "#blocked", "no");

    browser.fill("#rate", "100r/d");
    browser.fill("#for", "1h");
    browser.click("#set-override");
    confirm(&browser, "have 100r/d for 1h?");
    wait_for_text(&browser, "#override", "100r/d, capacity 100, until ");
    assert_eq!(quota(&nginx.get("/?k=a:b+c%25"))[0], 100);
    browser.click("#remove-override");
    confirm(&browser, "Remove the override");
    wait_for_text(&browser, "#override", "none");

    browser.click("#reset-quota");
    confirm(&browser, "whole again");
    wait_for_text(&browser, "#remaining", "5 of 5");
    wait_for_text(&browser, "#state", "Changed at ");
    assert_eq!(browser.console(), Vec::<String>::new());
}

#[test]
fn nothing_happens_unless_it_is_confirmed() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = machine(&redis);
    drop(nginx.get("/?k=a"));
    let browser = visit(&nginx, "?limit=five&key=a");
    wait_for_text(&browser, "#remaining", "4 of 5");
    browser.click("#reset-quota");
    browser.wait_for("document.querySelector('#confirm').open");
    // The focus is on the button that changes nothing, and Escape closes the dialog.
    browser.wait_for("document.activeElement.id === 'no'");
    browser.press("\u{e00c}");
    browser.wait_for("!document.querySelector('#confirm').open");
    browser.click("#look");
    wait_for_text(&browser, "#state", "As of ");
    wait_for_text(&browser, "#remaining", "4 of 5");
    assert_eq!(nginx.logged("a client: "), [""; 0]);
    assert_eq!(browser.console(), Vec::<String>::new());
}

#[test]
fn errors_are_shown() {
    let redis = Redis::start();
    let nginx = machine(&redis);
    let browser = visit(&nginx, "?limit=five&key=a");
    wait_for_text(&browser, "#remaining", "5 of 5");
    browser.wait_for("document.querySelector('#base-rate').getClientRects().length === 0");
    browser.fill("#units", "many");
    browser.click("#grant");
    wait_for_text(&browser, "#error", "invalid grant \"many\": it must be a number from 1");
    browser.fill("#units", "");
    browser.click("#grant");
    wait_for_text(&browser, "#error", "This needs a value.");

    // A property that a limit lacks is not offered, and one that it needs is asked for.
    look(&browser, "fixed", "a");
    wait_for_text(&browser, "#client-title", "a of fixed");
    browser.wait_for("document.querySelector('#overrides').getClientRects().length === 0");
    look(&browser, "tiers", "a");
    wait_for_text(&browser, "#error", "add \"base_rate\" with its value for this client");
    browser.fill("#base-rate", "9r/d");
    browser.click("#look");
    wait_for_text(&browser, "#remaining", "9 of 9");
    browser.wait_for("location.search === '?limit=tiers&key=a&base_rate=9r%2Fd'");
}

#[test]
fn it_fits_a_phone_and_both_colour_schemes() {
    let redis = Redis::start();
    let nginx = machine(&redis);
    let browser = visit(&nginx, "?limit=five&key=a");
    wait_for_text(&browser, "#remaining", "5 of 5");
    fits_everywhere(&browser);
    let labels = browser
        .labels("main label:not([hidden]) > input, main label:not([hidden]) > select, main button");
    assert!(labels.iter().all(|label| !label.is_empty()), "{labels:?}");
    assert_eq!(browser.console(), Vec::<String>::new());
}
