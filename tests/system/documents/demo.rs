//! The demo: the page of nginx-conf/demo, in a real browser.

use std::fs;

use harness::{Browser, Conf, Nginx, Redis};
use rate_limit_core::algorithm::BurstParameter;
use rate_limit_core::limit::Algorithm;

use crate::seen::{StartConnected as _, keys};

const TAB: &str = "\u{E004}";
const ENTER: &str = "\u{E007}";

/// The algorithms that the page lets choose: of those that share a name the first.
fn named() -> impl Iterator<Item = Algorithm> {
    let is_first =
        |algorithm: &Algorithm| Algorithm::from_name(algorithm.name()) == Some(*algorithm);
    Algorithm::ALL.into_iter().filter(is_first)
}

fn folder() -> String {
    format!("{}/../nginx-conf", env!("CARGO_MANIFEST_DIR"))
}

/// nginx-conf/demo.conf, with servers and files of the test's own.
fn demo(redis: &Redis) -> Conf {
    let text = fs::read_to_string(folder() + "/demo.conf").expect("read demo.conf");
    let (_, http) = text.split_once("\nhttp {\n").expect("a block for http");
    let mut http = http.trim_end().strip_suffix('}').expect("its end").to_owned();
    let own = [
        (
            "rate_limit_redis_pass redis://127.0.0.1:6379;",
            format!(
                "rate_limit_redis_store own {{ server {}; connect_timeout 30s; }}
                rate_limit_redis_pass own;",
                redis.url()
            ),
        ),
        ("rate_limit_redis_timeout 500ms;", "rate_limit_redis_timeout 10s;".to_owned()),
        ("listen 8080;", "listen 127.0.0.1:{port} default_server;".to_owned()),
        ("http://127.0.0.1:8080", "http://127.0.0.1:{port}".to_owned()),
        ("127.0.0.1:9080", "unix:{prefix}/application.sock".to_owned()),
        ("access_log access.log", "access_log decisions.log".to_owned()),
    ];
    for (from, to) in own {
        assert!(http.contains(from), "demo.conf does not name {from}");
        http = http.replace(from, &to);
    }
    let lines = http.lines().filter(|line| !line.contains("_temp_path "));
    let http = lines.collect::<Vec<_>>().join("\n");
    // The server of the harness steps back behind the demo's own.
    let conf = Conf::new().server("server_name harness;").http(&http);
    page().into_iter().fold(conf, |conf, (name, text)| conf.file(&format!("page/{name}"), &text))
}

/// The files of the page.
fn page() -> Vec<(String, String)> {
    let files = fs::read_dir(folder() + "/demo").expect("list the page");
    let file = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_str().expect("in ASCII").to_owned();
        (name, fs::read_to_string(path).expect("a text"))
    };
    files.map(file).collect()
}

/// A browser that shows the page.
fn visit(nginx: &Nginx) -> Browser {
    let browser = Browser::start();
    browser.open(&nginx.url("/"));
    browser.wait_for("document.querySelectorAll('.reading:not(:empty)').length === 2");
    browser
}

/// An element of a configuration.
fn of(side: &str, selector: &str) -> String {
    format!("[data-side={side}] {selector}")
}

fn set(browser: &Browser, side: &str, fields: &[(&str, &str)]) {
    for (name, value) in fields {
        let field = of(side, &format!("[name={name}]"));
        if matches!(*name, "algorithm" | "per") {
            browser.choose(&field, value);
        } else {
            browser.fill(&field, value);
        }
    }
}

/// How many requests were allowed, delayed and denied, when so many have been answered.
fn tally(browser: &Browser, side: &str, answers: usize) -> [usize; 3] {
    let numbers = of(side, ".tally b");
    let sum = format!(
        "[...document.querySelectorAll({numbers:?})].reduce((sum, b) => sum + +b.textContent, 0)"
    );
    browser.wait_for(&format!("{sum} >= {answers}"));
    ["passed", "delayed", "rejected"].map(|outcome| {
        browser.text(&of(side, &format!(".tally .{outcome} b"))).parse().expect("a number")
    })
}

/// Sets the numbers of answers back. A busy browser takes its time to do what a click asks for.
fn clear(browser: &Browser) {
    browser.click("#clear");
    let numbers = "[...document.querySelectorAll('.tally b')]";
    browser.wait_for(&format!("{numbers}.every((b) => b.textContent === '0')"));
}

/// The texts of the newest row of the answers.
fn newest(browser: &Browser, side: &str) -> Vec<String> {
    let cells = of(side, "tbody tr:first-child td");
    let texts =
        format!("return [...document.querySelectorAll({cells:?})].map((td) => td.textContent)");
    let texts = browser.run(&texts);
    texts.as_array().expect("a row").iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// Fails for whatever the console shows but the rejections themselves.
fn assert_quiet(browser: &Browser) {
    let mut complaints = browser.console();
    complaints.retain(|line| !line.contains("the server responded with a status of 429"));
    assert_eq!(complaints, Vec::<String>::new());
}

#[test]
fn the_page_runs_only_what_comes_with_it() {
    let redis = Redis::start();
    let nginx = demo(&redis).start_connected(&redis);
    for (name, text) in page() {
        let response = nginx.get(&format!("/{name}"));
        assert_eq!((response.status, response.text()), (200, text.as_str()), "{name}");
        assert_eq!(response.header("X-Content-Type-Options"), Some("nosniff"));
        let policy = response.header("Content-Security-Policy").expect("a policy");
        assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        // The machines of the fleet are the only other hosts.
        let hosts: Vec<_> = policy.split([' ', ';']).filter(|it| it.contains("://")).collect();
        assert_eq!(hosts, [nginx.url("")], "{policy}");
        assert!(!text.contains("https:") && !text.contains("innerHTML"), "{name}");
    }
    assert_eq!(nginx.get("/").header("Content-Type"), Some("text/html"));
}

#[test]
fn every_algorithm_takes_its_parameters_from_the_request() {
    let redis = Redis::start();
    let nginx = demo(&redis).start_connected(&redis);
    for algorithm in named() {
        let limit = match algorithm.burst_parameter() {
            BurstParameter::Capacity => 6,
            BurstParameter::Burst | BurstParameter::None => 7,
        };
        let algorithm = algorithm.name();
        let path = format!("/demo/{algorithm}?n=7&per=1h&burst=6&key=me&side=b");
        let response = nginx.get(&format!("{path}&cost=0"));
        assert_eq!(response.remaining(), Some(limit), "{algorithm}: {response:?}");
        assert_eq!(response.header("X-Decision"), Some("PASSED"));
        assert_eq!(response.header("X-Decision-Source"), Some("redis"));
        assert_eq!(nginx.get(&format!("{path}&cost={}", limit + 1)).status, 429, "{algorithm}");
        assert_eq!(nginx.get(&path).remaining(), Some(limit - 1), "{algorithm}");
        assert!(keys(&redis).contains(&format!("rl:demo_{algorithm}:b:me:7r/1h:6")));
    }
    // Not those of cost 0.
    let lines = || nginx.read("decisions.log").lines().count();
    harness::wait_until(harness::PATIENCE, || lines() == 2 * named().count(), "lines of the log");
}

#[test]
fn unusable_parameters_give_way_to_usable_ones() {
    // The key of a bucket is gone when it is full again, after a second for each token.
    let redis = Redis::start_with_stopped_clock();
    let nginx = demo(&redis).start_connected(&redis);
    let unusable = [
        "",
        "n=0&per=10s",
        "n=5&per=2s",
        "n=99999&per=1s&burst=99999",
        "n=x&burst=-1&cost=-1&key=%7B%7D&side=c",
        "burst=1%3B&cost=1e3&key=a:b",
    ];
    for (spent, query) in unusable.iter().enumerate() {
        let response = nginx.get(&format!("/demo/token_bucket?{query}"));
        assert_eq!((response.status, response.header("X-RateLimit-Limit")), (200, Some("10")));
        assert_eq!(keys(&redis), ["rl:demo_token_bucket:a:visitor:10r/10s:10"], "{spent}: {query}");
    }
    let response = nginx.get("/demo/token_bucket?burst=0&cost=0");
    assert_eq!(response.header("X-RateLimit-Limit"), Some("1"), "an empty bucket is no limit");
    assert_eq!(nginx.logged("[error]"), Vec::<String>::new());
}

#[test]
fn requests_are_sent_and_shown() {
    let redis = Redis::start();
    let nginx = demo(&redis).start_connected(&redis);
    let browser = visit(&nginx);
    let hourly = [("n", "10"), ("per", "1h"), ("burst", "10")];
    set(&browser, "a", &hourly);
    set(&browser, "b", &[("algorithm", "gcra"), ("n", "10"), ("per", "1h"), ("burst", "3")]);

    browser.click(&of("a", ".buttons button"));
    assert_eq!(tally(&browser, "a", 1), [1, 0, 0]);
    assert_eq!(newest(&browser, "a")[..3], ["Allowed 200", "10", "9"]);
    browser.wait_for("summary.textContent === 'Configuration A: 1 allowed, 0 delayed, 0 denied.'");
    browser.wait_for("document.querySelector('[data-side=a] .reading').textContent === '9 of 10'");

    browser.click(&of("a", "button.burst"));
    assert_eq!(tally(&browser, "a", 21), [10, 0, 11]);
    assert_eq!(tally(&browser, "b", 0), [0, 0, 0], "only one side got requests");

    browser.click("#traffic button");
    assert_eq!(tally(&browser, "a", 22), [10, 0, 12]);
    assert_eq!(tally(&browser, "b", 1), [1, 0, 0]);
    browser.fill("#size", "5");
    browser.click("#burst");
    assert_eq!(tally(&browser, "a", 27), [10, 0, 17]);
    assert_eq!(tally(&browser, "b", 6), [4, 0, 2]);

    // The whole of a rejection.
    let row = newest(&browser, "a");
    assert_eq!(row[..3], ["Denied 429", "10", "0"]);
    let wait = row[4].parse::<u32>().expect("Retry-After");
    assert!((1..=360).contains(&wait), "{row:?}");
    let answer = browser.text(&of("a", ".answer"));
    for line in ["429 ", "X-RateLimit-Limit: 10\n", "Retry-After: ", "X-Decision: REJECTED\n"] {
        assert!(answer.contains(line), "{answer}");
    }
    browser.wait_for("/A: 0 allowed, 0 delayed, 5 denied, retry after \\d+ s\\. .*B: 3 allowed/.test(summary.textContent)");
    browser.wait_for("document.querySelectorAll('[data-side=b] .strip .rejected').length === 2");

    clear(&browser);
    assert_eq!(tally(&browser, "a", 0), [0, 0, 0]);

    // A rejected client is checked in Redis once a second: on a slow machine not only at first.
    let cached = |answers: usize| {
        browser.click(&of("a", ".buttons button"));
        assert_eq!(tally(&browser, "a", answers), [0, 0, answers]);
        newest(&browser, "a")[5] == "cache"
    };
    assert!((1..100).any(cached), "the deny cache never decides");
    assert_quiet(&browser);
}

#[test]
fn each_parameter_can_be_changed() {
    let redis = Redis::start();
    let nginx = demo(&redis).start_connected(&redis);
    let browser = visit(&nginx);
    let reads = |text: &str| {
        let reading = of("a", ".reading");
        browser.wait_for(&format!("document.querySelector({reading:?}).textContent === {text:?}"));
    };
    let send = || browser.click(&of("a", ".buttons button"));
    set(&browser, "a", &[("per", "1h")]);
    reads("10 of 10");
    send();
    reads("9 of 10");
    set(&browser, "a", &[("burst", "25")]);
    reads("25 of 25");
    set(&browser, "a", &[("cost", "20")]);
    send();
    reads("5 of 25");
    set(&browser, "a", &[("key", "somebody.else")]);
    reads("25 of 25");
    set(&browser, "a", &[("key", "visitor")]);
    reads("5 of 25");
    set(&browser, "a", &[("n", "12"), ("per", "1m"), ("algorithm", "sliding_log")]);
    reads("12 of 12");
    let directive = "rate_limit_redis $key rate=12r/m algorithm=sliding_log cost=20;";
    assert_eq!(browser.text(&of("a", ".directive")), directive);
    let hidden = "document.querySelector('[data-side=a] [name=burst]').closest('label').hidden";
    browser.wait_for(hidden);

    // A value that is unusable is not sent.
    clear(&browser);
    set(&browser, "a", &[("n", "0")]);
    send();
    browser.click("#traffic button");
    set(&browser, "a", &[("n", "12"), ("cost", "1")]);
    send();
    assert_eq!(tally(&browser, "a", 1), [1, 0, 0]);
    assert_eq!(tally(&browser, "b", 0), [0, 0, 0]);
    assert_quiet(&browser);
}

#[test]
fn every_algorithm_denies() {
    let redis = Redis::start();
    let nginx = demo(&redis).start_connected(&redis);
    let browser = visit(&nginx);
    browser.fill("#size", "30");
    set(&browser, "a", &[("n", "10"), ("per", "1h")]);
    for algorithm in named() {
        let (burst, expected) = match algorithm {
            Algorithm::TokenBucket | Algorithm::IntervalBucket => (Some("10"), 10..=10),
            Algorithm::Gcra => (Some("9"), 10..=10),
            Algorithm::LeakyBucket => (Some("0"), 1..=1),
            Algorithm::SlidingLog => (None, 10..=10),
            // A window that ends meanwhile lets twice as many pass.
            Algorithm::SlidingWindow | Algorithm::FixedWindow => (None, 10..=20),
        };
        let algorithm = algorithm.name();
        set(&browser, "a", &[("algorithm", algorithm)]);
        if let Some(burst) = burst {
            set(&browser, "a", &[("burst", burst)]);
        }
        clear(&browser);
        browser.click(&of("a", "button.burst"));
        let [passed, delayed, denied] = tally(&browser, "a", 30);
        assert!(expected.contains(&passed), "{algorithm}: {passed} passed");
        assert_eq!((delayed, denied), (0, 30 - passed), "{algorithm}");
    }
    assert_quiet(&browser);
}

#[test]
fn a_delay_is_shown_as_one() {
    let redis = Redis::start();
    let nginx = demo(&redis).start_connected(&redis);
    let browser = visit(&nginx);
    set(&browser, "b", &[("n", "1"), ("burst", "1")]);
    browser.fill("#size", "3");
    browser.click(&of("b", "button.burst"));
    // While the second waits for its turn.
    let marks = |class: &str| {
        format!("document.querySelectorAll('[data-side=b] .strip li{class}').length === 1")
    };
    browser.wait_for(&marks("[class=\"\"]"));
    assert_eq!(tally(&browser, "b", 3), [1, 1, 1]);
    browser.wait_for(&marks(".delayed"));
    let row = newest(&browser, "b");
    let waited = row[4].parse::<f64>().expect("a delay");
    assert!(row[0] == "Delayed 200" && waited > 0.0, "{row:?}");
    assert_quiet(&browser);
}

/// Requests that are still delayed when the page is cleared are not shown after it.
#[test]
fn what_was_cleared_does_not_come_back() {
    let redis = Redis::start();
    let nginx = demo(&redis).start_connected(&redis);
    let browser = visit(&nginx);
    browser.click(&of("b", "button.burst"));
    tally(&browser, "b", 16);
    clear(&browser);
    let lines = || nginx.read("decisions.log").lines().count();
    harness::wait_until(harness::PATIENCE, || lines() == 20, "the end of all requests");
    browser.click(&of("b", ".buttons button"));
    assert_eq!(tally(&browser, "b", 1).iter().sum::<usize>(), 1);
    browser.wait_for("summary.textContent.startsWith('Configuration B: ')");
    let rows = of("b", "tbody tr");
    assert_eq!(browser.run(&format!("return document.querySelectorAll({rows:?}).length")), 1);
    assert_quiet(&browser);
}

#[test]
fn the_level_rises_by_itself() {
    let redis = Redis::start();
    let nginx = demo(&redis).start_connected(&redis);
    let browser = visit(&nginx);
    set(&browser, "a", &[("cost", "10")]);
    browser.run(
        "window.levels = [];
        const meter = document.querySelector('[data-side=a] .level');
        new MutationObserver(() => levels.push(Number(meter.getAttribute('aria-valuenow'))))
            .observe(meter, { attributes: true });",
    );
    browser.click(&of("a", ".buttons button"));
    browser.wait_for("levels.some((level) => level < 5) && levels.at(-1) === 10");
    assert_eq!(browser.text(&of("a", ".reading")), "10 of 10");
    // From the lowest on it never goes back, however often it is checked.
    let fall = "levels.slice(levels.indexOf(Math.min(...levels)))\
        .some((level, n, all) => n > 0 && level < all[n - 1])";
    assert_eq!(browser.run(&format!("return {fall}")), false);
    browser.wait_for(
        "document.querySelector('[data-side=a] .forecast').textContent === 'The quota is whole.'",
    );
    assert_eq!(tally(&browser, "a", 1), [1, 0, 0], "looking is not counted");
}

#[test]
fn it_shows_that_this_machine_decides_while_redis_is_away() {
    let mut redis = Redis::start();
    let mut nginx = demo(&redis).start_connected(&redis);
    nginx.allow_log("redis");
    let browser = visit(&nginx);
    redis.kill9();
    browser.click("#traffic button");
    tally(&browser, "a", 1);
    assert_eq!(newest(&browser, "a")[0], "Allowed 200");
    assert_eq!(newest(&browser, "a")[5], "local");
}

#[test]
fn it_can_be_used_by_keyboard_and_is_named_for_screen_readers() {
    let redis = Redis::start();
    let nginx = demo(&redis).start_connected(&redis);
    let browser = visit(&nginx);
    let controls = browser.labels("button, input, select, [role=meter], [role=region], section");
    assert!(controls.len() > 20 && !controls.contains(&String::new()), "{controls:?}");
    assert_eq!(browser.run("return summary.getAttribute('role')"), "status");

    let mut reached = Vec::new();
    while reached.last().map(String::as_str) != Some("Clear") {
        browser.press(TAB);
        let outline = "getComputedStyle(document.activeElement).outlineStyle";
        assert_eq!(browser.run(&format!("return {outline}")), "solid", "after {reached:?}");
        let text =
            browser.run("return document.activeElement.textContent || document.activeElement.id");
        reached.push(text.as_str().expect("a text").to_owned());
        match reached.last().map(String::as_str) {
            Some("Send 1 to both") => browser.press(ENTER),
            Some("Burst to both") => browser.press(" "),
            _ => (),
        }
    }
    let first = ["Metrics", "Steady", "Window edge", "Burst", "Login attack", "Redis away"];
    assert_eq!(reached[..6], first);
    assert_eq!(reached[6..9], ["Noisy neighbour", "Start", "rate"]);
    assert_eq!(reached[11..], ["Send 1 to both", "Burst to both", "size", "Clear"]);
    tally(&browser, "a", 21);
    tally(&browser, "b", 16);
    // A field of a configuration sends by Enter.
    clear(&browser);
    browser.click(&of("a", "[name=key]"));
    browser.press(ENTER);
    tally(&browser, "a", 1);
    assert_quiet(&browser);
}

#[test]
fn it_fits_a_phone_and_both_colour_schemes() {
    let redis = Redis::start();
    let nginx = demo(&redis).start_connected(&redis);
    let browser = visit(&nginx);
    browser.click("#burst");
    tally(&browser, "a", 20);
    tally(&browser, "b", 16);
    let mut grounds = Vec::new();
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        let (texts, faint) = browser.faint_texts();
        assert!(texts > 100, "only {texts} texts");
        assert_eq!(faint, Vec::<String>::new(), "{scheme}");
        grounds.push(browser.run("return getComputedStyle(document.body).backgroundColor"));
    }
    assert_ne!(grounds[0], grounds[1]);
    for width in [1280, 768, 360] {
        browser.resize(width);
        browser.wait_for(&format!("innerWidth === {width}"));
        let page = "document.documentElement";
        let beyond = browser.run(&format!("return {page}.scrollWidth - {page}.clientWidth"));
        assert_eq!(beyond, 0, "at {width} it scrolls sideways");
        // Nor does anything inside.
        let hidden = "[...document.querySelectorAll('.scroll, .panel, form')]\
            .filter((element) => element.scrollWidth > element.clientWidth).length === 0";
        browser.wait_for(hidden);
    }
}
