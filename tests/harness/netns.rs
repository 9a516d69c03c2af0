//! Another machine: a network namespace, and a network that leads to it.
//!
//! The network is a pair of TUN devices. What is sent on one is read by the test, which writes it to
//! the other, late, or not at all: so it needs no `tc netem`, which not every kernel has. Namespace
//! and devices belong to this process and have no other owner: they end with it, however it ends.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A network namespace, which lives as long as a clone of this value or a process within.
#[derive(Clone)]
pub struct Namespace(Arc<File>);

impl Namespace {
    fn new() -> io::Result<Self> {
        // A namespace is a thread's own, so it takes a thread to make one.
        let made = || {
            // SAFETY: a system call without pointers.
            check(unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
            File::open("/proc/thread-self/ns/net")
        };
        std::thread::scope(|scope| scope.spawn(made).join())
            .expect("no panic")
            .map(Arc::new)
            .map(Self)
    }

    /// Has `command` run within.
    pub fn enter(&self, command: &mut Command) {
        let this = self.clone();
        // SAFETY: between fork and exec, `join` makes a system call and neither allocates nor locks.
        unsafe { command.pre_exec(move || this.join()) };
    }

    /// Does `work` within.
    fn within<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        let work = || self.join().and_then(|()| work());
        std::thread::scope(|scope| scope.spawn(work).join()).expect("no panic")
    }

    /// Moves this thread, or this process if it has but one, into the namespace.
    fn join(&self) -> io::Result<()> {
        // SAFETY: the descriptor is open, and a namespace's.
        check(unsafe { libc::setns(self.0.as_raw_fd(), libc::CLONE_NEWNET) })
    }
}

/// Held while the devices of this machine change, or while none of them may.
static DEVICES: RwLock<()> = RwLock::new(());

/// Waits until no network comes or goes, and keeps others from that: a browser aborts its requests then.
pub fn unchanged() -> RwLockReadGuard<'static, ()> {
    DEVICES.read().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until a network may come or go.
pub fn change() -> RwLockWriteGuard<'static, ()> {
    DEVICES.write().unwrap_or_else(PoisonError::into_inner)
}

/// A network between this machine and another one: what is read from one end is to be written to
/// the other.
pub struct Network {
    /// The device here.
    pub near: File,
    /// The device there.
    pub far: File,
    /// The address there.
    pub there: Ipv4Addr,
    /// The machine there.
    pub namespace: Namespace,
}

impl Network {
    /// A network of its own, while there may be a [`change`]. Needs root and `/dev/net/tun`.
    pub fn new() -> io::Result<Self> {
        let namespace = Namespace::new()?;
        let (number, near) = free_device()?;
        let [here, there] = addresses(number);
        set_up(&device_name(number), here, there)?;
        let far = namespace.within(|| {
            let far = device("far")?;
            set_up("far", there, here)?;
            Ok(far)
        })?;
        Ok(Self { near, far, there, namespace })
    }
}

/// How many networks there may be at the same time.
const NETWORKS: u32 = 1 << 15;

/// A device that no other test has, with the number that its name and addresses are made of.
fn free_device() -> io::Result<(u32, File)> {
    for number in 0..NETWORKS {
        match device(&device_name(number)) {
            Err(error) if error.kind() == ErrorKind::ResourceBusy => (),
            made => return made.map(|device| (number, device)),
        }
    }
    Err(ErrorKind::ResourceBusy.into())
}

fn device_name(number: u32) -> String {
    format!("test{number}")
}

/// The addresses here and there, of 198.18.0.0/15, which is meant for tests of networks.
fn addresses(number: u32) -> [Ipv4Addr; 2] {
    let base = u32::from(Ipv4Addr::new(198, 18, 0, 0)) + 4 * number;
    [1, 2].map(|last| Ipv4Addr::from(base + last))
}

/// Makes a device for IP packets, which goes with the file.
fn device(name: &str) -> io::Result<File> {
    let file = File::options().read(true).write(true).open("/dev/net/tun")?;
    // SAFETY: all zeroes is a request without name and flags.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the descriptor is open, and the request is what this call takes.
    check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &request) })?;
    Ok(file)
}

fn set_up(device: &str, address: Ipv4Addr, peer: Ipv4Addr) -> io::Result<()> {
    let (address, peer) = (address.to_string(), peer.to_string());
    ip(&["address", "add", &address, "peer", &peer, "dev", device])?;
    ip(&["link", "set", device, "up"])
}

/// Runs `ip`, in the namespace of this thread.
fn ip(arguments: &[&str]) -> io::Result<()> {
    let output = Command::new("ip").args(arguments).output()?;
    let message = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(io::Error::other(message.into_owned())) }
}

fn check(status: libc::c_int) -> io::Result<()> {
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
