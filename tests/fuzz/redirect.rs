//! Redirections: what an error that starts with MOVED or ASK names is a slot, a port, and a host that is plain.

use rate_limit_core::redis::cluster::{Redirect, SLOTS};
use rate_limit_core::redis::refusal::RefusalKind;
use rate_limit_core::redis::reply::{self, Framer, Reply};

use crate::resp::{is_host, line};

pub fn run(data: &[u8]) {
    check_error(data);
    let Some(redirect) = Redirect::parse(&String::from_utf8_lossy(data)) else { return };
    let Redirect { slot, host, port } = &redirect;
    assert!(usize::from(*slot) < SLOTS && *port > 0);
    assert!(host.is_empty() || is_host(host), "{host:?}");
    let written = format!("MOVED {slot} {host}:{port}");
    assert_eq!(Redirect::parse(&written).as_ref(), Some(&redirect));
}

/// An error of the server with this text is one frame, which is read as an error and means a redirection only if it
/// says so.
fn check_error(data: &[u8]) {
    let frame = line(b'-', data);
    assert_eq!(Framer::default().next(&frame, usize::MAX), Ok(Some(frame.len())));
    let Ok(Reply::Error(refusal)) = reply::parse(&frame) else { return };
    let code = frame[1..].split(|byte| b" \r".contains(byte)).next().unwrap_or_default();
    let is_said = |kind, code: &[u8], name: &[u8]| (refusal.kind == kind) == (code == name);
    assert!(is_said(RefusalKind::Moved, code, b"MOVED"), "{refusal:?}");
    assert!(is_said(RefusalKind::Ask, code, b"ASK"), "{refusal:?}");
}
