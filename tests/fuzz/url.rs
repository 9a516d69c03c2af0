//! URLs of servers: no message shows a password, and an address that is shown is read again.

use rate_limit_core::conf::{UrlError, endpoint};
use rate_limit_core::redis::endpoint::{Address, Endpoint};

use crate::input::Input;

/// No other part of an input is likely to hold it.
const SECRET: &str = "s3cr3t-p4ss";

pub fn run(data: &[u8]) {
    check(&String::from_utf8_lossy(data));
    let mut input = Input::new(data);
    let scheme = ["redis", "rediss", "redis+unix", "http"][input.below(4)];
    let (user, rest) = (input.text(), String::from_utf8_lossy(input.rest()).into_owned());
    let url = format!("{scheme}://{user}:{SECRET}@{rest}");
    check(&url);
    let shown = UrlError::new("server", &url, String::new()).to_string();
    assert!(!shown.contains(SECRET), "{shown}");
    if let Ok(endpoint) = url.parse::<Endpoint>() {
        let shown = format!("{endpoint:?} {}", endpoint.address);
        // In the URL of a unix socket it is a part of the path.
        let is_path = matches!(endpoint.address, Address::Unix(_));
        assert!(is_path || !shown.contains(SECRET), "{shown}");
    }
}

fn check(url: &str) {
    let Ok(found) = endpoint("server", url) else { return };
    match &found.address {
        Address::Tcp(host, port) => {
            assert!(*port > 0 && !host.is_empty() && !host.contains('$'), "{found:?}");
            check_again(&found);
        }
        Address::Unix(path) => assert!(!path.as_os_str().is_empty() && !found.tls),
    }
}

/// The address as it is shown is that of the same server.
fn check_again(found: &Endpoint) {
    let again = format!("redis://{}/{}", found.address, found.database).parse::<Endpoint>();
    let again = again.unwrap_or_else(|error| panic!("{found:?}: {error}"));
    assert_eq!((&again.address, again.database), (&found.address, found.database));
}
