//! Which questions of the batch that is being gathered are the latest about a key.

use std::ptr::NonNull;

use super::part::Part;

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
    batch: u32,
    /// `None` if nothing may be put together with it.
    part: Option<NonNull<Part>>,
}

impl Recent {
    pub(super) fn new() -> Self {
        Self { places: Box::new([None; PLACES]), batch: 0 }
    }

    /// What was gathered has been sent, or will not be: it is not to be looked at any more.
    pub(super) fn next_batch(&mut self) {
        self.batch = self.batch.wrapping_add(1);
        if self.batch == 0 {
            // The numbers start over.
            self.places.fill(None);
        }
    }

    /// What `part` can be put together with: the latest question about its key, if it asks the same
    /// and is not sent yet.
    pub(super) fn same(&mut self, part: &Part) -> Option<NonNull<Part>> {
        let ([asked], true) = (part.asked(), part.is_repeatable()) else { return None };
        let batch = self.batch;
        let latest = self.place(asked.fingerprint())?.filter(|latest| latest.batch == batch)?;
        latest.part.filter(|latest| Part::get(*latest).asks_the_same(part))
    }

    /// `part`, which waits to be sent, is now the latest question about its keys.
    pub(super) fn note(&mut self, part: &Part) {
        let (batch, repeatable) = (self.batch, part.is_repeatable());
        for asked in part.asked() {
            let latest = Latest { batch, part: repeatable.then(|| NonNull::from(part)) };
            if let Some(place) = self.place(asked.fingerprint()) {
                *place = Some(latest);
            }
        }
    }

    /// `part` goes. If it is the latest about its key, the one `before` it is the latest again.
    pub(super) fn forget(&mut self, part: &Part, before: Option<NonNull<Part>>) {
        let this = NonNull::from(part);
        for asked in part.asked() {
            if let Some(place) = self.place(asked.fingerprint())
                && let Some(latest) = place.as_mut().filter(|latest| latest.part == Some(this))
            {
                latest.part = before;
            }
        }
    }

    fn place(&mut self, key: u64) -> Option<&mut Option<Latest>> {
        self.places.get_mut(key as usize % PLACES)
    }
}
