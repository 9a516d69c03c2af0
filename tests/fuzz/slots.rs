//! `CLUSTER SLOTS`: a map has an owner for each slot that its reply says, as a slower and simpler reading finds it.

use std::net::IpAddr;

use rate_limit_core::redis::RawValue;
use rate_limit_core::redis::cluster::{MAX_NODES, Map, SLOTS};

use crate::input::Input;
use crate::resp::{self, array, bulk, integer, is_host};

/// The host of the node that has replied.
const QUERIED: &str = "queried.example";

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let frame = match input.below(4) {
        0 => input.rest().to_vec(),
        1 => resp::value(&mut input),
        _ => map(&mut input),
    };
    let value = RawValue::new(&frame);
    let Ok(map) = Map::parse(value, QUERIED) else { return };
    assert!(map.members.len() <= MAX_NODES);
    for master in &map.members {
        assert!(is_host(&master.host), "{:?}", master.host);
        assert!(master.port > 0 && master.name.as_deref().is_none_or(is_host));
    }
    let owners: Vec<_> = (0..SLOTS as u16).map(|slot| map.owner(slot)).collect();
    assert_eq!(map.orphans(), owners.iter().filter(|owner| owner.is_none()).count());
    assert_eq!(map.owner(SLOTS as u16), None);
    let owners = owners.into_iter().map(|owner| {
        let master = &map.members[owner?];
        Some((master.host.clone(), master.port))
    });
    assert!(owners.eq(expected(value)), "another map than {:?}", String::from_utf8_lossy(&frame));
}

/// A reply like that of a cluster: ranges, each with its master and replicas.
pub fn map(input: &mut Input<'_>) -> Vec<u8> {
    let hosts: [&[u8]; 6] = [b"10.0.0.1", b"::1", b"?", b"", b"node-1.example", b"10.0.0.2"];
    let node = |input: &mut Input<'_>| {
        let host = match input.below(8) {
            6 => b"$-1\r\n".to_vec(),
            7 => bulk(input.bytes()),
            known => bulk(hosts[known]),
        };
        let port = integer(match input.below(4) {
            0 => input.number() as i64,
            port => 7_000 + port as i64,
        });
        let names: [&[u8]; 3] = [b"ip", b"hostname", b"x"];
        let pairs = input.below(3);
        let metadata = (0..2 * pairs).map(|at| match at % 2 {
            0 => bulk(names[input.below(3)]),
            _ => bulk(hosts[input.below(6)]),
        });
        let metadata = array(metadata.collect::<Vec<_>>());
        array([host, port, bulk(b"id"), metadata])
    };
    let ranges = input.below(12);
    let mut range = || {
        let first = i64::from(input.byte()) * 65;
        let last = first + i64::from(input.byte());
        let nodes = input.below(4);
        let nodes: Vec<_> = (0..nodes).map(|_| node(input)).collect();
        array([integer(first), integer(last)].into_iter().chain(nodes))
    };
    array((0..ranges).map(|_| range()).collect::<Vec<_>>())
}

/// The host and port of the owner of each slot, where each range is read by itself.
fn expected(value: RawValue<'_>) -> Vec<Option<(String, u16)>> {
    let mut owners = vec![None; SLOTS];
    for range in value.items().expect("ranges") {
        let mut items = range.items().expect("a range");
        let mut slot = || items.next().unwrap().integer().unwrap() as usize;
        let slots = slot()..=slot();
        let mut node = items.next().unwrap().items().expect("a node");
        let (host, port) = (node.next().unwrap(), node.next().unwrap().integer().unwrap());
        if port == 0 {
            continue;
        }
        let metadata: Vec<_> =
            node.nth(1).and_then(RawValue::items).into_iter().flatten().collect();
        let ip = metadata.chunks_exact(2).find(|pair| pair[0].text() == Some("ip"));
        let ip = ip.and_then(|pair| pair[1].text()?.parse::<IpAddr>().ok());
        let host = match (host.text().unwrap_or_default(), ip) {
            ("?", Some(ip)) => ip.to_string(),
            ("" | "?", _) => QUERIED.to_owned(),
            (host, _) => host.to_owned(),
        };
        owners[slots].fill(Some((host, port as u16)));
    }
    owners
}
