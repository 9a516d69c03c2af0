//! Something between a client and a Redis that a test can put out of order.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::redis::Redis;

/// A TCP proxy to a real server, so that a test knows what has run, whatever its client has
/// received.
///
/// A node of a cluster can send its clients to a proxy: `CONFIG SET cluster-announce-port`.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

/// A behaviour of a proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Everything passes.
    #[default]
    Pass,
    /// Nothing passes, either way, until the mode changes; then it does.
    Stall,
    /// Commands pass, and replies wait until the mode changes; then they pass.
    HoldReplies,
    /// Commands pass, and replies are thrown away.
    DropReplies,
    /// Commands pass, and at the reply the connection is closed instead.
    CloseAtReply,
    /// Connections, those that are and those that come, are closed with a RST.
    Cut,
    /// Each piece of a reply waits so long.
    Slow(Duration),
    /// Replies come byte by byte.
    Trickle,
    /// The server is far away: each piece is under way for so long, either way, and others with it.
    Far(Duration),
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    mode: Mode,
    stopping: bool,
    /// Both sides of each connection.
    streams: Vec<TcpStream>,
    connections: usize,
}

impl Proxy {
    /// A proxy to `redis`, which may end and be restarted.
    pub fn to(redis: &Redis) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind to a port");
        let port = listener.local_addr().expect("the address of a listener").port();
        let shared = Arc::new(Shared::default());
        let acceptor = Some(std::thread::spawn({
            let (shared, server) = (Arc::clone(&shared), redis.addr());
            move || shared.accept(&listener, server)
        }));
        Self { port, shared, acceptor }
    }

    /// The TCP port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `redis://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Does so from now on.
    pub fn set(&self, mode: Mode) {
        self.shared.change(|state| state.mode = mode);
        if mode == Mode::Cut {
            self.cut();
        }
    }

    /// Closes the connections that there are with a RST.
    pub fn cut(&self) {
        for stream in self.shared.state.lock().unwrap().streams.drain(..) {
            // One that is closed needs no RST.
            let _ = crate::fake::reset(&stream);
        }
    }

    /// How many connections were made.
    pub fn connections(&self) -> usize {
        self.shared.state.lock().unwrap().connections
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.change(|state| state.stopping = true);
        self.cut();
        // Wakes the acceptor, which then sees that it is to stop.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Commands,
    Replies,
}

impl Shared {
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }

    fn accept(self: Arc<Self>, listener: &TcpListener, server: SocketAddr) {
        for client in listener.incoming() {
            if self.state.lock().unwrap().stopping {
                return;
            }
            // Where the server is not, the client's connection ends.
            if let Ok(client) = client {
                let _ = self.join(client, server);
            }
        }
    }

    fn join(self: &Arc<Self>, client: TcpStream, server: SocketAddr) -> io::Result<()> {
        let server = TcpStream::connect(server)?;
        server.set_nodelay(true)?;
        client.set_nodelay(true)?;
        let kept = [client.try_clone()?, server.try_clone()?];
        let ways = [
            (Way::Commands, client.try_clone()?, server.try_clone()?),
            (Way::Replies, server, client),
        ];
        let mut state = self.state.lock().unwrap();
        state.connections += 1;
        if state.mode == Mode::Cut {
            return kept.iter().try_for_each(crate::fake::reset);
        }
        state.streams.extend(kept);
        for (way, mut from, mut to) in ways {
            let shared = Arc::clone(self);
            std::thread::spawn(move || {
                // An error ends the connection, and so does the end of either side.
                let _ = shared.pump(way, &mut from, &mut to);
                let _ = from.shutdown(Shutdown::Both);
                let _ = to.shutdown(Shutdown::Both);
            });
        }
        Ok(())
    }

    fn pump(&self, way: Way, from: &mut TcpStream, to: &mut TcpStream) -> io::Result<()> {
        let mut space = vec![0; 1 << 16];
        let mut line = None;
        loop {
            let length = from.read(&mut space)?;
            let piece = &space[..length];
            match (self.mode(way), way) {
                _ if piece.is_empty() => return Ok(()),
                (Mode::DropReplies, Way::Replies) => (),
                (Mode::CloseAtReply, Way::Replies) => return Ok(()),
                (Mode::Slow(delay), Way::Replies) => {
                    std::thread::sleep(delay);
                    to.write_all(piece)?;
                }
                (Mode::Trickle, Way::Replies) => crate::fake::trickle(piece, to)?,
                (Mode::Far(delay), _) => {
                    let line = line.get_or_insert_with(|| delay_line(to));
                    let sent = line.send((Instant::now() + delay, piece.to_vec()));
                    sent.map_err(|_| io::ErrorKind::BrokenPipe)?;
                }
                _ => to.write_all(piece)?,
            }
        }
    }

    /// The behaviour of one way, once it is to do anything.
    fn mode(&self, way: Way) -> Mode {
        let stalls = |state: &mut State| match state.mode {
            _ if state.stopping => false,
            Mode::Stall => true,
            Mode::HoldReplies => way == Way::Replies,
            _ => false,
        };
        let state = self.state.lock().unwrap();
        self.changed.wait_while(state, stalls).unwrap().mode
    }
}

/// Pieces that are under way to `to`, each with the time at which it is there.
fn delay_line(to: &TcpStream) -> Sender<(Instant, Vec<u8>)> {
    let (sender, receiver) = channel::<(Instant, Vec<u8>)>();
    let mut to = to.try_clone().expect("another handle of a socket");
    std::thread::spawn(move || {
        for (at, piece) in receiver {
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
            if to.write_all(&piece).is_err() {
                return;
            }
        }
    });
    sender
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;
    use crate::PATIENCE;
    use crate::fake::segments;

    fn connect(proxy: &Proxy) -> TcpStream {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Increments a number, to which no reply comes.
    fn increment_in_vain(stream: &mut TcpStream) {
        stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        assert_eq!(increment(stream).unwrap_err().kind(), ErrorKind::WouldBlock);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }

    /// Increments a number, and returns the reply.
    fn increment(stream: &mut TcpStream) -> io::Result<String> {
        stream.write_all(b"INCR n\r\n")?;
        let mut reply = [0; 4];
        stream.read_exact(&mut reply)?;
        Ok(String::from_utf8_lossy(&reply).into_owned())
    }

    #[test]
    fn passes_and_does_not() {
        let redis = Redis::start();
        let proxy = Proxy::to(&redis);
        let mut stream = connect(&proxy);
        assert_eq!(increment(&mut stream).unwrap(), ":1\r\n");

        proxy.set(Mode::Stall);
        increment_in_vain(&mut stream);
        assert_eq!(redis.calls("incr"), 1);
        proxy.set(Mode::Pass);
        let mut reply = [0; 4];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(&reply, b":2\r\n");

        proxy.set(Mode::Slow(Duration::from_millis(20)));
        let start = Instant::now();
        assert_eq!(increment(&mut stream).unwrap(), ":3\r\n");
        assert!(start.elapsed() >= Duration::from_millis(20));

        proxy.set(Mode::Trickle);
        let before = segments(&stream);
        assert_eq!(increment(&mut stream).unwrap(), ":4\r\n");
        assert_eq!(segments(&stream), before + 4);

        proxy.set(Mode::DropReplies);
        increment_in_vain(&mut stream);
        proxy.set(Mode::CloseAtReply);
        assert_eq!(increment(&mut stream).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(redis.calls("incr"), 6);

        let mut stream = connect(&proxy);
        proxy.set(Mode::Pass);
        assert_eq!(increment(&mut stream).unwrap(), ":7\r\n");
        proxy.set(Mode::Cut);
        assert!(increment(&mut stream).is_err());
        assert!(increment(&mut connect(&proxy)).is_err());
        assert_eq!((redis.calls("incr"), proxy.connections()), (7, 3));
    }
}
