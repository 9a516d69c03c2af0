//! Clients that leave at every point of a request, and clients that are slow.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::net::TcpStream;
use std::os::fd::AsRawFd as _;
use std::thread::sleep;
use std::time::Duration;

use harness::{PATIENCE, at_once, wait_until};

use super::site::{
    End, Pace, Site, both, by_clients, connect, essence, names, pair, received, rounds, send,
};

/// How far Redis is: requests wait so long for it.
const WAIT: Duration = Duration::from_millis(6);

/// Requests of which each prefix is sent.
const REQUESTS: [&str; 3] = [
    "GET {path}?k HTTP/1.1\r\nHost: a\r\nX-Key: a\r\n\r\n",
    "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n0123456789",
    "POST {path} HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n\
     5\r\nhello\r\n0\r\n\r\n",
];

/// Ends a connection: by FIN, or by RST.
fn leave(stream: TcpStream, at_once: bool) {
    if at_once {
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        let size = size_of::<libc::linger>() as libc::socklen_t;
        // SAFETY: the descriptor is open, and the option has this size.
        let set = unsafe {
            let option = (&raw const linger).cast();
            libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, option, size)
        };
        assert_eq!(set, 0, "set SO_LINGER");
    }
    drop(stream);
}

/// The open descriptors of each worker.
fn descriptors_of_each(site: &Site) -> Vec<usize> {
    let of = |pid: &u32| fs::read_dir(format!("/proc/{pid}/fd")).expect("descriptors").count();
    site.nginx.worker_pids().iter().map(of).collect()
}

/// The open descriptors of all workers.
fn descriptors(site: &Site) -> usize {
    descriptors_of_each(site).iter().sum()
}

/// The open descriptors of all workers before any client. Soon after the start all have equally many: a worker gets a
/// channel to each that is started after it, and begins with one to each before it.
fn first_descriptors(site: &Site) -> usize {
    let is_settled = || descriptors_of_each(site).windows(2).all(|pair| pair[0] == pair[1]);
    wait_until(PATIENCE, is_settled, "channels between the workers");
    descriptors(site)
}

/// Every status of a limited location is one of its control, or 499: the client has left while its request waited.
#[track_caller]
fn ends_as_the_control(site: &Site) {
    let ends = site.ends();
    let of = |side: &str, name: &str| {
        let kind = format!("{side}-{name}");
        ends.iter().filter(move |end| end.kind == kind)
    };
    for name in names().chain(["large"]) {
        let control: BTreeSet<_> = of("control", name).map(|end| end.status).collect();
        let is_other = |end: &&End| end.status != 499 && !control.contains(&end.status);
        let others: Vec<_> = of("limited", name).filter(is_other).collect();
        assert!(others.is_empty(), "{name}: {others:?}, control: {control:?}");
    }
}

/// Clients that send each request whole and wait for the answer. All others may leave the control too soon to get one.
fn stay(site: &Site) {
    let paths = names().flat_map(pair);
    let requests = paths.flat_map(|path| REQUESTS.map(|request| request.replace("{path}", &path)));
    by_clients(requests, |request| {
        let mut stream = connect(site.nginx.addr());
        send(&mut stream, request.as_bytes(), Pace::AtOnce);
        received(&mut stream);
    });
}

/// Before the header, within header and body, and while the request waits for Redis.
#[test]
fn clients_may_leave_after_every_byte_of_a_request() {
    let site = Site::start(WAIT);
    let before = first_descriptors(&site);
    stay(&site);
    let whole = REQUESTS.map(|request| request.replace("{path}", &pair("rejected")[0]).len());
    for round in 0..rounds() {
        // Other bytes in each round.
        let lengths = (0..).zip(whole).flat_map(|(n, whole)| {
            (round % 5..=whole + 8).step_by(5).map(move |length| (n, length))
        });
        let cases = lengths.flat_map(|(n, length)| names().map(move |name| (n, length, name)));
        let cases = cases.flat_map(|case| [(case, true), (case, false)]);
        by_clients(cases, |((request, length, name), resets)| {
            for path in pair(name) {
                let bytes = REQUESTS[request].replace("{path}", &path);
                let mut stream = connect(site.nginx.addr());
                send(&mut stream, &bytes.as_bytes()[..bytes.len().min(length)], Pace::AtOnce);
                // The part of the length beyond the request is the time for which the client stays, in ms.
                sleep(Duration::from_millis(length.saturating_sub(bytes.len()) as u64));
                leave(stream, resets);
            }
        });
    }
    site.is_well();
    ends_as_the_control(&site);
    wait_until(PATIENCE, || descriptors(&site) <= before, "no more descriptors than before");
}

/// While the response of 4 MiB goes out.
#[test]
fn clients_may_leave_within_a_response() {
    let site = Site::start(WAIT);
    let before = first_descriptors(&site);
    for _ in 0..rounds() {
        let lengths = [0, 1, 100, 1_000, 1 << 16, 1 << 20, 3 << 20];
        let cases = lengths.into_iter().flat_map(|length| [(length, true), (length, false)]);
        at_once(cases, |(length, resets)| {
            for path in pair("large") {
                let mut stream = connect(site.nginx.addr());
                let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
                send(&mut stream, request.as_bytes(), Pace::AtOnce);
                stream.read_exact(&mut vec![0; length]).expect("a part of a response");
                leave(stream, resets);
            }
        });
    }
    site.is_well();
    ends_as_the_control(&site);
    wait_until(PATIENCE, || descriptors(&site) <= before, "no more descriptors than before");
}

/// Clients that have sent a request but for its end, or its body: to a limited location and to its control in turn.
fn unfinished(site: &Site) -> Vec<TcpStream> {
    let client = |n: usize| {
        let mut stream = connect(site.nginx.addr());
        let path = &pair("body")[n % 2];
        let part = format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n");
        send(&mut stream, &part.as_bytes()[..part.len() - n / 2 % 30], Pace::AtOnce);
        stream
    };
    (0..200).map(client).collect()
}

/// How those to one of both end.
fn ends<'a>(clients: impl Iterator<Item = &'a mut TcpStream>) -> BTreeSet<Option<String>> {
    clients.map(|stream| received(stream).map(|bytes| essence(&bytes))).collect()
}

/// The answer to a client that begins to read slowly.
fn read_slowly(site: &Site, path: &str) -> String {
    let mut stream = connect(site.nginx.addr());
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    send(&mut stream, request.as_bytes(), Pace::AtOnce);
    let mut bytes = vec![0; 1_000];
    for part in bytes.chunks_mut(100) {
        stream.read_exact(part).expect("a part of a response");
        sleep(Duration::from_millis(20));
    }
    bytes.extend(received(&mut stream).expect("no reset"));
    essence(&bytes)
}

/// Clients that read slowly get all of it, and those that never finish their request keep nobody from being served.
#[test]
fn slow_clients_get_all_and_hold_up_nobody() {
    let site = Site::start(WAIT);
    for _ in 0..rounds() {
        let mut unfinished = unfinished(&site);
        at_once(0..4, |_| {
            let [limited, control] = pair("large");
            let [limited, control] = both(|path| read_slowly(&site, path), [&limited, &control]);
            assert!(limited.len() > 1 << 22 && limited == control, "a slow reader");
        });
        assert_eq!(site.nginx.get("/limited/body").status, 200);
        let limited = ends(unfinished.iter_mut().step_by(2));
        assert_eq!(limited, ends(unfinished.iter_mut().skip(1).step_by(2)), "limited, control");
    }
    site.is_well();
    ends_as_the_control(&site);
}
