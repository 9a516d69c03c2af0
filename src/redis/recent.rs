//! Which questions are the latest about a key, as long as others can be put together with them.
//!
//! Those of the batch that is being gathered can: equal ones become one command. And those that
//! were sent as one, until they are answered: whose key is asked so often that several meet in one
//! batch waits for that answer, and then all that have come meanwhile are asked at once. So a busy
//! key takes one command in a round trip, however many ask.

use std::ptr::NonNull;

use super::part::Part;
use super::waiter::Waiter;

/// How many keys are remembered.
const PLACES: usize = 1_024;

/// The latest questions about keys. Each key has one place, which it loses to the next one for that
/// place: then what asks the same is just not put together.
pub(super) struct Recent {
    places: Box<[Option<Latest>; PLACES]>,
    batch: u32,
}

/// The latest question about a key.
#[derive(Clone, Copy)]
struct Latest {
    open: Open,
    /// `None` if nothing may be put together with it.
    part: Option<NonNull<Part>>,
}

/// Until when others can be put together with a question.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    /// Until this batch is sent.
    Batch(u32),
    /// Until it is answered.
    Answer,
}

impl Recent {
    pub(super) fn new() -> Self {
        Self { places: Box::new([None; PLACES]), batch: 0 }
    }

    /// Nothing of what there was is to be looked at any more.
    pub(super) fn clear(&mut self) {
        self.places.fill(None);
    }

    /// What was gathered is being sent.
    pub(super) fn next_batch(&mut self) {
        self.batch = self.batch.wrapping_add(1);
        if self.batch == 0 {
            // The numbers start over.
            self.clear();
        }
    }

    /// What `part` can be put together with: the latest question about its key, if it asks the same
    /// and others can still be put together with it.
    pub(super) fn same(&mut self, part: &Part) -> Option<NonNull<Part>> {
        let ([asked], true) = (part.asked(), part.is_repeatable()) else { return None };
        let gathered = Open::Batch(self.batch);
        let latest = self
            .place(asked.fingerprint())?
            .filter(|latest| latest.open == gathered || latest.open == Open::Answer)?;
        latest.part.filter(|latest| Part::get(*latest).asks_the_same(part))
    }

    /// `part`, which waits to be sent, is now the latest question about its keys.
    pub(super) fn note(&mut self, part: &Part) {
        let latest = part.is_repeatable().then(|| NonNull::from(part));
        self.set(part, Latest { open: Open::Batch(self.batch), part: latest });
    }

    /// The question of `waiter` has been sent, with those that were put together with it.
    pub(super) fn sent(&mut self, waiter: Waiter) {
        let Waiter::Part(first) = waiter else { return };
        let first = Part::get(first);
        let last = first.last_of_several();
        first.set_open(last.is_some());
        if let Some(last) = last {
            self.set(last, Latest { open: Open::Answer, part: Some(NonNull::from(last)) });
        }
    }

    /// The question of `waiter` has been answered, or there is nobody left who asked it.
    pub(super) fn answered(&mut self, waiter: Waiter) {
        let Waiter::Part(first) = waiter else { return };
        let first = Part::get(first);
        if first.is_open() {
            first.set_open(false);
            first.chain().last().into_iter().for_each(|last| self.replace(last, None));
        }
    }

    fn set(&mut self, part: &Part, latest: Latest) {
        for asked in part.asked() {
            if let Some(place) = self.place(asked.fingerprint()) {
                *place = Some(latest);
            }
        }
    }

    /// `part` goes, or another one comes behind it. If it is the latest about its key, the one
    /// that is given is that from now on.
    pub(super) fn replace(&mut self, part: &Part, by: Option<NonNull<Part>>) {
        let this = NonNull::from(part);
        for asked in part.asked() {
            if let Some(place) = self.place(asked.fingerprint())
                && let Some(latest) = place.as_mut().filter(|latest| latest.part == Some(this))
            {
                latest.part = by;
            }
        }
    }

    fn place(&mut self, key: u64) -> Option<&mut Option<Latest>> {
        self.places.get_mut(key as usize % PLACES)
    }
}
