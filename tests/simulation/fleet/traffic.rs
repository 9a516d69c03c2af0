//! The requests of a fleet: few are simulated, and each stands for many.

use std::collections::BTreeMap;
use std::rc::Rc;

use rate_limit_core::charge::Template;
use rate_limit_core::key::{Digest, Head};
use rate_limit_core::limit::{Algorithm, Quota};
use rate_limit_core::rate::{Rate, SECOND};
use rate_limit_core::redis::cluster::slot;
use rate_limit_core::redis::script::Scripts;

/// The parameters of all requests, and their keys.
#[derive(Debug)]
pub struct Traffic {
    pub template: Rc<Template>,
    pub quota: Quota,
    pub timeout: u64,
    /// One key for each node.
    pub keys: Vec<Key>,
}

/// The key of a request.
#[derive(Debug)]
pub struct Key {
    pub name: Vec<u8>,
    pub digest: Digest,
    pub slot: u16,
    /// Whether its slot has an owner.
    pub is_served: bool,
}

impl Traffic {
    /// Keys for so many nodes, which share the slots evenly.
    pub fn new(scripts: &Scripts, nodes: usize, timeout: u64) -> Self {
        let head = Head::new("rl:", "fleet").expect("a name");
        let rate = Rate::new(1_000_000, SECOND).expect("a rate");
        let quota = Quota::new(Algorithm::TokenBucket, rate, 1_000_000).expect("a quota");
        let mut keys = BTreeMap::new();
        for number in 0_u128.. {
            if keys.len() == nodes {
                break;
            }
            let name = format!("client{number}").into_bytes();
            let slot = slot(b"", &[&head[..], &name].concat());
            let node = usize::from(slot) * nodes / rate_limit_core::redis::cluster::SLOTS;
            keys.entry(node).or_insert(Key { name, digest: number.into(), slot, is_served: true });
        }
        let template = Rc::new(scripts.template(head, Some((&quota, 1))));
        Self { template, quota, timeout, keys: keys.into_values().collect() }
    }
}
