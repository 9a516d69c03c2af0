//! What is given back to limits that have been charged for a request that was rejected.

use std::ptr::NonNull;

use super::part::{Owner, Part};
use super::pending::Asked;

/// A part that gives back what another one has spent. It owns all that it needs: the request may
/// be gone before it is answered.
pub(super) struct Gift {
    part: Option<Part>,
    asked: Vec<Asked>,
    /// The keys that the questions refer to.
    keys: Vec<Box<[u8]>>,
}

impl Gift {
    /// Gives back what `part` has spent.
    pub(super) fn give(part: &Part) {
        let keys: Vec<Box<[u8]>> =
            part.asked().iter().map(|asked| asked.question.key.into()).collect();
        let gift = Box::leak(Box::new(Self { part: None, asked: Vec::new(), keys }));
        let pointer = NonNull::from(&mut *gift);
        gift.asked = part.asked().iter().zip(&gift.keys).map(|(a, key)| a.with_key(key)).collect();
        // They stay where they are until the gift is discarded, after its part is settled.
        let asked = gift.asked.as_slice();
        gift.part
            .insert(Part::new(asked, part.slot(), part.deployment()))
            .ask(Owner::Gift(pointer));
    }
}
