//! A name server.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

const A: u16 = 1;
const AAAA: u16 = 28;

/// A name server on UDP, for nginx's `resolver`. It knows the names that a test gives it, which may
/// change at any time, and no others.
pub struct Dns {
    addr: SocketAddr,
    zone: Arc<Mutex<Zone>>,
    server: Option<JoinHandle<()>>,
}

/// An answer to questions for a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The addresses, each for queries of its type.
    Addresses(Vec<IpAddr>),
    /// There is no such name (`NXDOMAIN`).
    Unknown,
    /// The server fails (`SERVFAIL`).
    Failure,
    /// Nothing.
    Silence,
}

#[derive(Default)]
struct Zone {
    answers: HashMap<String, Answer>,
    queries: Vec<String>,
    ttl: u32,
    stopping: bool,
}

impl Dns {
    /// Starts a server that knows no name.
    pub fn start() -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind to a port");
        let addr = socket.local_addr().expect("the address of a socket");
        let zone = Arc::new(Mutex::new(Zone { ttl: 1, ..Zone::default() }));
        let server = Some(std::thread::spawn({
            let zone = Arc::clone(&zone);
            move || serve(&socket, &zone)
        }));
        Self { addr, zone, server }
    }

    /// The address, as `resolver` takes it.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Has `name` stand for these addresses from now on.
    pub fn set(&self, name: &str, addresses: &[&str]) {
        let addresses = addresses.iter().map(|text| text.parse().expect("an address"));
        self.answer(name, Answer::Addresses(addresses.collect()));
    }

    /// Answers so to questions for `name` from now on.
    pub fn answer(&self, name: &str, answer: Answer) {
        self.zone.lock().unwrap().answers.insert(name.to_lowercase(), answer);
    }

    /// How long answers may be kept, in seconds; one, if this is not called.
    pub fn ttl(&self, seconds: u32) {
        self.zone.lock().unwrap().ttl = seconds;
    }

    /// How often `name` was queried, for either type of address.
    pub fn queries(&self, name: &str) -> usize {
        let zone = self.zone.lock().unwrap();
        zone.queries.iter().filter(|query| query.eq_ignore_ascii_case(name)).count()
    }
}

impl Drop for Dns {
    fn drop(&mut self) {
        self.zone.lock().unwrap().stopping = true;
        // Wakes the server, which then sees that it is to stop.
        if let Ok(socket) = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)) {
            let _ = socket.send_to(&[], self.addr);
        }
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
        if std::thread::panicking() {
            let zone = self.zone.lock().unwrap();
            eprintln!("--- names: {:?}\n--- queries: {:?}", zone.answers, zone.queries);
        }
    }
}

fn serve(socket: &UdpSocket, zone: &Mutex<Zone>) {
    let mut space = [0; 512];
    while let Ok((length, client)) = socket.recv_from(&mut space) {
        let mut zone = zone.lock().unwrap();
        if zone.stopping {
            return;
        }
        if let Some(response) = zone.respond(&space[..length]) {
            // A client that has gone gets nothing.
            let _ = socket.send_to(&response, client);
        }
    }
}

impl Zone {
    /// The response to a message with one question, if there is to be one.
    fn respond(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        let (name, kind, question) = read_question(message)?;
        let answer = self.answers.get(&name.to_lowercase()).cloned().unwrap_or(Answer::Unknown);
        self.queries.push(name);
        let (code, addresses) = match answer {
            Answer::Addresses(addresses) => (0, addresses),
            Answer::Failure => (2, Vec::new()),
            Answer::Unknown => (3, Vec::new()),
            Answer::Silence => return None,
        };
        let data = addresses.into_iter().filter_map(|address| match (kind, address) {
            (A, IpAddr::V4(address)) => Some(address.octets().to_vec()),
            (AAAA, IpAddr::V6(address)) => Some(address.octets().to_vec()),
            _ => None,
        });
        let data: Vec<_> = data.collect();

        let mut response = message[..2].to_vec();
        // A response, authoritative; recursion was desired and is available.
        let flags = 0x8580 | code;
        let counts = [flags, 1, data.len() as u16, 0, 0];
        response.extend(counts.iter().flat_map(|number| number.to_be_bytes()));
        response.extend_from_slice(question);
        for data in data {
            // The name is that at offset 12, the class is IN.
            response.extend([0xc00c, kind, 1].iter().flat_map(|number: &u16| number.to_be_bytes()));
            response.extend(self.ttl.to_be_bytes());
            response.extend((data.len() as u16).to_be_bytes());
            response.extend(data);
        }
        Some(response)
    }
}

/// The name and the type that a message queries, and the bytes of the query.
fn read_question(message: &[u8]) -> Option<(String, u16, &[u8])> {
    let question = message.get(12..)?;
    let (mut labels, mut at) = (Vec::new(), 0);
    loop {
        let length = usize::from(*question.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        labels.push(String::from_utf8_lossy(question.get(at..at + length)?).into_owned());
        at += length;
    }
    let kind = u16::from_be_bytes(question.get(at..at + 2)?.try_into().ok()?);
    Some((labels.join("."), kind, question.get(..at + 4)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Conf;

    /// An nginx that fetches from the host that the path names.
    fn proxy(dns: &Dns) -> crate::Nginx {
        Conf::new()
            .plain()
            .set("dns", dns.addr())
            .http("resolver {dns};\nresolver_timeout 3s;")
            .server("location = / { return 200 $server_addr; }")
            .server("location ~ ^/(.+)$ { proxy_pass http://$1:{port}/; }")
            .server("listen 127.0.0.2:{port}; listen [::1]:{port};")
            .start()
    }

    #[test]
    fn leads_nginx_to_hosts() {
        let dns = Dns::start();
        dns.ttl(5);
        dns.set("four.test", &["127.0.0.1"]);
        dns.set("six.test", &["::1"]);
        dns.answer("silent.test", Answer::Silence);
        dns.answer("broken.test", Answer::Failure);
        let nginx = proxy(&dns);
        let body = |path: &str| nginx.get(path).text().to_owned();
        assert_eq!(body("/four.test"), "127.0.0.1");
        assert_eq!(body("/SIX.test"), "::1");
        assert_eq!(body("/four.test"), "127.0.0.1");
        // For an A and an AAAA, and then from nginx's cache.
        assert_eq!((dns.queries("four.test"), dns.queries("six.test")), (2, 2));
        dns.set("four.test", &["127.0.0.2"]);
        crate::wait_until(crate::PATIENCE, || body("/four.test") == "127.0.0.2", "the new address");

        assert_eq!(nginx.get("/none.test").status, 502);
        assert_eq!(nginx.get("/broken.test").status, 502);
        assert_eq!(nginx.get("/silent.test").status, 502);
        for line in
            ["none.test could not be resolved (3: ", "broken.test could not be resolved (2: "]
        {
            assert_eq!(nginx.logged(line).len(), 1, "{line}");
        }
        assert_eq!(nginx.logged("silent.test could not be resolved (110: ").len(), 1);
    }
}
