//! Memory as workers share it: words, which are seen as entries of a table.

use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

use rate_limit_core::entry::ClientBucket;
use rate_limit_core::lease::table::LeaseBucket;

use crate::input::Input;

/// Words, aligned for any entry.
#[derive(Default)]
#[repr(C, align(128))]
struct Line([AtomicU64; 16]);

pub struct Shared(Vec<Line>);

/// A type that consists of atomic words and padding, and has no invalid values.
///
/// # Safety
///
/// The type must be one, and must not need another alignment than [`Line`] has.
pub unsafe trait Words {}

// SAFETY: an entry is aligned to 64 bytes and consists of atomic words.
unsafe impl Words for ClientBucket {}
// SAFETY: an entry is aligned to 128 bytes and consists of atomic words.
unsafe impl Words for LeaseBucket {}

impl Shared {
    /// Memory of zeros for so many buckets.
    pub fn new<T: Words>(buckets: usize) -> Self {
        let lines = (buckets * size_of::<T>()).div_ceil(size_of::<Line>());
        Self(std::iter::repeat_with(Line::default).take(lines).collect())
    }

    /// All of it, as buckets.
    pub fn buckets<T: Words>(&self) -> &[T] {
        let count = size_of_val(self.0.as_slice()) / size_of::<T>();
        // SAFETY: the memory is aligned for `T`, is as long as so many of them, and is initialized. By the contract
        // of `Words` it holds valid ones. What changes in it is atomic.
        unsafe { slice::from_raw_parts(self.0.as_ptr().cast(), count) }
    }

    /// Sets a word.
    pub fn corrupt(&self, input: &mut Input<'_>) {
        let (at, word) = (usize::from(input.byte()), input.number());
        if let Some(place) = self.0.iter().flat_map(|line| &line.0).nth(at) {
            place.store(word, Ordering::Relaxed);
        }
    }
}
