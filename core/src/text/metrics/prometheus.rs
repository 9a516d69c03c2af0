//! The metrics in Prometheus's text format, version 0.0.4.

use std::fmt::{Display, Write as _};

use super::family::{Family, LIMITS, MEMORY, NODES, Samples};
use super::{Histogram, Snapshot};
use crate::text::number::seconds;

/// The prefix of every name.
const PREFIX: &str = "nginx_rate_limit_redis_";

impl Snapshot {
    /// The metrics in Prometheus's text format.
    pub fn prometheus(&self) -> String {
        let mut page = Page(String::new());
        page.families(&LIMITS, &self.limits, |limit| Some(("name", &limit.name)));
        page.families(&NODES, &self.nodes, |node| Some(("node", &node.name)));
        page.head(
            "node_decision_seconds",
            "summary",
            "How long requests waited that a Redis server decided.",
        );
        for node in &self.nodes {
            let labels = [("node", node.name.as_str())];
            page.sample("node_decision_seconds_sum", &labels, seconds(node.waited));
            page.sample("node_decision_seconds_count", &labels, node.decided);
        }
        page.histogram(
            "decision_seconds",
            "How long requests waited for their decision, whatever its source.",
            &self.waits,
        );
        page.histogram(
            "worker_lag_seconds",
            "How long replies of Redis and deadlines waited for a worker that was busy.",
            &self.lags,
        );
        page.families(&MEMORY, std::slice::from_ref(&self.memory), |_| None);
        page.head("build_info", "gauge", "The versions of the module and of NGINX.");
        page.sample("build_info", &[("version", self.version), ("nginx", self.nginx)], 1);
        page.0
    }
}

/// A page that is being written.
struct Page(String);

impl Page {
    /// Begins the metrics of one name; the help must need no escaping.
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = write!(self.0, "# HELP {PREFIX}{name} {help}\n# TYPE {PREFIX}{name} {kind}\n");
    }

    /// The metrics of `all`, each of which has a label of its own.
    fn families<'a, T>(
        &mut self,
        families: &[Family<T>],
        all: &'a [T],
        own: fn(&'a T) -> Option<(&'static str, &'a String)>,
    ) {
        for family in families {
            let kind = if family.name.ends_with("_total") { "counter" } else { "gauge" };
            self.head(family.name, kind, family.help);
            for one in all {
                let own: Vec<_> =
                    own(one).map(|(label, value)| (label, value.as_str())).into_iter().collect();
                match (family.samples)(one) {
                    Samples::One(number) => self.sample(family.name, &own, number),
                    Samples::Each(label, numbers) => {
                        for (value, number) in &numbers {
                            let labels = [own.as_slice(), &[(label, value)]].concat();
                            self.sample(family.name, &labels, number);
                        }
                    }
                }
            }
        }
    }

    fn histogram(&mut self, name: &str, help: &str, times: &Histogram) {
        self.head(name, "histogram", help);
        for (bound, count) in times.cumulative() {
            self.sample(&format!("{name}_bucket"), &[("le", &bound)], count);
        }
        self.sample(&format!("{name}_sum"), &[], seconds(times.sum));
        self.sample(&format!("{name}_count"), &[], times.count());
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(PREFIX);
        self.0.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            self.0.push(if index == 0 { '{' } else { ',' });
            self.0.push_str(label);
            self.0.push_str("=\"");
            escape(&mut self.0, text);
            self.0.push('"');
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, " {value}");
    }
}

/// Writes the value of a label.
fn escape(text: &mut String, value: &str) {
    for character in value.chars() {
        match character {
            '\n' => text.push_str("\\n"),
            '"' | '\\' => text.extend(['\\', character]),
            _ => text.push(character),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::snapshot;
    use super::*;

    /// The page without its comments and its prefix.
    fn samples(page: &str) -> Vec<&str> {
        let lines = page.lines().filter(|line| !line.starts_with('#'));
        lines.map(|line| line.strip_prefix(PREFIX).expect("the prefix")).collect()
    }

    #[test]
    fn all_is_there() {
        let page = snapshot().prometheus();
        let mut seen = samples(&page);
        let mut expected = vec![
            r#"requests_total{name="default",result="passed"} 1"#,
            r#"requests_total{name="default",result="delayed"} 2"#,
            r#"requests_total{name="default",result="rejected"} 3"#,
            r#"requests_total{name="default",result="delayed_dry_run"} 4"#,
            r#"requests_total{name="default",result="rejected_dry_run"} 5"#,
            r#"requests_total{name="default",result="error_passed"} 6"#,
            r#"requests_total{name="default",result="error_rejected"} 7"#,
            r#"requests_total{name="per_ip",result="passed"} 16"#,
            r#"decisions_total{name="default",source="redis"} 8"#,
            r#"decisions_total{name="default",source="lease"} 9"#,
            r#"decisions_total{name="default",source="cache"} 10"#,
            r#"decisions_total{name="default",source="local"} 11"#,
            r#"decisions_total{name="per_ip",source="local"} 26"#,
            r#"lease_units_total{name="default",result="used"} 12"#,
            r#"lease_units_total{name="default",result="returned"} 13"#,
            r#"lease_units_total{name="default",result="lapsed"} 14"#,
            r#"lease_units_held{name="default"} 76"#,
            r#"settlements_total{name="default",result="settled"} 1007"#,
            r#"settlements_total{name="per_ip",result="lost"} 2006"#,
            r#"commands_total{node="127.0.0.1:6379",command="evalsha"} 31"#,
            r#"commands_total{node="127.0.0.1:6379",command="sentinel"} 36"#,
            r#"errors_total{node="127.0.0.1:6379",kind="connect"} 37"#,
            r#"errors_total{node="127.0.0.1:6379",kind="down"} 45"#,
            r#"connections{node="127.0.0.1:6379",state="ready"} 47"#,
            r#"connections{node="127.0.0.1:6379",state="connecting"} 48"#,
            r#"connection_attempts_total{node="127.0.0.1:6379",result="ready"} 3000"#,
            r#"connection_attempts_total{node="127.0.0.1:6379",result="rejected"} 3003"#,
            r#"topology_queries_total{node="127.0.0.1:6379",result="used"} 4000"#,
            r#"topology_queries_total{node="127.0.0.1:6379",result="failed"} 4003"#,
            r#"breaker_open{node="127.0.0.1:6379"} 1"#,
            r#"node_slow{node="127.0.0.1:6379"} 1"#,
            r#"node_decision_seconds_sum{node="127.0.0.1:6379"} 1.234567"#,
            r#"node_decision_seconds_count{node="127.0.0.1:6379"} 46"#,
            r#"decision_seconds_bucket{le="0.00005"} 49"#,
            r#"decision_seconds_bucket{le="1"} 715"#,
            r#"decision_seconds_bucket{le="+Inf"} 777"#,
            r"decision_seconds_sum 0.00005",
            r"decision_seconds_count 777",
            r#"shared_memory_bytes{state="used"} 63"#,
            r#"shared_memory_bytes{state="free"} 64"#,
            "local_state_bytes 5000",
            r"shared_memory_evictions_total 65",
            r"shared_memory_no_room_total 66",
            r#"build_info{version="1.2.3",nginx="1.22.1"} 1"#,
        ];
        seen.retain(|line| expected.contains(line));
        seen.sort_unstable();
        expected.sort_unstable();
        assert_eq!(seen, expected, "{page}");
    }

    /// Each name has its comments, once, and right before its samples.
    #[test]
    fn families_are_whole() {
        let page = snapshot().prometheus();
        let mut families = Vec::new();
        let mut lines = page.lines().peekable();
        while let Some(line) = lines.next() {
            let help = line.strip_prefix("# HELP ").expect("HELP first");
            let (name, help) = help.split_once(' ').unwrap();
            assert!(help.ends_with('.') && !families.contains(&name), "{line}");
            let kind = lines.next().unwrap().strip_prefix(&format!("# TYPE {name} ")).unwrap();
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
            let mut count = 0;
            while let Some(sample) = lines.next_if(|line| !line.starts_with('#')) {
                assert!(sample.starts_with(name), "{sample}");
                count += 1;
            }
            assert!(count > 0);
            families.push(name);
        }
        assert_eq!(families.len(), 20);
    }

    #[test]
    fn labels_are_escaped() {
        let mut snapshot = snapshot();
        snapshot.nodes[0].name = "unix:/a \"b\"\\\nc{}ä".to_owned();
        let page = snapshot.prometheus();
        let line = page.lines().find(|line| line.contains("breaker_open{")).unwrap();
        assert_eq!(
            line,
            "nginx_rate_limit_redis_breaker_open{node=\"unix:/a \\\"b\\\"\\\\\\nc{}ä\"} 1"
        );
    }
}
