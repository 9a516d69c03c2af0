//! The metrics as JSON.

use super::Snapshot;
use super::family::{Family, LIMITS, MEMORY, NODES, Samples};
use crate::text::json::{Object, object};
use crate::text::number::seconds;

impl Snapshot {
    /// The metrics as a JSON object.
    pub fn json(&self) -> String {
        let mut text = String::new();
        object(&mut text, |page| {
            page.object("limits", |limits| {
                for limit in &self.limits {
                    limits.object(&limit.name, |members| add(members, &LIMITS, limit));
                }
            });
            page.object("nodes", |nodes| {
                for node in &self.nodes {
                    nodes.object(&node.name, |members| {
                        add(members, &NODES, node);
                        members.object("decision_seconds", |waits| {
                            waits.value("sum", seconds(node.waited));
                            waits.value("count", node.decided);
                        });
                    });
                }
            });
            for (name, times) in
                [("decision_seconds", &self.waits), ("worker_lag_seconds", &self.lags)]
            {
                page.object(name, |members| {
                    members.object("buckets", |buckets| buckets.all(times.cumulative()));
                    members.value("sum", seconds(times.sum));
                    members.value("count", times.count());
                });
            }
            add(page, &MEMORY, &self.memory);
            page.object("build_info", |info| {
                info.string("version", self.version);
                info.string("nginx", self.nginx);
            });
        });
        text
    }
}

/// Adds the metrics of `one`.
fn add<T>(object: &mut Object<'_>, families: &[Family<T>], one: &T) {
    for family in families {
        let name = family.name.trim_end_matches("_total");
        match (family.samples)(one) {
            Samples::One(number) => object.value(name, number),
            Samples::Each(_, numbers) => object.object(name, |members| members.all(numbers)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::snapshot;
    use super::*;

    #[test]
    fn all_is_there() {
        let mut snapshot = snapshot();
        snapshot.limits.truncate(1);
        let expected = concat!(
            r#"{"limits":{"default":{"requests":{"passed":1,"delayed":2,"rejected":3,"#,
            r#""delayed_dry_run":4,"rejected_dry_run":5,"error_passed":6,"error_rejected":7},"#,
            r#""decisions":{"redis":8,"lease":9,"cache":10,"local":11},"#,
            r#""lease_units":{"used":12,"returned":13,"lapsed":14},"lease_units_held":76,"#,
            r#""settlements":{"settled":1007,"lost":2007}}},"#,
            r#""nodes":{"127.0.0.1:6379":{"commands":{"evalsha":31,"eval":32,"asking":33,"#,
            r#""ping":34,"cluster":35,"sentinel":36},"#,
            r#""errors":{"connect":37,"timeout":38,"protocol":39,"auth":40,"script":41,"#,
            r#""overload":42,"lost":43,"unfit":44,"down":45},"#,
            r#""connections":{"ready":47,"connecting":48},"#,
            r#""connection_attempts":{"ready":3000,"refused":3001,"timeout":3002,"#,
            r#""rejected":3003},"topology_queries":{"used":4000,"unchanged":4001,"late":4002,"#,
            r#""failed":4003},"breaker_open":1,"node_slow":1,"#,
            r#""decision_seconds":{"sum":1.234567,"count":46}}},"#,
            r#""decision_seconds":{"buckets":{"0.00005":49,"0.0001":99,"0.00025":150,"#,
            r#""0.0005":202,"0.001":255,"0.0025":309,"0.005":364,"0.01":420,"0.025":477,"#,
            r#""0.05":535,"0.1":594,"0.25":654,"1":715,"+Inf":777},"sum":0.00005,"count":777},"#,
            r#""worker_lag_seconds":{"buckets":{"0.00005":2,"0.0001":4,"0.00025":6,"0.0005":8,"#,
            r#""0.001":10,"0.0025":12,"0.005":14,"0.01":16,"0.025":18,"0.05":20,"0.1":22,"#,
            r#""0.25":24,"1":26,"+Inf":28},"sum":0.00007,"count":28},"#,
            r#""shared_memory_bytes":{"used":63,"free":64},"#,
            r#""local_state_bytes":5000,"#,
            r#""shared_memory_evictions":65,"shared_memory_no_room":66,"#,
            r#""build_info":{"version":"1.2.3","nginx":"1.22.1"}}"#,
        );
        assert_eq!(snapshot.json(), expected);
    }

    #[test]
    fn nothing_is_there() {
        let text = Snapshot::default().json();
        assert!(
            text.starts_with(r#"{"limits":{},"nodes":{},"decision_seconds":{"buckets":{"0.00"#)
        );
    }
}
