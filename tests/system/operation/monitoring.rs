//! Prometheus reads the metrics page, and the dashboard and alert rules of monitoring/ fit to it.

use std::collections::BTreeSet;
use std::fs;

use harness::{Conf, Nginx, Prometheus, Redis, run};

fn path(name: &str) -> String {
    format!("{}/../monitoring/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn read(name: &str) -> String {
    let path = path(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("read {path}: {error}"))
}

/// An nginx with a metrics page, and a limit of five requests.
fn metered(redis: &Redis) -> Nginx {
    Conf::new()
        .redis(redis)
        .server("location = /metrics { rate_limit_redis_metrics; }")
        .server("location / { rate_limit_redis k name=five rate=5r/d; }")
        .start()
}

/// The names of samples on the page.
fn names_on_page(nginx: &Nginx) -> BTreeSet<String> {
    let page = nginx.get("/metrics");
    let samples = page.text().lines().filter(|line| !line.starts_with('#'));
    samples.filter_map(|line| line.split(['{', ' ']).next()).map(str::to_owned).collect()
}

/// Every name of a metric in a text.
fn names_in(text: &str) -> BTreeSet<String> {
    const PREFIX: &str = "nginx_rate_limit_redis_";
    let end = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    let rest = text.split(PREFIX).skip(1);
    rest.filter_map(|rest| rest.split(end).next()).map(|name| format!("{PREFIX}{name}")).collect()
}

#[test]
fn prometheus_reads_the_page() {
    let redis = Redis::start();
    let nginx = metered(&redis);
    let prometheus = Prometheus::start(&[nginx.addr()]);
    let total = "nginx_rate_limit_redis_requests_total";
    let rejected = format!("{total}{{name=\"five\",result=\"rejected\"}}");
    // There before the first request, so that a rate has all of them in it.
    prometheus.wait_for(&rejected, |values| values == [0.0]);
    (0..7).for_each(|_| drop(nginx.get("/")));
    prometheus.wait_for(&rejected, |values| values == [2.0]);
    let rate = |selector: &str| format!("sum by (name) (rate({total}{selector}[5m]))");
    let share = format!("{} / {}", rate("{result=\"rejected\"}"), rate(""));
    let two_of_seven = |values: &[f64]| matches!(values, [v] if (v * 7.0 - 2.0).abs() < 1e-6);
    prometheus.wait_for(&share, two_of_seven);
    let waits = "nginx_rate_limit_redis_decision_seconds_count";
    prometheus.wait_for(waits, |values| values == [7.0]);
}

#[test]
fn promtool_has_nothing_against_the_page() {
    let redis = Redis::start();
    let empty = Conf::new().server("location = /metrics { rate_limit_redis_metrics; }").start();
    for nginx in [metered(&redis), empty] {
        nginx.get("/");
        let page = nginx.path("page");
        fs::write(&page, nginx.get("/metrics").body).expect("write the page");
        // It writes what it finds to stderr, and fails.
        run("sh", &["-c", "promtool check metrics <\"$0\"", &page.display().to_string()]);
    }
}

#[test]
fn the_rules_pass_their_tests() {
    run("promtool", &["check", "rules", &path("alerts.yml")]);
    run("promtool", &["test", "rules", &path("alerts_test.yml")]);
}

#[test]
fn every_alert_is_described() {
    let (rules, metrics) = (read("alerts.yml"), read("../docs/metrics.md"));
    let alerts: Vec<_> = rules.lines().filter_map(|l| l.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() >= 4, "{alerts:?}");
    for alert in alerts {
        assert!(metrics.contains(&format!("\n| `{alert}` |")), "no row on {alert}");
    }
}

/// Each alert names the page that explains it.
#[test]
fn every_runbook_is_there() {
    let rules = read("alerts.yml");
    let alerts = rules.matches("- alert: ").count();
    let runbooks = rules.lines().filter_map(|line| line.trim().strip_prefix("runbook: "));
    let runbooks: Vec<_> = runbooks.collect();
    assert_eq!(runbooks.len(), alerts);
    for runbook in runbooks {
        let (page, heading) = runbook.split_once('#').expect("a heading");
        let text = read(&format!("../{page}"));
        let words = heading.replace('-', " ");
        let is_it = |line: &str| line.trim_start_matches('#').trim().to_lowercase() == words;
        assert!(text.lines().any(|line| line.starts_with('#') && is_it(line)), "{runbook}");
    }
}

#[test]
fn every_metric_is_on_the_page() {
    let redis = Redis::start();
    let nginx = metered(&redis);
    let page = names_on_page(&nginx);
    for file in ["alerts.yml", "alerts_test.yml", "grafana-dashboard.json"] {
        let used = names_in(&read(file));
        assert!(used.len() >= 5, "{file}: {used:?}");
        let unknown: Vec<_> = used.difference(&page).collect();
        assert!(unknown.is_empty(), "{file} uses {unknown:?}, the page has {page:?}");
    }
}

/// The lines that `jq` finds in the dashboard.
fn dashboard(filter: &str) -> Vec<String> {
    let output = run("jq", &["--raw-output", filter, &path("grafana-dashboard.json")]);
    output.lines().map(str::to_owned).collect()
}

/// Every panel shows something of an nginx that limits.
#[test]
fn the_dashboard_shows_something() {
    let redis = Redis::start();
    let nginx = metered(&redis);
    let prometheus = Prometheus::start(&[nginx.addr()]);
    let expressions = dashboard(".. | .expr? // empty");
    let panels = dashboard(".panels[] | select(.type != \"row\") | .id");
    assert!(panels.len() >= 10 && expressions.len() >= panels.len(), "{expressions:#?}");
    for expression in expressions {
        let query = expression
            .replace("$__rate_interval", "1m")
            .replace("$job", ".*")
            .replace("$instance", ".*")
            .replace("$name", ".*");
        assert!(!query.contains('$'), "{query}");
        // A share and a quantile are numbers only where something happens between two scrapes.
        prometheus.wait_for(&query, |values| {
            nginx.get("/");
            values.iter().any(|value| value.is_finite())
        });
    }
}

/// Grafana shows nothing of panels that share a number, and prompts for a source without a name.
#[test]
fn the_dashboard_is_whole() {
    let ids = dashboard(".panels[].id");
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "{ids:?}");
    let sources = dashboard(".panels[] | select(.type != \"row\") | .datasource.uid");
    assert!(sources.iter().all(|uid| uid == "${datasource}"), "{sources:?}");
    let expressions = dashboard(".. | .expr? // empty");
    assert!(expressions.iter().all(|it| it.contains("{job=~\"$job\",")), "{expressions:#?}");
    let kinds = dashboard(".panels[] | select(.type != \"row\") | .type");
    assert!(kinds[..6].iter().all(|kind| kind == "stat"), "a summary first: {kinds:?}");
    assert!(kinds.contains(&"heatmap".to_owned()), "{kinds:?}");
    let variables = dashboard(".templating.list[].name");
    assert_eq!(variables, ["datasource", "job", "instance", "name"]);
}
