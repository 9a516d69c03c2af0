//! Ports for servers.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the range from which Linux gives ports to outgoing connections, so that no client takes
/// the port of a server that is being restarted.
const RANGE: Range<u16> = 10_000..32_000;

/// How far above the port of a member of a Redis Cluster that of its bus is. (The directive that
/// says otherwise came with Redis 7.)
const BUS: u16 = 10_000;

/// A free port of 127.0.0.1, which is handed out only once by this process.
/// Another process may still take it: starting a server on it must be retried.
pub fn free() -> u16 {
    next(is_free)
}

/// A free port for a member of a Redis Cluster: the port of its bus is free as well.
pub fn free_with_bus() -> u16 {
    next(|port| RANGE.contains(&(port + BUS)) && is_free_with_bus(port))
}

/// Whether a member of a Redis Cluster can have this port of 127.0.0.1: that of its bus is free as well.
pub fn is_free_with_bus(port: u16) -> bool {
    is_free(port) && port.checked_add(BUS).is_some_and(is_free)
}

fn next(suits: impl Fn(u16) -> bool) -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let width = RANGE.end - RANGE.start;
    // Test processes that run at the same time start apart from each other, whose ids are close.
    let offset = (std::process::id().wrapping_mul(7_919) % u32::from(width)) as u16;
    (0..width)
        .map(|_| RANGE.start + NEXT.fetch_add(1, Ordering::Relaxed).wrapping_add(offset) % width)
        .find(|port| suits(*port))
        .expect("no free port")
}

/// Whether nobody has this port of 127.0.0.1.
pub fn is_free(port: u16) -> bool {
    let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    !bound.is_err_and(|error| error.kind() == ErrorKind::AddrInUse)
}
