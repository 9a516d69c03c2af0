//! The names of limits, and the part that lines of one name share.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;

use rate_limit_core::admin::ManagedLimit;
use rate_limit_core::conf::Policy;
use rate_limit_core::conf::limit::LimitLine;
use rate_limit_core::limit::Quota;

use super::limit::LimitConf;
use super::store::Store;
use super::{BindError, ComplexValue};

/// The part that all lines of a limit share: those with its name. It is complete when all of the configuration is read.
#[derive(Default)]
pub(crate) struct Definition {
    /// How the first line defines the limit.
    written: String,
    /// The place of the first line.
    place: String,
    /// Whether a line has `settle`; known when all lines are.
    pub(super) is_settled: Cell<bool>,
    /// Whether charges may be given back: by a settlement, or because another limit, in another slot of a
    /// cluster, rejects the request.
    pub(super) is_refundable: Cell<bool>,
    /// Whether rejections by any line may come from the deny cache.
    pub(super) is_cached: Cell<bool>,
    /// How long leases last at most in the locations of its lines, in ms; 0: there are none.
    pub(super) lease: Cell<u64>,
}

impl Definition {
    /// The quota of a request: all lines of a limit keep what those with `settle` need.
    pub(super) fn corrected(&self, quota: Quota) -> Quota {
        if self.is_settled.get() { quota.with_settle() } else { quota }
    }

    /// A location with this policy has a line of the limit.
    pub(crate) fn note_policy(&self, policy: &Policy) {
        self.is_cached.set(self.is_cached.get() || policy.deny_cache);
        self.lease.set(self.lease.get().max(policy.lease));
    }
}

/// Every name, in the order of the configuration.
#[derive(Default)]
pub(super) struct Definitions {
    all: Vec<Known>,
    indices: HashMap<&'static str, usize>,
}

/// A name.
struct Known {
    name: &'static str,
    definition: Rc<Definition>,
    /// The line that was bound to a store first.
    bound: Option<Rc<LimitConf>>,
}

impl Definitions {
    /// The definition of the limit of a line at this place. Lines that share a name must define the same.
    pub(super) fn add(
        &mut self,
        line: &LimitLine<'static, ComplexValue>,
        place: &str,
    ) -> Result<Rc<Definition>, BindError> {
        let name = line.name;
        let definition = match self.indices.get(name).and_then(|index| self.all.get(*index)) {
            Some(known) => Rc::clone(&known.definition),
            None => {
                let (written, place) = (line.written.clone(), place.to_owned());
                let definition = Rc::new(Definition { written, place, ..Definition::default() });
                self.indices.insert(name, self.all.len());
                self.all.push(Known { name, definition: Rc::clone(&definition), bound: None });
                definition
            }
        };
        if definition.written != line.written {
            let (first, place) = (definition.written.clone(), definition.place.clone());
            return Err(BindError::Redefined { name, written: line.written.clone(), first, place });
        }
        definition.is_settled.set(definition.is_settled.get() || line.settle.is_some());
        Ok(definition)
    }

    /// Every name.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.all.iter().map(|known| known.name)
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
            let limit = known.bound.as_ref()?;
            Some(limit.managed(stores.get(limit.store()?)?))
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
