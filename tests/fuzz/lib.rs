//! Fuzz targets: what each does with any bytes, and what it asserts.
//!
//! A target is a function of its input and of nothing else, so an input that fails does so again.

mod admin;
mod client;
mod deny_cache;
mod directive;
mod fields;
mod input;
mod leases;
mod limit;
mod memory;
mod quota;
mod redirect;
mod resp;
mod sentinel;
mod shared;
mod slots;
mod state;
mod store;
mod table;
mod url;
mod words;

/// The most that a run may have allocated at one time, in bytes. The map of a cluster may be as long as 16 MiB, and
/// an input is much shorter.
const MOST_MEMORY: usize = 8 << 20;

/// A function that is given any bytes.
pub struct Target {
    /// The name, which is that of the corpus.
    pub name: &'static str,
    run: fn(&[u8]),
}

/// Every target.
pub const TARGETS: &[Target] = &[
    Target { name: "client", run: client::run },
    Target { name: "redirect", run: redirect::run },
    Target { name: "slots", run: slots::run },
    Target { name: "sentinel", run: sentinel::run },
    Target { name: "url", run: url::run },
    Target { name: "limit", run: limit::run },
    Target { name: "store", run: store::run },
    Target { name: "directive", run: directive::run },
    Target { name: "fields", run: fields::run },
    Target { name: "admin", run: admin::run },
    Target { name: "state", run: state::run },
    Target { name: "table", run: table::run },
    Target { name: "deny_cache", run: deny_cache::run },
    Target { name: "leases", run: leases::run },
];

impl Target {
    /// The target of this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        TARGETS.iter().find(|target| target.name == name)
    }

    /// Runs the target. It panics if something does not hold.
    pub fn run(&self, data: &[u8]) {
        let most = memory::most_allocated(|| (self.run)(data));
        assert!(most <= MOST_MEMORY, "{most} bytes were allocated at one time");
    }
}
