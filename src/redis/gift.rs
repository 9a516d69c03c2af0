//! What is given back to a limit that has been charged for a request that was rejected.

use std::ptr::NonNull;
use std::slice;

use super::part::{Owner, Part};
use super::pending::Asked;

/// A part that gives back what one limit has spent. It owns all that it needs: the request may be
/// gone before it is answered.
pub(super) struct Gift {
    key: Box<[u8]>,
    asked: Option<Asked>,
    part: Option<Part>,
}

impl Gift {
    /// Gives back what `asked`, one of the limits of `spent`, has spent.
    pub(super) fn give(asked: &Asked, spent: &Part) {
        let gift = Self { key: asked.question.key.into(), asked: None, part: None };
        let owner = NonNull::from(Box::leak(Box::new(gift)));
        // SAFETY: it has just been made, and is freed when its part is settled: until then what
        // refers to its fields stays where it is.
        let gift = unsafe { &mut *owner.as_ptr() };
        let asked = gift.asked.insert(asked.with_key(&gift.key));
        let part = Part::new(slice::from_ref(asked), spent.slot(), spent.deployment());
        gift.part.insert(part).ask(Owner::Gift(owner));
    }
}
