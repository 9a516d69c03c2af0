//! Replies of scripts, and of Redis Clusters and sentinels, for a [`Fake`](crate::Fake) or a simulated server to send.

use rate_limit_core::decision::{Retry, Verdict};

/// A string.
pub fn bulk(text: &str) -> Vec<u8> {
    format!("${}\r\n{text}\r\n", text.len()).into()
}

/// A string that is not there.
pub fn null() -> Vec<u8> {
    b"$-1\r\n".into()
}

/// A number.
pub fn integer(number: impl Into<i64>) -> Vec<u8> {
    format!(":{}\r\n", number.into()).into()
}

/// An array of other replies.
pub fn array(elements: &[Vec<u8>]) -> Vec<u8> {
    let mut reply = format!("*{}\r\n", elements.len()).into_bytes();
    reply.extend(elements.concat());
    reply
}

/// The integers that the script of a limit that stores itself replies for a verdict.
pub fn verdict(verdict: Verdict) -> [i64; Verdict::REPLY_LEN] {
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let remaining = match verdict.blocked {
        0 => number(verdict.remaining),
        blocked => -i64::from(blocked),
    };
    let retry = match verdict.retry {
        Retry::No => 0,
        Retry::After(micros) => number(micros),
        Retry::Never => -1,
    };
    [i64::from(verdict.allowed), remaining, number(verdict.reset), retry]
}

/// An error, such as `CLUSTERDOWN Hash slot not served`.
pub fn error(text: &str) -> Vec<u8> {
    format!("-{text}\r\n").into()
}

/// Another node serves this slot. Its host may be empty, or `?` where Redis 7 does not know it.
pub fn moved(slot: u16, host: &str, port: u16) -> Vec<u8> {
    error(&format!("MOVED {slot} {host}:{port}"))
}

/// Another node has this key of a slot that is being moved.
pub fn ask_redirect(slot: u16, host: &str, port: u16) -> Vec<u8> {
    error(&format!("ASK {slot} {host}:{port}"))
}

/// A node in the reply to `CLUSTER SLOTS`. Its id is made of the port.
#[derive(Clone, Debug)]
pub struct Node(Vec<u8>);

impl Node {
    /// A redirection of Redis 6.2.
    pub fn v6(host: &str, port: u16) -> Self {
        Self(array(&[bulk(host), integer(port), id(port)]))
    }

    /// A redirection of Redis 7, with the fields `ip` or `hostname`, whichever is not the endpoint. There may be no
    /// endpoint: the client is to use the host that it has queried.
    pub fn v7(endpoint: Option<&str>, port: u16, metadata: &[(&str, &str)]) -> Self {
        let endpoint = endpoint.map_or_else(null, bulk);
        let fields: Vec<_> = metadata.iter().flat_map(|(k, v)| [bulk(k), bulk(v)]).collect();
        Self(array(&[endpoint, integer(port), id(port), array(&fields)]))
    }
}

fn id(port: u16) -> Vec<u8> {
    bulk(&format!("{port:040x}"))
}

/// The reply to `CLUSTER SLOTS`: the first and the last slot of each range, its master, and its
/// replicas.
pub fn cluster_slots(ranges: &[(u16, u16, &[Node])]) -> Vec<u8> {
    let ranges = ranges.iter().map(|(first, last, nodes)| {
        let slots = [integer(*first), integer(*last)].into_iter();
        array(&slots.chain(nodes.iter().map(|node| node.0.clone())).collect::<Vec<_>>())
    });
    array(&ranges.collect::<Vec<_>>())
}

/// The reply to `SENTINEL GET-MASTER-ADDR-BY-NAME`.
pub fn master_addr(host: &str, port: u16) -> Vec<u8> {
    array(&[bulk(host), bulk(&port.to_string())])
}

/// The reply where there is no master of that name.
pub fn no_master() -> Vec<u8> {
    b"*-1\r\n".into()
}

/// The reply to `SUBSCRIBE`, for one channel.
pub fn subscribed(channel: &str) -> Vec<u8> {
    array(&[bulk("subscribe"), bulk(channel), integer(1)])
}

/// The message that a subscriber of a channel gets.
pub fn message(channel: &str, text: &str) -> Vec<u8> {
    array(&[bulk("message"), bulk(channel), bulk(text)])
}

/// The message that a subscriber of `+switch-master` gets: the host and port that were, and those that are.
pub fn switch_master(name: &str, old: (&str, u16), new: (&str, u16)) -> Vec<u8> {
    let text = format!("{name} {} {} {} {}", old.0, old.1, new.0, new.1);
    message("+switch-master", &text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Act, Fake};

    /// The value that the client of another make reads in a reply.
    fn read<T: redis::FromRedisValue>(reply: &[u8]) -> redis::RedisResult<T> {
        let reply = reply.to_vec();
        let fake = Fake::start(move |command| match command.name().as_str() {
            "GET" => Act::Reply(reply.clone()),
            _ => Act::Usual,
        });
        let mut connection = redis::Client::open(fake.url()).unwrap().get_connection().unwrap();
        redis::cmd("GET").arg("it").query(&mut connection)
    }

    #[test]
    fn is_what_clients_expect() {
        let nodes = [
            Node::v6("127.0.0.1", 7000),
            Node::v7(Some("a.test"), 7001, &[("ip", "::1")]),
            Node::v7(None, 7002, &[]),
        ];
        let slots = cluster_slots(&[(0, 99, &nodes[..2]), (100, 16383, &nodes[2..])]);
        type Metadata = Vec<String>;
        type V6 = (String, u16, String);
        type V7 = (Option<String>, u16, String, Metadata);
        type Range<A, B> = (u16, u16, A, B);
        let (first, second): (Range<V6, V7>, (u16, u16, V7)) = read(&slots).unwrap();
        assert_eq!(first.2, ("127.0.0.1".into(), 7000, format!("{:040x}", 7000)));
        assert_eq!((first.0, first.1, first.3.0), (0, 99, Some("a.test".into())));
        assert_eq!(first.3.3, ["ip", "::1"]);
        assert_eq!((second.0, second.1, second.2.0), (100, 16383, None));

        let redirect = |reply: Vec<u8>| {
            let error = read::<String>(&reply).unwrap_err();
            error.redirect_node().map(|(addr, slot)| (addr.to_owned(), slot))
        };
        assert_eq!(redirect(moved(7, "::1", 7000)), Some(("::1:7000".into(), 7)));
        assert_eq!(redirect(ask_redirect(8, "", 7001)), Some((":7001".into(), 8)));

        assert_eq!(read(&master_addr("::1", 7000)), Ok(("::1".to_owned(), 7000)));
        assert_eq!(read::<Option<String>>(&no_master()), Ok(None));
        let words: Vec<String> = read(&switch_master("m", ("a", 1), ("b", 2))).unwrap();
        assert_eq!(words, ["message", "+switch-master", "m a 1 b 2"]);
        assert_eq!(read(&subscribed("c")), Ok(("subscribe".to_owned(), "c".to_owned(), 1)));
    }
}
