//! How a worker sees a node, in one word.

/// How a worker sees a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct View {
    /// The worker's process.
    pub(crate) pid: u32,
    /// Whether the node is one of its store.
    pub(crate) is_known: bool,
    /// How many of its connections can be used.
    pub(crate) ready: u8,
    /// How many are being made.
    pub(crate) connecting: u8,
    /// Whether its breaker is open.
    pub(crate) is_open: bool,
}

impl View {
    /// The lower half of the process ID is enough to distinguish a worker from the one that it has
    /// replaced.
    pub(super) fn to_word(self) -> u32 {
        let [low, high, ..] = self.pid.to_le_bytes();
        let with = |count: u8, flag| count.min(LARGEST_COUNT) | if flag { FLAG } else { 0 };
        let [ready, connecting] =
            [with(self.ready, self.is_known), with(self.connecting, self.is_open)];
        u32::from_le_bytes([low, high, ready, connecting])
    }

    /// The view of this process, if the word is one of it.
    pub(super) fn of_word(word: u32, pid: u32) -> Option<Self> {
        let [_, _, ready, connecting] = word.to_le_bytes();
        let [is_known, is_open] = [ready, connecting].map(|byte| byte & FLAG != 0);
        let [ready, connecting] = [ready, connecting].map(|byte| byte & LARGEST_COUNT);
        let view = Self { pid, is_known, ready, connecting, is_open };
        (view.to_word() == word).then_some(view)
    }
}

/// A worker has at most 64 connections to a node, so there is a bit left in the byte of a count.
const LARGEST_COUNT: u8 = 0x7f;
const FLAG: u8 = 0x80;
