//! The names of limits.

use std::collections::HashMap;
use std::rc::Rc;

use rate_limit_core::admin::ManagedLimit;
use rate_limit_core::conf::limit::{Definition, LimitLine};

use super::limit::LimitConf;
use super::store::Store;
use super::{BindError, ComplexValue};

/// Every name, in the order of the configuration.
#[derive(Default)]
pub(super) struct Definitions {
    all: Vec<Known>,
    indices: HashMap<&'static str, usize>,
}

/// A name.
struct Known {
    definition: Rc<Definition<'static>>,
    /// The place of the first line.
    place: String,
    /// The line that was bound to a store first.
    bound: Option<Rc<LimitConf>>,
}

impl Definitions {
    /// The line at this place, with the definition that all lines of its limit share: they must define the same.
    pub(super) fn add(
        &mut self,
        line: LimitLine<'static, ComplexValue>,
        place: &str,
    ) -> Result<LimitLine<'static, ComplexValue>, BindError> {
        let name = line.definition.name;
        let index = *self.indices.entry(name).or_insert(self.all.len());
        if index == self.all.len() {
            let definition = Rc::clone(&line.definition);
            self.all.push(Known { definition, place: place.to_owned(), bound: None });
        }
        let Some(Known { definition, place, .. }) = self.all.get(index) else { return Ok(line) };
        if definition.written != line.definition.written {
            let (written, first) = (line.definition.written.clone(), definition.written.clone());
            return Err(BindError::Redefined { name, written, first, place: place.clone() });
        }
        definition.is_settled.set(definition.is_settled.get() || line.settle.is_some());
        Ok(LimitLine { definition: Rc::clone(definition), ..line })
    }

    /// Every name.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.all.iter().map(|known| known.definition.name)
    }

    /// Whether any limit is bound to a store.
    pub(super) fn are_bound(&self) -> bool {
        self.all.iter().any(|known| known.bound.is_some())
    }

    /// The limits that are bound to one of these stores, as the admin interface knows them.
    pub(super) fn managed<'a>(
        &'a self,
        stores: &'a [Store],
    ) -> impl Iterator<Item = ManagedLimit<'a>> {
        self.all.iter().filter_map(|known| {
            let store = stores.get(known.bound.as_ref()?.store()?)?.shown();
            Some(ManagedLimit { definition: &known.definition, store })
        })
    }

    /// The limit of this name, if it is bound to a store.
    pub(super) fn limit(&self, name: &str) -> Option<&LimitConf> {
        self.all.get(*self.indices.get(name)?)?.bound.as_deref()
    }

    /// Notes that `limit` is about to be bound to the store of this index. All limits of a name must have one store.
    pub(super) fn bind(
        &mut self,
        limit: &Rc<LimitConf>,
        index: usize,
        stores: &[Store],
    ) -> Result<(), BindError> {
        let name = limit.name();
        let known = self.indices.get(name).and_then(|index| self.all.get_mut(*index));
        let Some(known) = known else { return Ok(()) };
        let first = known.bound.get_or_insert_with(|| Rc::clone(limit));
        match first.store() {
            Some(other) if other != index => {
                let shown = |index| stores.get(index).map(|store: &Store| store.shown().to_owned());
                Err(BindError::Rebound {
                    name,
                    place: limit.place.clone(),
                    store: shown(index).unwrap_or_default(),
                    other: shown(other).unwrap_or_default(),
                    first: first.place.clone(),
                })
            }
            _ => Ok(()),
        }
    }
}
