//! Ports for servers.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the range from which Linux gives ports to outgoing connections, so that no client takes
/// the port of a server that is being restarted.
const RANGE: std::ops::Range<u16> = 10_000..32_000;

/// A port of 127.0.0.1 that nobody listens on, and that is handed out only once by this process.
/// Another process may still take it: who starts a server must be ready to try again.
pub fn free() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let width = RANGE.end - RANGE.start;
    // Test processes that run at the same time start apart from each other.
    let offset = (std::process::id() % u32::from(width / 50)) as u16 * 50;
    (0..width)
        .map(|_| RANGE.start + NEXT.fetch_add(1, Ordering::Relaxed).wrapping_add(offset) % width)
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .expect("no free port")
}
