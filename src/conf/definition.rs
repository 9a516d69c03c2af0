//! What names stand for.

use super::{Limit, Store};

/// Every name that is taken, and what was defined under it first.
#[derive(Default)]
pub(super) struct Definitions(Vec<Definition>);

struct Definition {
    name: &'static str,
    written: String,
    place: String,
    /// How the store is called, and the place of the limit that was bound to it.
    store: Option<(String, String)>,
}

impl Definitions {
    /// Notes what `limit` defines. Lines that share a name must define the same.
    pub(super) fn add(&mut self, limit: &Limit) -> Result<(), String> {
        let (name, written) = (limit.name(), limit.written());
        match self.0.iter().find(|definition| definition.name == name) {
            None => {
                let (written, place) = (written.to_owned(), limit.place().to_owned());
                self.0.push(Definition { name, written, place, store: None });
                Ok(())
            }
            Some(first) if first.written == written => Ok(()),
            Some(first) => Err(format!(
                "the limit \"{name}\" cannot be \"{written}\", as it is already defined as \"{}\" \
                 in {}; add \"name=\" to give this one a name of its own",
                first.written, first.place
            )),
        }
    }

    /// Every name that is taken.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|definition| definition.name)
    }

    /// Whether any limit keeps its counters anywhere.
    pub(super) fn are_bound(&self) -> bool {
        self.0.iter().any(|definition| definition.store.is_some())
    }

    /// How the store is called in which the limit of this name keeps its counters, once that is
    /// known.
    pub(super) fn store(&self, name: &str) -> Option<&str> {
        let definition = self.0.iter().find(|definition| definition.name == name)?;
        definition.store.as_ref().map(|(reference, _)| reference.as_str())
    }

    /// Notes where `limit` keeps its counters. All of a name must be in one store.
    pub(super) fn bind(&mut self, limit: &Limit, store: &Store) -> Result<(), String> {
        let (name, place) = (limit.name(), limit.place());
        let Some(definition) = self.0.iter_mut().find(|definition| definition.name == name) else {
            return Ok(());
        };
        let bound = || (store.reference().to_owned(), place.to_owned());
        match definition.store.get_or_insert_with(bound) {
            (reference, _) if reference == store.reference() => Ok(()),
            (_, first) => Err(format!(
                "the limit \"{name}\" of {place} has another store, {}, than in {first}; add \
                 \"name=\" to give it a name of its own, or set \"rate_limit_redis_pass\" at the \
                 level of the limit",
                store.shown()
            )),
        }
    }
}
