//! An HTTP/1.1 client that sends exactly what a test gives it.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::PATIENCE;

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The header fields in their order.
    pub headers: Vec<(String, String)>,
    /// The content, without its transfer coding.
    pub body: Vec<u8>,
}

impl Response {
    /// The value of the field `name`; panics if there are several.
    pub fn header(&self, name: &str) -> Option<&str> {
        let all = self.headers(name);
        assert!(all.len() <= 1, "{name} is there {} times: {:?}", all.len(), self.headers);
        all.first().copied()
    }

    /// Every value of the field `name`.
    pub fn headers(&self, name: &str) -> Vec<&str> {
        let named = self.headers.iter().filter(|(field, _)| field.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value.as_str()).collect()
    }

    /// `$rate_limit_redis_status` and `$rate_limit_redis_source`, if
    /// [`Conf::decisions`](crate::Conf::decisions) asked for them.
    pub fn decision(&self) -> &str {
        self.header("X-Decision").unwrap_or_else(|| panic!("no decision in {self:?}"))
    }

    /// `X-RateLimit-Remaining`.
    pub fn remaining(&self) -> Option<u64> {
        Some(self.header("X-RateLimit-Remaining")?.parse().expect("a number"))
    }

    /// The content as text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("a body of text")
    }
}

/// One connection to a server. Nothing waits longer than [`PATIENCE`].
pub struct Http {
    stream: BufReader<TcpStream>,
}

impl Http {
    /// Connects to a server; panics if it cannot.
    pub fn connect(addr: SocketAddr) -> Self {
        Self::try_connect(addr).unwrap_or_else(|error| panic!("connect to {addr}: {error}"))
    }

    /// Connects to a server.
    pub fn try_connect(addr: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&addr, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Waits so long for what the server sends, instead of [`PATIENCE`].
    pub fn patience(self, time: Duration) -> Self {
        self.stream.get_ref().set_read_timeout(Some(time)).expect("set a timeout");
        self
    }

    /// Sends `GET path` and reads the response; the connection can be used again.
    pub fn get(&mut self, path: &str) -> Response {
        self.send("GET", path, &[]);
        self.read_response()
    }

    /// Sends `HEAD path` and reads the response, which has no content.
    pub fn head(&mut self, path: &str) -> Response {
        self.send("HEAD", path, &[]);
        self.try_read(false).expect("a response")
    }

    /// Sends `POST path` with this content and reads the response.
    pub fn post(&mut self, path: &str, body: &[u8]) -> Response {
        self.send("POST", path, &[("Content-Length", &body.len().to_string())]);
        self.send_raw(body);
        self.read_response()
    }

    /// Sends a request line and header fields, with a `Host` unless there is one.
    pub fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)]) {
        let mut request = format!("{method} {path} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            request += "Host: localhost\r\n";
        }
        for (name, value) in headers {
            request += &format!("{name}: {value}\r\n");
        }
        self.send_raw((request + "\r\n").as_bytes());
    }

    /// Sends these bytes and nothing else.
    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.try_send_raw(bytes).expect("send to the server");
    }

    /// Sends these bytes, to a server that may have closed the connection.
    pub fn try_send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Reads the next response, which is not one to a HEAD request.
    pub fn read_response(&mut self) -> Response {
        self.try_read_response().expect("a response")
    }

    /// Reads the next response; the error is of kind `UnexpectedEof` if the server has closed the
    /// connection before the first byte of it.
    pub fn try_read_response(&mut self) -> io::Result<Response> {
        self.try_read(true)
    }

    /// Whether the server closes the connection, sending nothing before that.
    pub fn is_closed(&mut self) -> bool {
        match self.stream.fill_buf() {
            Ok(bytes) => bytes.is_empty(),
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }

    fn try_read(&mut self, content: bool) -> io::Result<Response> {
        let status_line = self.read_line()?;
        let status = status_line.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5));
        let status = status.and_then(|code| code.parse().ok()).ok_or_else(invalid)?;
        let mut headers = Vec::new();
        loop {
            let line = self.read_line()?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').ok_or_else(invalid)?;
            headers.push((name.to_owned(), value.trim().to_owned()));
        }
        let mut response = Response { status, headers, body: Vec::new() };
        if content && status >= 200 && status != 204 && status != 304 {
            response.body = self.read_body(&response)?;
        }
        Ok(response)
    }

    fn read_body(&mut self, response: &Response) -> io::Result<Vec<u8>> {
        if response.header("Transfer-Encoding") == Some("chunked") {
            return self.read_chunks();
        }
        if let Some(length) = response.header("Content-Length") {
            return self.read_bytes(length.parse().map_err(|_| invalid())?);
        }
        let mut body = Vec::new();
        self.stream.read_to_end(&mut body)?;
        Ok(body)
    }

    fn read_chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let length = usize::from_str_radix(&self.read_line()?, 16).map_err(|_| invalid())?;
            body.extend(self.read_bytes(length)?);
            self.read_line()?;
            if length == 0 {
                return Ok(body);
            }
        }
    }

    fn read_bytes(&mut self, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn read_line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        line.strip_suffix("\r\n").map(str::to_owned).ok_or_else(invalid)
    }
}

fn invalid() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "not an HTTP/1.1 response")
}
