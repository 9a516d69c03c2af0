//! A server in the place of Redis, which follows a script of the test.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// The reply of Redis about a new client: nothing is stored.
pub const ALLOWED: &str = "$13\r\n1763683200 0 \r\n";

/// A server that takes commands as Redis does, and writes them all down. What it does about each
/// is up to the script, a function of the test.
pub struct Fake {
    port: u16,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

/// A command of a client; a connection that was just made counts as a command without words.
#[derive(Clone, Debug)]
pub struct Command {
    /// The number of the connection, from 0.
    pub connection: usize,
    /// The words.
    pub words: Vec<String>,
}

impl Command {
    /// The first word, in capitals; empty for a new connection.
    pub fn name(&self) -> String {
        self.words.first().map_or(String::new(), |word| word.to_uppercase())
    }

    /// The client's key, after the last colon of the first Redis key, if this is a command about a
    /// limit.
    pub fn key(&self) -> Option<&str> {
        let is_script = ["EVAL", "EVALSHA"].contains(&self.name().as_str());
        self.words.get(3).filter(|_| is_script)?.rsplit(':').next()
    }
}

/// An act of the server upon a command.
#[derive(Clone, Debug)]
pub enum Act {
    /// The reply of a Redis: accept, `+OK`, or [`ALLOWED`].
    Usual,
    /// Send these bytes.
    Reply(Vec<u8>),
    /// Send these bytes one by one.
    Trickle(Vec<u8>),
    /// Send these bytes and close the connection.
    Close(Vec<u8>),
    /// Close the connection with a RST.
    Reset,
    /// Send these bytes, perhaps half a reply, and on this connection nothing any more.
    Hush(Vec<u8>),
    /// Send a string that has no end.
    Endless,
    /// Nothing at all.
    Ignore,
    /// Wait, and then act.
    After(Duration, Box<Act>),
    /// Act after the next command was answered: that is the wrong order.
    AfterNext(Box<Act>),
}

impl Act {
    /// Sends `text`, with a line end.
    pub fn line(text: &str) -> Self {
        Self::Reply(format!("{text}\r\n").into())
    }
}

type Script = Box<dyn Fn(&Command) -> Act + Send + Sync>;

struct Shared {
    script: Script,
    stopping: AtomicBool,
    received: Mutex<Vec<Command>>,
    streams: Mutex<Vec<TcpStream>>,
}

impl Fake {
    /// Starts a server, on a port that the system chooses.
    pub fn start(script: impl Fn(&Command) -> Act + Send + Sync + 'static) -> Self {
        let (listener, port) = listen();
        Self::serve(listener, port, Box::new(script))
    }

    fn serve(listener: TcpListener, port: u16, script: Script) -> Self {
        let shared = Arc::new(Shared {
            script,
            stopping: AtomicBool::new(false),
            received: Mutex::new(Vec::new()),
            streams: Mutex::new(Vec::new()),
        });
        let acceptor = Some(std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.accept(&listener)
        }));
        Self { port, shared, acceptor }
    }

    /// Starts servers that know each other's ports, such as the nodes of a cluster. The script gets
    /// the number of the server and all ports.
    pub fn several(
        number: usize,
        script: impl Fn(usize, &[u16], &Command) -> Act + Send + Sync + 'static,
    ) -> Vec<Self> {
        let listeners: Vec<_> = (0..number).map(|_| listen()).collect();
        let ports: Arc<[u16]> = listeners.iter().map(|(_, port)| *port).collect();
        let script = Arc::new(script);
        let serve = |(n, (listener, port))| {
            let (script, ports) = (Arc::clone(&script), Arc::clone(&ports));
            Self::serve(listener, port, Box::new(move |command| script(n, &ports, command)))
        };
        listeners.into_iter().enumerate().map(serve).collect()
    }

    /// A server that follows the script for commands about the client's key `key`, and else
    /// what a Redis would.
    pub fn answering(script: impl Fn(&str) -> Act + Send + Sync + 'static) -> Self {
        Self::start(move |command| command.key().map_or(Act::Usual, &script))
    }

    /// The TCP port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `redis://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// All that was received so far, new connections included.
    pub fn received(&self) -> Vec<Command> {
        self.shared.received.lock().unwrap().clone()
    }

    /// How often `command` was received, or with no name how often a connection was made.
    pub fn count(&self, command: &str) -> usize {
        self.received().iter().filter(|received| received.name() == command).count()
    }

    /// How often `command` was received for `key`.
    pub fn times(&self, command: &str, key: &str) -> usize {
        let is_same = |c: &&Command| c.name() == command && c.key() == Some(key);
        self.received().iter().filter(is_same).count()
    }

    /// How many segments with data have come, on all connections. Unlike a read, a segment is
    /// never more than what the other side sent at once.
    pub fn segments(&self) -> u64 {
        self.shared.streams.lock().unwrap().iter().map(|stream| u64::from(segments(stream))).sum()
    }

    /// Sends `bytes`, without a command, on every connection.
    pub fn shout(&self, bytes: &[u8]) {
        for stream in &mut *self.shared.streams.lock().unwrap() {
            // A connection that is closed receives nothing.
            let _ = stream.write_all(bytes);
        }
    }

    /// Closes every connection.
    pub fn hang_up(&self) {
        for stream in self.shared.streams.lock().unwrap().drain(..) {
            // One that is closed already cannot be shut down.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn listen() -> (TcpListener, u16) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind to a port");
    let port = listener.local_addr().expect("the address of a listener").port();
    (listener, port)
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        for stream in &*self.shared.streams.lock().unwrap() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        // Wakes the acceptor, which then sees that it is to stop.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        if std::thread::panicking() {
            let received = self.received();
            eprintln!("--- received by the fake Redis, port {}: {}", self.port, received.len());
            for command in &received[received.len().saturating_sub(40)..] {
                let mut words = command.words.join(" ");
                words.truncate((0..=99).rfind(|end| words.is_char_boundary(*end)).unwrap_or(0));
                eprintln!("{}: {}", command.connection, words.replace(['\r', '\n'], " "));
            }
        }
    }
}

impl Shared {
    fn accept(self: Arc<Self>, listener: &TcpListener) {
        for (connection, stream) in listener.incoming().enumerate() {
            if self.stopping.load(Ordering::Relaxed) {
                return;
            }
            let Ok(stream) = stream else { continue };
            let kept = stream.try_clone().expect("a second handle");
            self.streams.lock().unwrap().push(kept);
            let shared = Arc::clone(&self);
            std::thread::spawn(move || shared.serve(connection, stream));
        }
    }

    /// Errors end the connection, and that is all there is to do about them.
    fn serve(&self, connection: usize, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut input = Vec::new();
        let mut space = vec![0; 1 << 20];
        let mut words = Some(Vec::new());
        let mut put_off = Vec::new();
        let mut then = Then::Answer;
        loop {
            while let Some(words) = words.take().or_else(|| take_command(&mut input)) {
                let command = Command { connection, words };
                let act = (self.script)(&command);
                let usual = match command.name().as_str() {
                    "" => "",
                    "EVAL" | "EVALSHA" => ALLOWED,
                    _ => "+OK\r\n",
                };
                self.received.lock().unwrap().push(command);
                if let Act::AfterNext(act) = act {
                    put_off.push((*act, usual));
                    continue;
                }
                for (act, usual) in [(act, usual)].into_iter().chain(put_off.drain(..)) {
                    if then == Then::Answer {
                        then = perform(act, usual, &mut stream)?;
                    }
                }
                if then == Then::End {
                    return Ok(());
                }
            }
            match stream.read(&mut space)? {
                0 => return Ok(()),
                count => input.extend_from_slice(&space[..count]),
            }
        }
    }
}

/// How a connection goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Answer,
    Listen,
    End,
}

/// Carries out an act of the script.
fn perform(act: Act, usual: &str, stream: &mut TcpStream) -> io::Result<Then> {
    match act {
        Act::Usual => stream.write_all(usual.as_bytes())?,
        Act::Reply(bytes) => stream.write_all(&bytes)?,
        Act::Ignore => (),
        Act::Trickle(bytes) => trickle(&bytes, stream)?,
        Act::Close(bytes) => {
            stream.write_all(&bytes)?;
            stream.shutdown(Shutdown::Both)?;
            return Ok(Then::End);
        }
        Act::Reset => {
            reset(stream)?;
            return Ok(Then::End);
        }
        Act::Hush(bytes) => {
            stream.write_all(&bytes)?;
            return Ok(Then::Listen);
        }
        Act::Endless => {
            write!(stream, "${}\r\n", i64::MAX)?;
            loop {
                stream.write_all(&[b'x'; 1 << 16])?;
            }
        }
        Act::After(delay, act) => {
            std::thread::sleep(delay);
            return perform(*act, usual, stream);
        }
        // One that was put off already.
        Act::AfterNext(act) => return perform(*act, usual, stream),
    }
    Ok(Then::Answer)
}

/// Sends bytes one by one.
pub(crate) fn trickle(bytes: &[u8], stream: &mut TcpStream) -> io::Result<()> {
    for byte in bytes {
        stream.write_all(&[*byte])?;
        // Long enough for the other side to be woken by this byte alone.
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// How many segments with data a connection has received.
pub(crate) fn segments(stream: &TcpStream) -> u32 {
    // Linux's `struct tcp_info`, to and with its `tcpi_data_segs_in`.
    let mut info = [0u32; 39];
    let mut length = size_of_val(&info) as libc::socklen_t;
    let buffer = info.as_mut_ptr().cast();
    let (fd, level, option) = (stream.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO);
    // SAFETY: the descriptor is open, and the buffer has this length.
    let status = unsafe { libc::getsockopt(fd, level, option, buffer, &mut length) };
    assert_eq!(status, 0, "{}", io::Error::last_os_error());
    info[38]
}

/// Closes a connection the hard way, though other handles of it are open.
pub(crate) fn reset(stream: &TcpStream) -> io::Result<()> {
    // Disconnecting a TCP socket sends a RST.
    // SAFETY: all zeroes is an address of the family AF_UNSPEC.
    let nowhere: libc::sockaddr = unsafe { std::mem::zeroed() };
    let length = size_of::<libc::sockaddr>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the address has this length.
    match unsafe { libc::connect(stream.as_raw_fd(), &nowhere, length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The words of the first command, which are removed, if it is all there.
fn take_command(input: &mut Vec<u8>) -> Option<Vec<String>> {
    let mut rest = input.as_slice();
    let count = number(&mut rest, b'*')?;
    let mut words = Vec::new();
    for _ in 0..count {
        let length = number(&mut rest, b'$')?;
        let word = rest.get(..length)?;
        rest = rest.get(length + 2..)?;
        words.push(String::from_utf8_lossy(word).into_owned());
    }
    let left = rest.len();
    input.drain(..input.len() - left);
    Some(words)
}

fn number(rest: &mut &[u8], sign: u8) -> Option<usize> {
    let end = rest.windows(2).position(|two| two == b"\r\n")?;
    assert_eq!(rest[0], sign, "not a command: {:?}", String::from_utf8_lossy(rest));
    let digits = std::str::from_utf8(&rest[1..end]).expect("digits");
    *rest = &rest[end + 2..];
    Some(digits.parse().expect("a number"))
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::time::Instant;

    use super::*;
    use crate::{PATIENCE, reply};

    /// How long to wait for what is not to come.
    const SHORT: Duration = Duration::from_secs(1);

    fn connect(fake: &Fake) -> TcpStream {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, fake.port())).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends `bytes`, and returns what comes back until the end, or an error if that takes longer than
    /// `patience`.
    fn send(fake: &Fake, bytes: &str, patience: Duration) -> io::Result<String> {
        let mut stream = connect(fake);
        stream.set_read_timeout(Some(patience))?;
        stream.write_all(bytes.as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text).map(|_| text)
    }

    #[test]
    fn acts_as_its_script_says() {
        const ASK: &str = "*4\r\n$7\r\nevalsha\r\n$3\r\nsha\r\n$1\r\n1\r\n$6\r\nrl:a:k\r\n";
        let fake = Fake::start(|command| match (command.connection, command.key()) {
            (0, _) => Act::Ignore,
            (1, Some("k")) => Act::Close(b"bye".into()),
            (2, Some("k")) => Act::Reset,
            (3, None) if !command.words.is_empty() => Act::line("+pong"),
            (3, Some("k")) => Act::After(Duration::from_millis(20), Box::new(Act::Usual)),
            _ => Act::Usual,
        });
        let kind = |result: io::Result<String>| result.unwrap_err().kind();
        assert_eq!(kind(send(&fake, ASK, SHORT)), ErrorKind::WouldBlock);
        assert_eq!(send(&fake, ASK, PATIENCE).unwrap(), "bye");
        assert_eq!(kind(send(&fake, ASK, PATIENCE)), ErrorKind::ConnectionReset);
        let mut stream = connect(&fake);
        stream.set_nodelay(true).unwrap();
        let start = Instant::now();
        stream.write_all(format!("*1\r\n$4\r\nping\r\n{ASK}").as_bytes()).unwrap();
        let mut text = [0; 7];
        stream.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"+pong\r\n");
        stream.read_exact(&mut text).unwrap();
        assert_eq!(text, ALLOWED.as_bytes()[..7]);
        assert!(start.elapsed() >= Duration::from_millis(20));

        assert_eq!((fake.count(""), fake.count("PING"), fake.times("EVALSHA", "k")), (4, 1, 4));
        let received = fake.received();
        let words = &received.last().unwrap().words;
        assert_eq!(words, &["evalsha", "sha", "1", "rl:a:k"]);
        let before = fake.segments();
        for sent in 1..5 {
            stream.write_all(b"*1\r\n$4\r\nping\r\n").unwrap();
            stream.read_exact(&mut text).unwrap();
            assert_eq!(fake.segments() - before, sent);
        }
    }

    #[test]
    fn answers_wrong_or_without_end() {
        const PING: &str = "*1\r\n$4\r\nping\r\n";
        let fakes = Fake::several(2, |n, ports, command| match (n, command.connection) {
            _ if command.words.is_empty() => Act::Usual,
            (0, 0) if command.name() == "PING" => Act::AfterNext(Box::new(Act::line("+pong"))),
            (0, 1) => Act::Hush(ALLOWED[..6].into()),
            (0, 2) => Act::Endless,
            _ => Act::Reply(reply::moved(7, "", ports[1 - n])),
        });
        let [first, second] = &fakes[..] else { panic!() };
        let moved = |to: &Fake| format!("-MOVED 7 :{}\r\n", to.port());
        let replies = |fake, bytes: String, length| {
            let mut stream = connect(fake);
            stream.write_all(bytes.as_bytes()).unwrap();
            let mut text = vec![0; length];
            stream.read_exact(&mut text).unwrap();
            (stream, String::from_utf8(text).unwrap())
        };
        let expected = moved(second) + "+pong\r\n";
        let get = PING.replace("ping", "nope");
        assert_eq!(replies(first, PING.to_owned() + &get, expected.len()).1, expected);
        let (mut stream, text) = replies(first, PING.repeat(2), 6);
        assert_eq!(text, ALLOWED[..6]);
        stream.set_read_timeout(Some(SHORT)).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
        let (_, text) = replies(first, PING.to_owned(), 1 << 22);
        assert!(text.starts_with("$9223372036854775807\r\nx") && text.ends_with("x"));
        let expected = moved(first);
        assert_eq!(replies(second, PING.to_owned(), expected.len()).1, expected);
        assert_eq!((first.count("PING"), second.count("PING")), (4, 1));
    }
}
