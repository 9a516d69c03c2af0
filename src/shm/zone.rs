//! A zone of shared memory, as NGINX makes it. All that is free of it is one block.

use std::hint::spin_loop;
use std::ptr::NonNull;
use std::thread::yield_now;

use ngx::core::Status;
use ngx::ffi::{
    ngx_int_t, ngx_pagesize, ngx_pid_t, ngx_shared_memory_add, ngx_shm_zone_init_pt,
    ngx_shm_zone_t, ngx_shmtx_force_unlock, ngx_shmtx_t, ngx_shmtx_trylock, ngx_shmtx_unlock,
    ngx_slab_alloc, ngx_slab_pool_t, ngx_str_t,
};

use super::worker::may_be_living;
use crate::conf::MainConf;
use crate::nginx::Conf;

/// A zone that is mapped, and stays so.
#[derive(Clone, Copy)]
pub(super) struct Zone(NonNull<ngx_slab_pool_t>);

/// Adds a zone to the configuration that is being read. NGINX calls `on_mapped` once it is mapped, which is to call
/// [`Zone::on_mapped`]. `None` if NGINX cannot add it.
pub(super) fn add(
    cf: &mut Conf,
    name: &'static [u8],
    tag: &'static u8,
    size: usize,
    on_mapped: ngx_shm_zone_init_pt,
) -> Option<()> {
    let mut name = ngx_str_t { data: name.as_ptr().cast_mut(), len: name.len() };
    let conf = cf.main_pointer()?;
    // SAFETY: the name and the tag, of which NGINX keeps the addresses, are static. The data of the zone is our configuration
    // of `http`, which lives as long as the zone.
    unsafe {
        let tag = std::ptr::from_ref(tag).cast_mut().cast();
        let zone = ngx_shared_memory_add(cf.as_ptr(), &mut name, size, tag).as_mut()?;
        zone.init = on_mapped;
        zone.data = conf.as_ptr().cast();
    }
    Some(())
}

impl Zone {
    /// Gives a zone that is mapped to the configuration, if `open` says so.
    ///
    /// # Safety
    /// `zone` must be what NGINX passes to a callback of [`add`].
    pub(super) unsafe fn on_mapped(
        zone: *mut ngx_shm_zone_t,
        open: impl FnOnce(&MainConf, Self) -> bool,
    ) -> ngx_int_t {
        // SAFETY: the caller passes the zone of a callback. At the start of a zone is its pool, and the data is what `add` gave.
        let (conf, pool) =
            unsafe { (&*(*zone).data.cast::<MainConf>(), NonNull::new((*zone).shm.addr.cast())) };
        match pool {
            Some(pool) if open(conf, Self(pool)) => Status::NGX_OK.0,
            _ => Status::NGX_ERROR.0,
        }
    }

    /// All free memory as one block, up to the end of the zone: where it starts and its size. It is allocated once, and
    /// found again after a reload.
    ///
    /// # Safety
    /// If the zone is new nobody else must use it.
    pub(super) unsafe fn block(self) -> Option<(NonNull<u8>, usize)> {
        // SAFETY: if the zone is new, nobody else uses it, by contract. The pool is mapped.
        unsafe {
            let pool = self.0.as_ptr();
            if (*pool).data.is_null() {
                (*pool).data = ngx_slab_alloc(pool, (*pool).pfree.checked_mul(ngx_pagesize)?);
            }
            let start = NonNull::new((*pool).data)?.cast::<u8>();
            Some((start, (*pool).end.offset_from(start.as_ptr()).unsigned_abs()))
        }
    }

    /// The size of the zone in bytes.
    pub(super) fn size(self) -> usize {
        // SAFETY: the pool is at the start of the zone, and stays mapped. Its end does not change.
        unsafe { (*self.0.as_ptr()).end.offset_from(self.0.as_ptr().cast()).unsigned_abs() }
    }

    /// Runs `act` under the lock of the zone. It must not panic or wait.
    pub(super) fn locked<T>(self, act: impl FnOnce() -> T) -> T {
        // SAFETY: the pool is mapped, and its mutex is made by NGINX. It is not held yet: nothing
        // that holds it comes here again.
        unsafe {
            let mutex = &raw mut (*self.0.as_ptr()).mutex;
            lock(mutex);
            let result = act();
            ngx_shmtx_unlock(mutex);
            result
        }
    }
}

/// How often a lock is tried before its owner is looked at.
const ATTEMPTS: usize = 1_000;

/// Locks a mutex. What a process that died has locked NGINX unlocks in the zones of its newest configuration, but not in
/// those that a reload has replaced, which old workers still use: that is done here.
///
/// # Safety
/// It must be one that NGINX has made, and this process must not hold it.
unsafe fn lock(mutex: *mut ngx_shmtx_t) {
    // SAFETY: NGINX has made the mutex, by contract. Its word is the process that holds it, or 0.
    unsafe {
        loop {
            for _ in 0..ATTEMPTS {
                if ngx_shmtx_trylock(mutex) != 0 {
                    return;
                }
                spin_loop();
            }
            let owner = (*mutex).lock.read_volatile();
            if owner != 0 && !u32::try_from(owner).is_ok_and(may_be_living) {
                ngx_shmtx_force_unlock(mutex, owner as ngx_pid_t);
            }
            yield_now();
        }
    }
}
