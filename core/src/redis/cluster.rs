//! Redis Cluster: which of its nodes holds a key.
//!
//! A cluster has 16,384 slots, each with one master. A key's slot follows from the key alone. The
//! owner of a slot is known from the reply of any node to `CLUSTER SLOTS`, or from a redirection.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;

use crc16::{State, XMODEM};
use xxhash_rust::xxh3::xxh3_128;

use super::RawValue;
use super::endpoint::is_host;
use super::raw::RawValues;
use crate::key::RedisKey;

/// How many slots a cluster has.
pub const SLOTS: usize = 16_384;

/// The most nodes that a cluster should have, by the Redis Cluster specification.
pub const MAX_NODES: usize = 1_000;

/// The slot of the key `head` + `key`: the CRC16 of its hash tag, or of all of it.
///
/// Source: the Redis Cluster specification.
pub fn slot(head: &[u8], key: &[u8]) -> u16 {
    let mut crc = State::<XMODEM>::new();
    let whole = RedisKey { head, key };
    match tag(whole) {
        None => {
            crc.update(head);
            crc.update(key);
        }
        Some((start, length)) => {
            whole.bytes().skip(start).take(length).for_each(|byte| crc.update(&[byte]));
        }
    }
    crc.get() % SLOTS as u16
}

/// Where the hash tag starts and how long it is: what stands between the first `{` and the next
/// `}`, unless that is nothing.
fn tag(key: RedisKey<'_>) -> Option<(usize, usize)> {
    let start = key.bytes().position(|byte| byte == b'{')?.saturating_add(1);
    let length = key.bytes().skip(start).position(|byte| byte == b'}')?;
    (length > 0).then_some((start, length))
}

/// A master of a cluster, or a replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Master {
    /// Where to connect to: the IP address or the host name that it announces.
    pub host: String,
    /// The port.
    pub port: u16,
    /// If that is an address, the host name that it announces as well, if any.
    pub name: Option<String>,
    /// If that is a name, the address that it announces as well, if any.
    pub address: Option<IpAddr>,
}

/// The owner of each slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    /// The masters that own slots.
    pub members: Vec<Master>,
    /// Their replicas that announce a name and an address: once they are masters, redirections have the name alone.
    pub replicas: HashSet<Master>,
    owners: Vec<u16>,
    /// Whether a master is listed without an address: it is at the host of the node that was queried.
    pub is_relative: bool,
}

/// The owner of a slot without one.
const NOBODY: u16 = u16::MAX;

/// Why the reply to `CLUSTER SLOTS` is no map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoMap {
    /// It is malformed.
    #[error("invalid reply to CLUSTER SLOTS")]
    Invalid,
    /// It names more than [`MAX_NODES`] masters, or more ranges than there are slots.
    #[error("too many nodes or ranges in the reply to CLUSTER SLOTS")]
    TooLarge,
}

impl Map {
    /// Reads the reply to `CLUSTER SLOTS` of a node at `host`. `host` stands for nodes that are
    /// listed without an address.
    pub fn parse(answer: RawValue<'_>, host: &str) -> Result<Self, NoMap> {
        let mut values = answer.values();
        let ranges = values.enter().ok_or(NoMap::Invalid)?;
        if ranges > SLOTS {
            return Err(NoMap::TooLarge);
        }
        let (members, replicas, owners) = (Vec::new(), HashSet::new(), vec![NOBODY; SLOTS]);
        let mut map = Self { members, replicas, owners, is_relative: false };
        // Most ranges list their master and its replicas in the same words as another one: to compare them takes a
        // tenth of the time that it takes to read them.
        let mut known = HashMap::<_, (u16, &[u8])>::new();
        let mut numbers = HashMap::new();
        for _ in 0..ranges {
            let (slots, master, replicas) = read_range(&mut values).ok_or(NoMap::Invalid)?;
            let words = (xxh3_128(master.bytes()), replicas);
            let owner = match known.get(&words) {
                Some((owner, others)) if values.step_over_same(others) => *owner,
                _ => {
                    map.add_replicas(values.clone().take(replicas));
                    let others = values.step_over(replicas).ok_or(NoMap::Invalid)?;
                    let owner = map.add_master(master, host, &mut numbers)?;
                    known.insert(words, (owner, others));
                    owner
                }
            };
            let owned = map.owners.get_mut(slots).ok_or(NoMap::Invalid)?;
            if owner != NOBODY {
                owned.fill(owner);
            }
        }
        Ok(map)
    }

    /// The number of a master, which is added if it is new; nobody's if the cluster has lost its address, as
    /// when an empty node has taken it: then its port is 0.
    fn add_master(
        &mut self,
        master: RawValue<'_>,
        host: &str,
        numbers: &mut HashMap<Master, u16>,
    ) -> Result<u16, NoMap> {
        let port = master.items().and_then(|mut items| items.nth(1)?.integer());
        if port == Some(0) {
            return Ok(NOBODY);
        }
        let (member, is_relative) = Master::parse(master, host).ok_or(NoMap::Invalid)?;
        self.is_relative |= is_relative;
        let number = *numbers.entry(member).or_insert_with_key(|member| {
            self.members.push(member.clone());
            self.members.len().saturating_sub(1) as u16
        });
        if self.members.len() > MAX_NODES { Err(NoMap::TooLarge) } else { Ok(number) }
    }

    /// Adds those of these replicas of a master that announce a name and an address.
    fn add_replicas<'a>(&mut self, replicas: impl Iterator<Item = RawValue<'a>>) {
        let announced = replicas.filter_map(|replica| Some(Master::parse(replica, "")?.0));
        for replica in announced.filter(|replica| replica.address.is_some()) {
            if self.replicas.len() < MAX_NODES {
                self.replicas.insert(replica);
            }
        }
    }

    /// The index of the owner of `slot` among the members.
    pub fn owner(&self, slot: u16) -> Option<usize> {
        let owner = *self.owners.get(usize::from(slot))?;
        (owner != NOBODY).then_some(usize::from(owner))
    }

    /// How many slots have no owner.
    pub fn orphans(&self) -> usize {
        self.owners.iter().filter(|owner| **owner == NOBODY).count()
    }
}

impl Master {
    /// Reads `[endpoint, port, id, metadata]` of a node. The endpoint is an address, a host name, `?`
    /// for a host name that is not known, or nothing: then it is that of the node that was queried,
    /// whatever else is announced. Since Redis 7 the metadata hold the other of address and name. Returns
    /// also whether the host is that of the node that was queried.
    fn parse(node: RawValue<'_>, queried: &str) -> Option<(Self, bool)> {
        let mut items = node.items()?;
        let (endpoint, port) = (items.next()?, items.next()?.integer()?);
        let port = u16::try_from(port).ok().filter(|port| *port > 0)?;
        let metadata = items.nth(1).and_then(RawValue::items);
        let described = |what: &str| {
            let mut words = metadata.clone()?;
            while let (Some(name), Some(value)) = (words.next(), words.next()) {
                if name.text() == Some(what) {
                    return value.text();
                }
            }
            None
        };
        let address = described("ip").and_then(|text| text.parse::<IpAddr>().ok());
        let (host, is_relative) = match (endpoint.text().unwrap_or_default(), address) {
            ("?", Some(address)) => (address.to_string(), false),
            ("" | "?", _) => (queried.to_owned(), true),
            (endpoint, _) => (Some(endpoint).filter(|it| is_host(it))?.to_owned(), false),
        };
        let is_address = host.parse::<IpAddr>().is_ok();
        let name = described("hostname").filter(|name| is_address && is_host(name));
        let name = name.map(str::to_owned);
        // Where the node that was queried was reached, its own address need not lead to this one.
        let address = address.filter(|_| !is_address && !is_relative);
        Some((Self { host, port, name, address }, is_relative))
    }
}

/// Reads `[first, last, master, ...]` up to the replicas: a range of slots, its owner, and how many replicas follow.
fn read_range<'a>(
    values: &mut RawValues<'a>,
) -> Option<(RangeInclusive<usize>, RawValue<'a>, usize)> {
    let replicas = values.enter()?.checked_sub(3)?;
    let mut slot = || usize::try_from(values.next()?.integer()?).ok();
    Some((slot()?..=slot()?, values.next()?, replicas))
}

/// A redirection: a node does not serve the slot of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The slot.
    pub slot: u16,
    /// The host of the node that does. If it is empty, it is most likely that of the node that has
    /// replied.
    pub host: String,
    /// Its port.
    pub port: u16,
}

impl Redirect {
    /// Reads an error such as `MOVED 3999 127.0.0.1:6381` or `ASK 3999 127.0.0.1:6381`.
    pub fn parse(error: &str) -> Option<Self> {
        let mut words = error.split(' ').skip(1);
        let slot = words.next()?.parse().ok().filter(|slot| usize::from(*slot) < SLOTS)?;
        let (host, port) = words.next()?.rsplit_once(':')?;
        let port = port.parse().ok().filter(|port| *port > 0)?;
        let host = if host == "?" { "" } else { host.trim_matches(['[', ']']) };
        let is_usable = host.is_empty() || is_host(host);
        is_usable.then(|| Self { slot, host: host.to_owned(), port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        // The slots that CLUSTER KEYSLOT replies.
        assert_eq!(slot(b"", b"123456789"), 12_739);
        assert_eq!(slot(b"1234", b"56789"), 12_739);
        assert_eq!(slot(b"rl:a:", b""), slot(b"rl", b":a:"));
        assert_eq!(slot(b"rl:a:", b"{user1000}.following"), slot(b"", b"user1000"));
        assert_eq!(slot(b"{rl}:a:", b"{x}"), slot(b"", b"rl"));
        assert_eq!(slot(b"a{b", b"c}d"), slot(b"", b"bc"));
        assert_eq!(slot(b"foo", b"{}{bar}"), slot(b"foo{}", b"{bar}"));
        assert_ne!(slot(b"foo", b"{}{bar}"), slot(b"", b"bar"), "an empty tag is none");
        assert_eq!(slot(b"foo", b"{{bar}}zap"), slot(b"", b"{bar"));
        assert_eq!(slot(b"a}", b"{b"), slot(b"a", b"}{b"));
    }

    fn bulk(text: &str) -> String {
        format!("${}\r\n{text}\r\n", text.len())
    }

    fn int(number: i64) -> String {
        format!(":{number}\r\n")
    }

    fn array(items: Vec<String>) -> String {
        format!("*{}\r\n{}", items.len(), items.concat())
    }

    fn nil() -> String {
        "$-1\r\n".to_owned()
    }

    fn range(first: i64, last: i64, node: Vec<String>) -> String {
        let replica = array(vec![bulk("10.0.0.9"), int(1), bulk("id")]);
        array(vec![int(first), int(last), array(node), replica])
    }

    fn parse(answer: &str) -> Result<Map, NoMap> {
        Map::parse(RawValue::new(answer.as_bytes()), "10.0.0.1")
    }

    fn map(ranges: Vec<String>) -> Result<Map, NoMap> {
        parse(&array(ranges))
    }

    fn member(node: Vec<String>) -> Master {
        map(vec![range(0, 0, node)]).unwrap().members[0].clone()
    }

    #[test]
    fn a_map_is_read() {
        let node = |host: &str, port| vec![bulk(host), int(port), bulk("id")];
        let map = map(vec![
            range(0, 99, node("10.0.0.2", 7000)),
            range(100, 199, node("::1", 7001)),
            range(201, 16_383, node("10.0.0.2", 7000)),
        ]);
        let map = map.unwrap();
        assert_eq!(map.members.len(), 2);
        let owners = [0, 99, 100, 199, 200, 201, 16_383].map(|slot| map.owner(slot));
        assert_eq!(owners, [Some(0), Some(0), Some(1), Some(1), None, Some(0), Some(0)]);
        assert_eq!(map.owner(16_384), None);
        assert_eq!(map.orphans(), 1);
        assert_eq!((map.members[1].host.as_str(), map.members[1].port), ("::1", 7001));
    }

    /// The words of one range are not taken for those of another.
    #[test]
    fn ranges_may_differ_in_their_replicas() {
        let node = |number: i64| array(vec![bulk("10.0.0.2"), int(number), bulk("id")]);
        let range = |slot: i64, nodes: &[i64]| {
            let nodes = nodes.iter().map(|number| node(*number));
            array([int(slot), int(slot)].into_iter().chain(nodes).collect())
        };
        let listed = [&[1, 9][..], &[1, 9, 8], &[1], &[1, 8], &[1, 9], &[2, 9], &[1, 9, 8]];
        let map = map((0..).zip(listed).map(|(slot, nodes)| range(slot, nodes)).collect()).unwrap();
        let ports = (0..7).map(|slot| map.members[map.owner(slot).unwrap()].port);
        assert_eq!(ports.collect::<Vec<_>>(), [1, 1, 1, 1, 1, 2, 1]);
        assert_eq!((map.members.len(), map.owner(7)), (2, None));
    }

    #[test]
    fn nodes_are_known_by_address_by_name_or_by_neither() {
        let metadata = |name: &str, value: &str| array(vec![bulk(name), bulk(value)]);
        let node = |endpoint, metadata| {
            let member = member(vec![endpoint, int(7000), bulk("id"), metadata]);
            (member.host, member.name, member.address.map(|address| address.to_string()))
        };
        let none = || array(Vec::new());
        let [name, address] = ["a.example", "10.0.0.2"].map(|text| Some(text.to_owned()));
        assert_eq!(node(bulk("10.0.0.2"), none()), ("10.0.0.2".into(), None, None));
        let named = || metadata("hostname", "a.example");
        assert_eq!(node(bulk("10.0.0.2"), named()), ("10.0.0.2".into(), name, None));
        let addressed = || metadata("ip", "10.0.0.2");
        assert_eq!(node(bulk("a.example"), addressed()), ("a.example".into(), None, address));
        assert_eq!(node(bulk("a.example"), none()), ("a.example".into(), None, None));
        for unknown in [nil(), bulk(""), bulk("?")] {
            assert_eq!(node(unknown, none()), ("10.0.0.1".into(), None, None));
        }
        for unknown in [nil(), bulk("")] {
            assert_eq!(node(unknown, addressed()), ("10.0.0.1".into(), None, None));
        }
        assert_eq!(node(bulk("?"), addressed()), ("10.0.0.2".into(), None, None));
        let unnamed = metadata("hostname", "");
        assert_eq!(node(bulk("10.0.0.2"), unnamed), ("10.0.0.2".into(), None, None));
    }

    /// The setting for nodes behind a network address translation: `cluster-preferred-endpoint-type unknown-endpoint`.
    #[test]
    fn a_node_without_an_endpoint_is_where_the_queried_one_is() {
        let node = vec![nil(), int(7000), bulk("id"), array(vec![bulk("ip"), bulk("10.0.0.2")])];
        let answer = array(vec![range(0, 0, node)]);
        let map = Map::parse(RawValue::new(answer.as_bytes()), "redis.example");
        let found = map.unwrap().members.remove(0);
        assert_eq!((found.host.as_str(), found.address), ("redis.example", None));
    }

    #[test]
    fn only_a_node_without_an_address_depends_on_who_was_queried() {
        let is_relative = |endpoint, metadata| {
            let node = vec![endpoint, int(7000), bulk("id"), array(metadata)];
            map(vec![range(0, 0, node)]).unwrap().is_relative
        };
        let address = || vec![bulk("ip"), bulk("10.0.0.2")];
        assert!(!is_relative(bulk("10.0.0.2"), vec![]) && !is_relative(bulk("?"), address()));
        assert!(is_relative(nil(), address()) && is_relative(bulk("?"), vec![]));
    }

    #[test]
    fn nonsense_is_no_map() {
        let node = |port| vec![bulk("10.0.0.2"), int(port), bulk("id")];
        assert_eq!(parse(&bulk("?")), Err(NoMap::Invalid));
        assert_eq!(parse("*-1\r\n"), Err(NoMap::Invalid));
        for range in [
            range(-1, 5, node(1)),
            range(0, 16_384, node(1)),
            range(9, 5, node(1)),
            range(0, 16_384, node(0)),
            range(0, 5, node(-1)),
            range(0, 5, node(65_536)),
            range(0, 5, vec![]),
            range(0, 5, vec![bulk("10.0.0.2\n"), int(1), bulk("id")]),
            array(vec![int(0), int(1)]),
            bulk("range"),
        ] {
            assert_eq!(map(vec![range.clone()]), Err(NoMap::Invalid), "{range:?}");
        }
    }

    /// The form in which Redis and Valkey list the slots of a master whose address an empty node has taken.
    #[test]
    fn a_master_without_an_address_owns_nothing() {
        let lost = vec![bulk(""), int(0), bulk("id"), array(Vec::new())];
        let found = vec![bulk("10.0.0.2"), int(7000), bulk("id")];
        let map = map(vec![range(0, 99, lost), range(100, 16_383, found)]).unwrap();
        assert_eq!((map.owner(0), map.owner(100)), (None, Some(0)));
        assert_eq!((map.orphans(), map.members.len()), (100, 1));
    }

    #[test]
    fn too_large_a_map_is_none() {
        let node = |port| vec![bulk("10.0.0.2"), int(port), bulk("id")];
        let of = |number| map((1..=number).map(|port| range(0, 0, node(port))).collect());
        assert_eq!(of(1_000).unwrap().members.len(), 1_000);
        assert_eq!(of(1_001), Err(NoMap::TooLarge));
        let ranges = |number| map(vec![range(0, 0, node(1)); number]);
        assert!(ranges(SLOTS).is_ok());
        assert_eq!(ranges(SLOTS + 1), Err(NoMap::TooLarge));
    }

    #[test]
    fn replicas_that_announce_a_name_and_an_address_are_listed_once() {
        let replica = |port: i64, name: &str| {
            let metadata = array(vec![bulk("ip"), bulk("10.0.0.9")]);
            array(vec![bulk(name), int(port), bulk("id"), metadata])
        };
        let of = |replicas: Vec<String>| {
            let master = array(vec![bulk("10.0.0.2"), int(7000), bulk("id")]);
            let range = [int(0), int(0), master].into_iter().chain(replicas).collect();
            map(vec![array(range)]).unwrap().replicas.len()
        };
        let twice = (1..=9).chain(1..=9).map(|port| replica(port, "b.example"));
        assert_eq!(of(twice.collect()), 9);
        assert_eq!(of(vec![replica(1, "10.0.0.9")]), 0, "it announces no name");
        assert_eq!(of((1..=1_001).map(|port| replica(port, "b.example")).collect()), MAX_NODES);
    }

    #[test]
    fn redirections_are_read() {
        let redirect = |text| Redirect::parse(text).map(|r| (r.slot, r.host, r.port));
        let to = |slot, host: &str, port| Some((slot, host.to_owned(), port));
        assert_eq!(redirect("MOVED 3999 127.0.0.1:6381"), to(3_999, "127.0.0.1", 6_381));
        assert_eq!(redirect("ASK 3999 127.0.0.1:6381"), to(3_999, "127.0.0.1", 6_381));
        assert_eq!(redirect("MOVED 5 ::1:7000"), to(5, "::1", 7_000));
        assert_eq!(redirect("MOVED 5 [::1]:7000"), to(5, "::1", 7_000));
        assert_eq!(redirect("MOVED 5 :7000"), to(5, "", 7_000));
        assert_eq!(redirect("MOVED 5 a.example:7000"), to(5, "a.example", 7_000));
        assert_eq!(redirect("MOVED 5 ?:7000"), to(5, "", 7_000));
        for bad in [
            "MOVED",
            "MOVED 5",
            "MOVED 16384 h:1",
            "MOVED 5 h",
            "MOVED 5 h:0",
            "MOVED x h:1",
            "MOVED 5 h\x1b:1",
        ] {
            assert_eq!(redirect(bad), None, "{bad}");
        }
    }
}
