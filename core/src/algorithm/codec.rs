//! The two forms of what is kept for a client: bytes in Redis, and words in untyped memory.

pub(super) mod bytes;
mod words;
