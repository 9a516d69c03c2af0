//! The memory that a request takes while it waits.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;

use harness::Nginx;
use harness::stop::{self, Stop};

use crate::machine::{private_memory, wait_until_idle};
use crate::results::Record;
use crate::servers::{Servers, start_deciding};

const LOCATION: &str = "location /wait {
    rate_limit_redis $arg_wait name=wait rate=120r/h capacity=100000000;
    empty_gif;
}";

/// The worker's own memory that each of so many waiting requests takes: in the module, each with a key of its own, on a
/// Redis that is stopped; or in `limit_req`, delayed. The difference is what the module takes beyond NGINX.
pub fn memory(servers: &Servers, variant: &str, number: u64) -> Result<Record, Stop> {
    // Each is a connection with two ends, here and in nginx.
    let number = number.min(Servers::most_connections());
    if variant == "limit_req" {
        let mut nginx = servers.limit_req().start();
        // The first request for a key is not delayed.
        nginx.get("/wait?wait=000001");
        let record = waiting(&nginx, (0..number).map(|_| 1));
        // The others wait for longer than a run.
        nginx.terminate();
        return record;
    }
    let mut redis = servers.redis();
    let mut nginx = start_deciding(&servers.module_on(&redis).server(LOCATION))?;
    redis.stop_signal();
    let record = waiting(&nginx, 0..number);
    nginx.terminate();
    record
}

/// Sends a request for each of these keys, all of one length, and measures when all of them wait.
fn waiting(nginx: &Nginx, keys: impl Iterator<Item = u64>) -> Result<Record, Stop> {
    let worker = nginx.serving_pids()[0];
    let before = private_memory(worker);
    let mut connections = Vec::new();
    for key in keys {
        stop::check()?;
        let mut connection = TcpStream::connect(nginx.addr()).expect("connect to nginx");
        let request = format!("GET /wait?wait={key:06} HTTP/1.1\r\nHost: bench\r\n\r\n");
        connection.write_all(request.as_bytes()).expect("send to nginx");
        connections.push(connection);
    }
    wait_until_idle(worker, 0.01)?;
    let used = private_memory(worker).saturating_sub(before);
    if connections.iter_mut().any(|connection| !waits(connection)) {
        return Err(Stop::Failure("a request did not wait".to_owned()));
    }
    let number = connections.len() as f64;
    Ok(Record::from([("waiting", number), ("bytes", used as f64 / number)]))
}

/// Whether no answer has come.
fn waits(connection: &mut TcpStream) -> bool {
    connection.set_nonblocking(true).expect("set an option");
    connection.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}
