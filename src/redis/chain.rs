//! Parts that ask the same, in one command.
//!
//! Only the first of them stands in the queue of the connection. They are asked in the order in
//! which they came, and each is told what it would have been told alone. Those that come when the
//! command has been sent wait at the end of the chain for the next one.

use std::cell::Cell;
use std::ptr::NonNull;

use super::part::Part;

/// A part's place in a chain.
#[derive(Default)]
pub(super) struct Chained {
    previous: Cell<Option<NonNull<Part>>>,
    next: Cell<Option<NonNull<Part>>>,
    /// How many are asked before it, if it is asked.
    index: Cell<Option<u32>>,
    /// Of the first one: others may come behind it until it is answered.
    open: Cell<bool>,
}

impl Part {
    /// Puts a part at the end of the chain whose last is this one.
    pub(super) fn append(&self, last: &Self) {
        last.chained().previous.set(Some(NonNull::from(self)));
        self.chained().next.set(Some(NonNull::from(last)));
        last.chained().index.set(None);
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

    /// The last part of the chain that starts here, if there is more than one.
    pub(super) fn last_of_several(&self) -> Option<&Self> {
        self.chain().skip(1).last()
    }

    /// Numbers this part, the first of a chain, and all after it. Answers how many there are.
    pub(super) fn number_chain(&self) -> u32 {
        let mut count = 0u32;
        for part in self.chain() {
            part.chained().index.set(Some(count));
            count = count.saturating_add(1);
        }
        count
    }

    /// How many are asked before it, if it is asked.
    pub(super) fn index(&self) -> Option<u32> {
        self.chained().index.get()
    }

    /// Whether others may come behind the chain that starts here until it is answered.
    pub(super) fn is_open(&self) -> bool {
        self.chained().open.get()
    }

    /// Says whether others may come behind the chain that starts here until it is answered.
    pub(super) fn set_open(&self, open: bool) {
        self.chained().open.set(open);
    }

    /// Cuts the chain that starts here, which has been sent, into those that are asked and those
    /// that came later.
    pub(super) fn split(&self) -> (Option<&Self>, Option<&Self>) {
        let Some(later) = self.chain().find(|part| part.index().is_none()) else {
            return (Some(self), None);
        };
        match later.chained().previous.take() {
            None => (None, Some(later)),
            Some(last) => {
                Self::get(last).chained().next.set(None);
                (Some(self), Some(later))
            }
        }
    }
}
