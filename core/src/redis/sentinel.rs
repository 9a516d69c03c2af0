//! Redis Sentinel: the address of the master.

use redis::Value;

use super::host::is_host;

/// Reads the reply to `SENTINEL GET-MASTER-ADDR-BY-NAME`: host and port. `None` for a master that
/// the sentinel does not know, or an invalid reply.
pub fn master(answer: &Value) -> Option<(String, u16)> {
    let Value::Array(words) = answer else { return None };
    let [Value::BulkString(host), Value::BulkString(port)] = words.as_slice() else { return None };
    address(std::str::from_utf8(host).ok()?, std::str::from_utf8(port).ok()?)
}

/// Reads a message of the channel `+switch-master`, `name old-host old-port host port`: the new
/// address, if the master is the one called `name`.
pub fn switched(message: &Value, name: &str) -> Option<(String, u16)> {
    let Value::Array(words) = message else { return None };
    let Value::BulkString(payload) = words.last()? else { return None };
    let mut words = std::str::from_utf8(payload).ok()?.split(' ');
    if words.next()? != name {
        return None;
    }
    let mut new = words.skip(2);
    address(new.next()?, new.next()?)
}

fn address(host: &str, port: &str) -> Option<(String, u16)> {
    let port = port.parse().ok().filter(|port| *port > 0)?;
    is_host(host).then(|| (host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Value {
        Value::Array(words.iter().map(|word| Value::BulkString((*word).into())).collect())
    }

    #[test]
    fn masters() {
        let found = Some(("10.0.0.1".to_owned(), 6_379));
        assert_eq!(master(&words(&["10.0.0.1", "6379"])), found);
        for unknown in [
            Value::Nil,
            words(&[]),
            words(&["h"]),
            words(&["h", "0"]),
            words(&["", "1"]),
            words(&["h\n", "1"]),
        ] {
            assert_eq!(master(&unknown), None, "{unknown:?}");
        }
        let message = |payload| words(&["message", "+switch-master", payload]);
        assert_eq!(switched(&message("m 10.0.0.2 1 10.0.0.1 6379"), "m"), found);
        assert_eq!(switched(&message("other 10.0.0.2 1 10.0.0.1 6379"), "m"), None);
        assert_eq!(switched(&message("m 10.0.0.2"), "m"), None);
    }
}
