//! Redis Sentinel: the address of the master.

use super::RawValue;
use super::endpoint::is_host;

/// Reads the reply to `SENTINEL GET-MASTER-ADDR-BY-NAME`: host and port. `None` for a master that
/// the sentinel does not know, or an invalid reply.
pub fn master(answer: RawValue<'_>) -> Option<(String, u16)> {
    let mut words = answer.items()?;
    let (Some(host), Some(port), None) = (words.next(), words.next(), words.next()) else {
        return None;
    };
    address(host.text()?, port.text()?)
}

/// Reads a message of the channel `+switch-master`, `name old-host old-port host port`: the new
/// address, if the master is the one called `name`.
pub fn switched(message: RawValue<'_>, name: &str) -> Option<(String, u16)> {
    let mut words = message.items()?.last()?.text()?.split(' ');
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

    fn words(words: &[&str]) -> String {
        let bulk = |word: &&str| format!("${}\r\n{word}\r\n", word.len());
        format!("*{}\r\n{}", words.len(), words.iter().map(bulk).collect::<String>())
    }

    fn master(answer: &str) -> Option<(String, u16)> {
        super::master(RawValue::new(answer.as_bytes()))
    }

    fn switched(message: &str, name: &str) -> Option<(String, u16)> {
        super::switched(RawValue::new(message.as_bytes()), name)
    }

    #[test]
    fn masters_are_read() {
        let found = Some(("10.0.0.1".to_owned(), 6_379));
        assert_eq!(master(&words(&["10.0.0.1", "6379"])), found);
        for unknown in [
            "*-1\r\n".to_owned(),
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
