//! How often a request takes memory from the heap.

use harness::stop::Stop;
use harness::{Library, allocations as allocations_of};

use crate::results::Record;
use crate::servers::{Servers, start_deciding};
use crate::volley::{Client, VOLLEYS};

/// Volleys until buffers and tables have their size.
const WARM_UP: usize = 64;

/// Volleys that are counted.
const COUNTED: usize = 64;

/// The allocations of each request of each load, once it is warm.
pub fn allocations(servers: &Servers, variant: &str, directives: &str) -> Result<Record, Stop> {
    let library = Library::counted_blocks();
    let redis = servers.redis();
    let has_limits = variant == "module";
    let conf = match has_limits {
        true => servers.module_on(&redis).http(directives),
        false => servers.none(),
    };
    let conf = conf.single().env("LD_PRELOAD", library.path());
    let nginx = if has_limits { start_deciding(&conf)? } else { conf.start() };
    let worker = nginx.serving_pids()[0];
    let mut client = Client::new(&nginx, has_limits);
    let mut record = Record::new();
    for volley in &VOLLEYS {
        client.fire(volley, WARM_UP)?;
        let before = allocations_of(worker);
        let requests = client.fire(volley, COUNTED)?;
        let allocations = (allocations_of(worker) - before) as f64;
        record.insert(volley.name, allocations / requests as f64);
    }
    Ok(record)
}
