//! The time, finer than NGINX keeps it.

/// µs of the monotonic clock, which all processes of a machine share.
pub(crate) fn monotonic_micros() -> u64 {
    micros(libc::CLOCK_MONOTONIC)
}

/// µs since the Unix epoch.
pub(crate) fn unix_micros() -> u64 {
    micros(libc::CLOCK_REALTIME)
}

fn micros(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is valid. Reading a clock that every system has does not fail.
    unsafe { libc::clock_gettime(clock, &mut time) };
    let (seconds, nanos) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
    seconds.saturating_mul(1_000_000).saturating_add(nanos / 1_000)
}
