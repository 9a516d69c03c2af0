//! What is kept for a client, in the two forms in which it is kept: as bytes in Redis, and as words
//! in memory that knows no types.

pub(super) mod bytes;
mod words;
