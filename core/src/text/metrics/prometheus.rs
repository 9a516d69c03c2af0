//! The metrics in Prometheus's text format, version 0.0.4.

use std::fmt::{Display, Write as _};

use super::{Histogram, Snapshot};
use crate::text::number::seconds;

/// The prefix of every name.
const PREFIX: &str = "nginx_rate_limit_redis_";

impl Snapshot {
    /// The metrics in Prometheus's text format.
    pub fn prometheus(&self) -> String {
        let mut page = Page(String::new());
        self.limits_to(&mut page);
        self.nodes_to(&mut page);
        self.times_to(&mut page);
        self.memory_to(&mut page);
        page.family("build_info", "gauge", "The versions of the module and of NGINX.");
        page.sample("build_info", &[("version", self.version), ("nginx", self.nginx)], 1);
        page.0
    }

    fn limits_to(&self, page: &mut Page) {
        let limits = &self.limits;
        page.family(
            "requests_total",
            "counter",
            "Requests for which a limit was checked, by result.",
        );
        page.samples("requests_total", ["name", "result"], limits, |it| (&it.name, it.results()));
        page.family("decisions_total", "counter", "Verdicts of a limit, by source.");
        page.samples("decisions_total", ["name", "source"], limits, |it| (&it.name, it.sources()));
        page.family("lease_units_total", "counter", "Units of leases, by what became of them.");
        page.samples("lease_units_total", ["name", "result"], limits, |it| {
            (&it.name, it.lease_units())
        });
        page.family("lease_units_held", "gauge", "Units of leases that this machine has left.");
        for limit in limits {
            let held = limit.lease_units_held();
            page.sample("lease_units_held", &[("name", &limit.name)], held);
        }
        page.family("settlements_total", "counter", "Settlements of a limit, by result.");
        page.samples("settlements_total", ["name", "result"], limits, |it| {
            (&it.name, it.settlements())
        });
    }

    fn nodes_to(&self, page: &mut Page) {
        let nodes = &self.nodes;
        page.family("commands_total", "counter", "Commands sent to a Redis server.");
        page.samples("commands_total", ["node", "command"], nodes, |it| (&it.name, it.commands()));
        page.family("errors_total", "counter", "What went wrong with a Redis server.");
        page.samples("errors_total", ["node", "kind"], nodes, |it| (&it.name, it.errors()));
        page.family("connections", "gauge", "Connections of the workers to a Redis server.");
        page.samples("connections", ["node", "state"], nodes, |it| {
            (&it.name, it.connections().into_iter())
        });
        page.family(
            "connection_attempts_total",
            "counter",
            "Attempts of the workers to connect to a Redis server, by result.",
        );
        page.samples("connection_attempts_total", ["node", "result"], nodes, |it| {
            (&it.name, it.attempts())
        });
        page.family(
            "topology_queries_total",
            "counter",
            "Queries of the workers for the topology to a Redis server, by result.",
        );
        page.samples("topology_queries_total", ["node", "result"], nodes, |it| {
            (&it.name, it.queries())
        });
        page.family(
            "breaker_open",
            "gauge",
            "1 if a worker sends a Redis server no requests, else 0.",
        );
        for node in &self.nodes {
            page.sample("breaker_open", &[("node", &node.name)], u8::from(node.is_open));
        }
        page.family(
            "node_slow",
            "gauge",
            "1 if a Redis server owes replies to a worker for too long, else 0.",
        );
        for node in &self.nodes {
            page.sample("node_slow", &[("node", &node.name)], u8::from(node.is_slow));
        }
        page.family(
            "node_decision_seconds",
            "summary",
            "How long requests waited that a Redis server decided.",
        );
        for node in &self.nodes {
            let labels = [("node", node.name.as_str())];
            page.sample("node_decision_seconds_sum", &labels, seconds(node.waited));
            page.sample("node_decision_seconds_count", &labels, node.decided);
        }
    }

    fn times_to(&self, page: &mut Page) {
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
    }

    fn memory_to(&self, page: &mut Page) {
        page.family("shared_memory_bytes", "gauge", "The memory that the workers share.");
        for (state, bytes) in self.memory.bytes() {
            page.sample("shared_memory_bytes", &[("state", state)], bytes);
        }
        page.family(
            "local_state_bytes",
            "gauge",
            "The used part of the shared memory that holds states of clients that were decided locally.",
        );
        page.sample("local_state_bytes", &[], self.memory.local);
        page.family(
            "shared_memory_evictions_total",
            "counter",
            "Clients that were evicted, because the shared memory was full.",
        );
        page.sample("shared_memory_evictions_total", &[], self.memory.evictions);
        page.family(
            "shared_memory_no_room_total",
            "counter",
            "Requests that could not be decided locally, because the shared memory was too small.",
        );
        page.sample("shared_memory_no_room_total", &[], self.memory.no_room);
    }
}

/// A page that is being written.
struct Page(String);

impl Page {
    /// Begins the metrics of one name; the help must need no escaping.
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = write!(self.0, "# HELP {PREFIX}{name} {help}\n# TYPE {PREFIX}{name} {kind}\n");
    }

    fn histogram(&mut self, name: &str, help: &str, times: &Histogram) {
        self.family(name, "histogram", help);
        for (bound, count) in times.cumulative() {
            self.sample(&format!("{name}_bucket"), &[("le", &bound)], count);
        }
        self.sample(&format!("{name}_sum"), &[], seconds(times.sum));
        self.sample(&format!("{name}_count"), &[], times.count());
    }

    /// A sample for each of `owners` and each of its counts, which has a name: the values of the two labels.
    fn samples<'o, T, L: AsRef<str>, I: Iterator<Item = (L, u64)>>(
        &mut self,
        name: &str,
        [owner, label]: [&str; 2],
        owners: &'o [T],
        counts: impl Fn(&'o T) -> (&'o String, I),
    ) {
        for one in owners {
            let (own, counts) = counts(one);
            for (value, count) in counts {
                self.sample(name, &[(owner, own), (label, value.as_ref())], count);
            }
        }
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
