//! The names of limits.

use std::collections::HashMap;
use std::rc::Rc;

use rate_limit_core::admin::ManagedLimit;
use rate_limit_core::conf::Policy;
use rate_limit_core::rate::MILLISECOND;
use rate_limit_core::request::ConfiguredLimit as _;

use super::BindError;
use super::limit::{Corrections, LimitConf};
use super::store::Store;

/// Every name, and its first definition.
#[derive(Default)]
pub(super) struct Definitions {
    /// In the order of the configuration.
    all: Vec<Definition>,
    indices: HashMap<&'static str, usize>,
}

struct Definition {
    name: &'static str,
    written: String,
    place: String,
    store: Option<Binding>,
    corrections: Rc<Corrections>,
    /// Whether rejections by any line may come from the deny cache.
    is_cached: bool,
    /// How long leases last at most in the locations of its lines, in ms; 0: there are none.
    lease: u64,
}

/// The store of a name, and the limit that was bound to it first.
struct Binding {
    reference: String,
    /// The reference without the password.
    shown: String,
    /// The place of the limit.
    place: String,
    limit: Rc<LimitConf>,
}

impl Definitions {
    fn find(&self, name: &str) -> Option<&Definition> {
        self.all.get(*self.indices.get(name)?)
    }

    fn find_mut(&mut self, name: &str) -> Option<&mut Definition> {
        self.all.get_mut(*self.indices.get(name)?)
    }

    /// Adds the definition of `limit`. Lines that share a name must define the same.
    pub(super) fn add(&mut self, limit: &LimitConf) -> Result<(), BindError> {
        let (name, written) = (limit.name(), limit.line().written.as_str());
        match self.find(name) {
            None => {
                let (written, place) = (written.to_owned(), limit.place().to_owned());
                let corrections = Rc::<Corrections>::default();
                corrections.is_settled.set(limit.settles());
                let (store, is_cached, lease) = (None, false, 0);
                self.indices.insert(name, self.all.len());
                self.all.push(Definition {
                    name,
                    written,
                    place,
                    store,
                    corrections,
                    is_cached,
                    lease,
                });
                Ok(())
            }
            Some(first) if first.written == written => {
                first
                    .corrections
                    .is_settled
                    .set(first.corrections.is_settled.get() || limit.settles());
                Ok(())
            }
            Some(first) => Err(BindError::Redefined {
                name,
                written: written.to_owned(),
                first: first.written.clone(),
                place: first.place.clone(),
            }),
        }
    }

    /// Every name.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.all.iter().map(|definition| definition.name)
    }

    /// Whether any limit is bound to a store.
    pub(super) fn are_bound(&self) -> bool {
        self.all.iter().any(|definition| definition.store.is_some())
    }

    /// The reference of the store of the limit of this name, once it is bound.
    pub(super) fn store(&self, name: &str) -> Option<&str> {
        self.find(name)?.store.as_ref().map(|store| store.reference.as_str())
    }

    /// A location with this policy has a line of `limit`.
    pub(super) fn note_policy(&mut self, limit: &LimitConf, policy: &Policy) {
        if let Some(definition) = self.find_mut(limit.name()) {
            definition.is_cached |= policy.deny_cache;
            definition.lease = definition.lease.max(policy.lease);
        }
    }

    /// The limits that are bound to a store, as the admin interface knows them.
    pub(super) fn managed(&self) -> impl Iterator<Item = ManagedLimit<'_>> {
        self.all.iter().filter_map(|definition| {
            let Binding { limit, shown, .. } = definition.store.as_ref()?;
            let lease = definition.lease.saturating_mul(MILLISECOND);
            Some(limit.managed(shown, definition.is_cached, lease))
        })
    }

    /// The limit of this name, if it is bound to a store.
    pub(super) fn limit(&self, name: &str) -> Option<&LimitConf> {
        self.find(name)?.store.as_ref().map(|store| &*store.limit)
    }

    /// The corrections of the limit of this name.
    pub(super) fn corrections(&self, name: &str) -> Rc<Corrections> {
        self.find(name).map_or_else(Rc::default, |definition| Rc::clone(&definition.corrections))
    }

    /// Binds `limit` to a store. All limits of a name must have one store.
    pub(super) fn bind(&mut self, limit: &Rc<LimitConf>, store: &Store) -> Result<(), BindError> {
        let (name, place) = (limit.name(), limit.place());
        let Some(definition) = self.find_mut(name) else { return Ok(()) };
        let bound = || Binding {
            reference: store.reference().to_owned(),
            shown: store.shown().to_owned(),
            place: place.to_owned(),
            limit: Rc::clone(limit),
        };
        let first = definition.store.get_or_insert_with(bound);
        if first.reference == store.reference() {
            return Ok(());
        }
        Err(BindError::Rebound {
            name,
            place: place.to_owned(),
            store: store.shown().to_owned(),
            other: first.shown.clone(),
            first: first.place.clone(),
        })
    }
}
