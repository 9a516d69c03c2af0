//! Replies and messages of sentinels: what they name as a master is a plain host and a port, which are in them.

use rate_limit_core::redis::RawValue;
use rate_limit_core::redis::sentinel::{master, switched};

use crate::input::Input;
use crate::resp::{self, array, bulk, is_host};

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let frame = match input.below(4) {
        0 => input.rest().to_vec(),
        1 => resp::value(&mut input),
        2 => array([bulk(input.bytes()), bulk(input.bytes())]),
        _ => array([bulk(b"message"), bulk(b"+switch-master"), bulk(input.rest())]),
    };
    let value = RawValue::new(&frame);
    for (host, port) in [master(value), switched(value, "mymaster")].into_iter().flatten() {
        assert!(is_host(&host) && port > 0, "{host:?}:{port}");
        assert!(is_in(&frame, host.as_bytes()) && is_in(&frame, port.to_string().as_bytes()));
    }
}

fn is_in(frame: &[u8], part: &[u8]) -> bool {
    frame.windows(part.len()).any(|window| window == part)
}
