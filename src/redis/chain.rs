//! Parts that ask the same, in one command.
//!
//! Only the first of them stands in the queue of the connection. They are asked in the order in
//! which they came, and each is told what it would have been told alone.

use std::cell::Cell;
use std::ptr::NonNull;

use super::part::Part;

/// A part's place in a chain.
#[derive(Default)]
pub(super) struct Chained {
    previous: Cell<Option<NonNull<Part>>>,
    next: Cell<Option<NonNull<Part>>>,
    /// How many are asked before it, once that is said.
    index: Cell<u32>,
}

impl Part {
    /// Puts a part at the end of the chain whose last is this one.
    pub(super) fn append(&self, last: &Self) {
        last.chained().previous.set(Some(NonNull::from(self)));
        self.chained().next.set(Some(NonNull::from(last)));
        last.waits_with(self);
    }

    /// Takes itself out of its chain. Answers its neighbours.
    pub(super) fn unchain(&self) -> (Option<NonNull<Self>>, Option<NonNull<Self>>) {
        let (previous, next) = (self.chained().previous.take(), self.chained().next.take());
        if let Some(previous) = previous {
            Self::get(previous).chained().next.set(next);
        }
        if let Some(next) = next {
            Self::get(next).chained().previous.set(previous);
        }
        (previous, next)
    }

    /// This part, the first of a chain, and all after it. Each may be taken out meanwhile.
    pub(super) fn chain(&self) -> impl Iterator<Item = &Self> {
        let mut next = Some(NonNull::from(self));
        std::iter::from_fn(move || {
            let part = Self::get(next?);
            next = part.chained().next.get();
            Some(part)
        })
    }

    /// Numbers this part, the first of a chain, and all after it. Answers how many there are.
    pub(super) fn number_chain(&self) -> u32 {
        let mut count = 0u32;
        for part in self.chain() {
            part.chained().index.set(count);
            count = count.saturating_add(1);
        }
        count
    }

    /// How many were asked before it.
    pub(super) fn index(&self) -> u32 {
        self.chained().index.get()
    }
}
