//! A client whose load is the same each time: volleys of requests, each of which the worker finds in one turn of its
//! event loop, as it is stopped while they are sent.

use harness::stop::{self, Stop};
use harness::{Http, Nginx, PATIENCE, process_state, wait_until};

/// The requests of a volley: as many as wrk has connections.
pub const WIDTH: usize = 64;

/// A load that is always the same.
pub struct Volley {
    /// Its name in the results.
    pub name: &'static str,
    path: &'static str,
    keys: usize,
    /// The status of each answer where there is a limit.
    status: u16,
}

/// The loads.
pub const VOLLEYS: [Volley; 3] = [
    Volley { name: "distinct", path: "/free", keys: 16 * WIDTH, status: 200 },
    Volley { name: "hot", path: "/free", keys: 1, status: 200 },
    Volley { name: "flood", path: "/flood", keys: WIDTH, status: 429 },
];

impl Volley {
    /// The requests of the n-th volley. No two of distinct keys are for the same.
    fn paths(&self, n: usize) -> impl Iterator<Item = String> {
        (0..WIDTH)
            .map(move |i| format!("{}?k={}", self.path, (n * WIDTH + i) % self.keys + 1_000_000))
    }

    /// How many commands Redis runs for so many volleys. The first one, which finds no script there, is sent twice.
    ///
    /// Requests of one volley for the same key share a command. A key of the flood passes, is rejected, and then its
    /// rejection is cached.
    pub fn commands(&self, volleys: usize) -> u64 {
        let commands = match self.name {
            "flood" => 2 * WIDTH,
            _ => self.keys.min(WIDTH) * volleys,
        };
        commands as u64 + 1
    }
}

/// Connections to an nginx of one process.
pub struct Client<'a> {
    nginx: &'a Nginx,
    worker: u32,
    connections: Vec<Http>,
    /// Whether this nginx has limits, or lets everything pass.
    has_limits: bool,
}

impl<'a> Client<'a> {
    pub fn new(nginx: &'a Nginx, has_limits: bool) -> Self {
        let connections = (0..WIDTH).map(|_| nginx.http()).collect();
        Self { nginx, worker: nginx.serving_pids()[0], connections, has_limits }
    }

    /// Sends so many volleys, and returns how many requests that were.
    pub fn fire(&mut self, volley: &Volley, volleys: usize) -> Result<usize, Stop> {
        let expected = if self.has_limits { volley.status } else { 200 };
        for n in 0..volleys {
            stop::check()?;
            let statuses = self.fire_once(volley.paths(n));
            // The first rejection of a key comes after the first request that passes.
            if n > 0 && statuses.iter().any(|status| *status != expected) {
                let what =
                    format!("{} was answered with {statuses:?}, not {expected}", volley.name);
                return Err(Stop::Failure(what));
            }
        }
        Ok(volleys * WIDTH)
    }

    /// Sends a request on each connection, and returns the statuses of the answers.
    fn fire_once(&mut self, paths: impl Iterator<Item = String>) -> Vec<u16> {
        let sleeps = || process_state(self.worker) == Some('S');
        wait_until(PATIENCE, sleeps, "a worker that waits for events");
        self.nginx.while_stopped(self.worker, || {
            for (http, path) in self.connections.iter_mut().zip(paths) {
                http.send("GET", &path, &[("Host", "bench")]);
            }
        });
        self.connections.iter_mut().map(|http| http.read_response().status).collect()
    }
}
