//! A Redis on another machine.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::netns::{self, Network};
use crate::redis::{Redis, Setup};

/// A Redis server on another machine, over a network that a test can disturb. That it is there is
/// not noticed when it goes: nothing is closed, nothing refused.
pub struct Remote {
    redis: Redis,
    weather: Arc<Mutex<Weather>>,
    carrier: Option<JoinHandle<()>>,
    /// Closed, it ends the carrier.
    running: Option<PipeWriter>,
}

/// How the network is.
#[derive(Clone, Copy, Default)]
struct Weather {
    /// Whether what goes there vanishes.
    deaf: bool,
    /// Whether what comes back vanishes.
    mute: bool,
    /// Whether a router on the way reports that the other machine is unreachable.
    unreachable: bool,
    /// How many packets of a hundred vanish.
    loss: u8,
    /// How long a packet takes, each way.
    delay: Duration,
}

impl Remote {
    /// Whether there can be another machine: it needs root and `/dev/net/tun`.
    pub fn possible() -> bool {
        let _change = netns::change();
        Network::new().is_ok()
    }

    /// Starts a server that anyone may use.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with more lines in its configuration, as [`Redis::start_with`].
    pub fn start_with(lines: &[&str]) -> Self {
        let change = netns::change();
        let network = Network::new().expect("a network namespace, as root, with /dev/net/tun");
        drop(change);
        let weather = Arc::new(Mutex::new(Weather::default()));
        let (end, running) = io::pipe().expect("a pipe");
        let mut setup = Setup::new(lines);
        setup.address = network.there.into();
        // It would refuse clients from a network.
        setup.lines.push("protected-mode no".to_owned());
        setup.namespace = Some(network.namespace);
        let carrier = Carrier {
            ends: [network.near, network.far],
            weather: Arc::clone(&weather),
            under_way: BinaryHeap::new(),
        };
        let carrier = Some(std::thread::spawn(move || carrier.run(&end)));
        Self { redis: Redis::start_as(setup), weather, carrier, running: Some(running) }
    }

    /// The server. The test itself reaches it by another way, whatever the network does.
    pub fn redis(&self) -> &Redis {
        &self.redis
    }

    /// `redis://address:port`.
    pub fn url(&self) -> String {
        self.redis.url()
    }

    /// From now on packets vanish, both ways.
    pub fn cut(&self) {
        self.change(|weather| (weather.deaf, weather.mute) = (true, true));
    }

    /// From now on commands arrive, and replies vanish.
    pub fn cut_replies(&self) {
        self.change(|weather| weather.mute = true);
    }

    /// From now on packets are returned: "No route to host".
    pub fn unreachable(&self) {
        self.change(|weather| weather.unreachable = true);
    }

    /// From now on so many of a hundred packets vanish.
    pub fn lose(&self, percent: u8) {
        self.change(|weather| weather.loss = percent);
    }

    /// From now on a packet takes so long, each way.
    pub fn delay(&self, delay: Duration) {
        self.change(|weather| weather.delay = delay);
    }

    /// Undoes all disturbances.
    pub fn mend(&self) {
        self.change(|weather| *weather = Weather::default());
    }

    /// The machine is switched off: the server is gone, and closes no connection.
    pub fn power_off(&mut self) {
        self.cut();
        self.redis.kill9();
    }

    /// The machine comes back, with an empty server, and knows nothing of old connections.
    pub fn power_on(&mut self) {
        self.redis.restart();
        self.mend();
    }

    fn change(&self, change: impl FnOnce(&mut Weather)) {
        change(&mut self.weather.lock().unwrap());
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // The devices go with the carrier.
        let _change = netns::change();
        self.running = None;
        if let Some(carrier) = self.carrier.take() {
            let _ = carrier.join();
        }
    }
}

/// Which end of the network a packet is for, as an index.
const HERE: usize = 0;
const THERE: usize = 1;

/// Carries packets between the ends of a network.
struct Carrier {
    ends: [File; 2],
    weather: Arc<Mutex<Weather>>,
    under_way: BinaryHeap<Reverse<Packet>>,
}

/// When it has to arrive, the order in which it was sent, for which end it is, and what it is.
type Packet = (Instant, u64, usize, Vec<u8>);

impl Carrier {
    fn run(mut self, end: &PipeReader) {
        for number in 0.. {
            let [here, there, ended] = self.wait(end);
            if ended {
                return;
            }
            for (readable, to) in [(here, THERE), (there, HERE)] {
                if readable {
                    self.take(number, to);
                }
            }
            self.deliver();
        }
    }

    /// Waits until there is something to do; returns which ends can be read, and whether to stop.
    fn wait(&self, end: &PipeReader) -> [bool; 3] {
        let [here, there] = &self.ends;
        let mut polled = [here.as_raw_fd(), there.as_raw_fd(), end.as_raw_fd()]
            .map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        let next = self.under_way.peek().map(|Reverse((due, ..))| *due);
        // Rounded up, not to be awake before the time.
        let timeout = next.map_or(-1, |due| {
            due.saturating_duration_since(Instant::now()).as_micros().div_ceil(1000) as libc::c_int
        });
        // SAFETY: the pointer is to this many structures.
        unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout) };
        polled.map(|polled| polled.revents != 0)
    }

    /// Reads a packet that is for an end, and decides what becomes of it.
    fn take(&mut self, number: u64, to: usize) {
        let mut packet = vec![0; 1 << 16];
        let Ok(length) = self.ends[1 - to].read(&mut packet) else { return };
        packet.truncate(length);
        let weather = *self.weather.lock().unwrap();
        let vanishes = if to == THERE { weather.deaf } else { weather.mute };
        if vanishes || fastrand::u8(..100) < weather.loss {
            return;
        }
        let due = Instant::now() + weather.delay;
        match (weather.unreachable, to) {
            (false, _) => self.under_way.push(Reverse((due, number, to, packet))),
            (true, HERE) => (),
            (true, _) => {
                let notice = host_unreachable(&packet);
                self.under_way.extend(notice.map(|notice| Reverse((due, number, HERE, notice))));
            }
        }
    }

    /// Writes what has to be there by now.
    fn deliver(&mut self) {
        let now = Instant::now();
        while let Some(Reverse((due, ..))) = self.under_way.peek()
            && *due <= now
            && let Some(Reverse((_, _, to, packet))) = self.under_way.pop()
        {
            // A device that does not take a packet is a network that loses it.
            let _ = self.ends[to].write(&packet);
        }
    }
}

/// The ICMP message of a router about an IPv4 packet to an unreachable host.
fn host_unreachable(packet: &[u8]) -> Option<Vec<u8>> {
    let header = packet.get(..20).filter(|header| header[0] >> 4 == 4)?;
    // The header, which is as long as it says, and the first eight bytes of the content.
    let returned = packet.get(..usize::from(header[0] & 15) * 4 + 8)?;

    let mut message = vec![3, 1, 0, 0, 0, 0, 0, 0];
    message.extend(returned);
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum);

    // Version 4, a header of five words, a time to live of 64, ICMP, from the host that was meant.
    let mut notice = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 1, 0, 0];
    notice.extend([&header[16..20], &header[12..16]].concat());
    let length = (notice.len() + message.len()) as u16;
    notice[2..4].copy_from_slice(&length.to_be_bytes());
    let sum = checksum(&notice);
    notice[10..12].copy_from_slice(&sum);
    notice.extend(message);
    Some(notice)
}

/// The checksum of the internet, of an even number of bytes.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks_exact(2).map(|two| u32::from(u16::from_be_bytes([two[0], two[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    (!((folded & 0xffff) + (folded >> 16)) as u16).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::TcpStream;

    use super::*;

    const SOON: Duration = Duration::from_secs(2);

    fn connect(remote: &Remote) -> io::Result<TcpStream> {
        let stream = TcpStream::connect_timeout(&remote.redis().addr(), SOON)?;
        stream.set_read_timeout(Some(SOON))?;
        Ok(stream)
    }

    fn ping(stream: &mut TcpStream) -> io::Result<()> {
        stream.write_all(b"PING\r\n")?;
        let mut reply = [0; 7];
        stream.read_exact(&mut reply)?;
        assert_eq!(&reply, b"+PONG\r\n");
        Ok(())
    }

    #[test]
    fn is_far_away() {
        if !Remote::possible() {
            eprintln!("not possible here");
            return;
        }
        let mut remote = Remote::start();
        let mut stream = connect(&remote).unwrap();
        ping(&mut stream).unwrap();

        remote.delay(Duration::from_millis(20));
        let start = Instant::now();
        ping(&mut stream).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(40), "{:?}", start.elapsed());

        remote.mend();
        let calls = remote.redis().calls("ping");
        remote.cut_replies();
        assert_eq!(ping(&mut stream).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(remote.redis().calls("ping"), calls + 1);
        assert_eq!(connect(&remote).unwrap_err().kind(), ErrorKind::TimedOut);

        remote.mend();
        remote.unreachable();
        let start = Instant::now();
        assert_eq!(connect(&remote).unwrap_err().kind(), ErrorKind::HostUnreachable);
        assert!(start.elapsed() < SOON);

        remote.mend();
        let mut stream = connect(&remote).unwrap();
        remote.cut();
        assert_eq!(ping(&mut stream).unwrap_err().kind(), ErrorKind::WouldBlock);
        remote.mend();
        // A packet that has vanished is sent again.
        stream.set_read_timeout(Some(crate::PATIENCE)).unwrap();
        stream.read_exact(&mut [0; 7]).unwrap();
        remote.power_off();
        assert_eq!(connect(&remote).unwrap_err().kind(), ErrorKind::TimedOut);
        remote.power_on();
        assert_eq!(ping(&mut stream).unwrap_err().kind(), ErrorKind::ConnectionReset);
        ping(&mut connect(&remote).unwrap()).unwrap();
    }

    #[test]
    fn loses_some_packets() {
        if !Remote::possible() {
            eprintln!("not possible here");
            return;
        }
        let remote = Remote::start();
        remote.lose(50);
        // A packet there and one back arrive both once in four times.
        let at_once = Duration::from_millis(150);
        let connects =
            |_: &u32| TcpStream::connect_timeout(&remote.redis().addr(), at_once).is_ok();
        let connected = (0..60).filter(connects).count();
        assert!((1..40).contains(&connected), "{connected}");
    }
}
