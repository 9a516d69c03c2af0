//! The keys of a server, and until when they are kept.

use std::collections::BTreeMap;
use std::rc::Rc;

use rate_limit_core::algorithm;

/// The name of a key.
pub type Key = Box<[u8]>;

/// The value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A string: packed numbers.
    Packed(Box<[u8]>),
    /// A list: the entries of a sliding log, and as its script has written them, if it runs.
    Log(algorithm::Stored, List),
}

/// The entries of a list.
pub type List = Rc<Vec<Vec<u8>>>;

/// A value, and the Unix time in µs from which on it is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub value: Value,
    pub gone_at: u64,
}

/// A change of one key: a new value, or none.
#[derive(Clone, Debug)]
pub struct Write {
    pub key: Key,
    pub stored: Option<Stored>,
}

/// Keys in order.
#[derive(Clone, Debug, Default)]
pub struct Database {
    entries: BTreeMap<Key, Stored>,
}

impl Database {
    /// The value of a key that is not gone at `now`, a Unix time in µs.
    pub fn stored(&self, key: &[u8], now: u64) -> Option<&Stored> {
        self.entries.get(key).filter(|stored| stored.gone_at > now)
    }

    /// The value of such a key.
    pub fn get(&self, key: &[u8], now: u64) -> Option<&Value> {
        self.stored(key, now).map(|stored| &stored.value)
    }

    pub fn apply(&mut self, write: Write) {
        match write.stored {
            Some(stored) => drop(self.entries.insert(write.key, stored)),
            None => drop(self.entries.remove(&write.key)),
        }
    }

    /// Removes a key, with what it holds.
    pub fn take(&mut self, key: &[u8]) -> Option<Stored> {
        self.entries.remove(key)
    }

    /// Forgets the keys that are gone.
    pub fn expire(&mut self, now: u64) {
        self.entries.retain(|_, stored| stored.gone_at > now);
    }

    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.entries.keys()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_gone_when_it_expires() {
        let mut database = Database::default();
        let stored = Stored { value: Value::Packed([7; 24].into()), gone_at: 5_000 };
        database.apply(Write { key: b"k".as_slice().into(), stored: Some(stored.clone()) });
        assert_eq!(database.get(b"k", 4_999), Some(&stored.value));
        assert_eq!(database.get(b"k", 5_000), None);
        database.expire(4_999);
        assert_eq!(database.keys().count(), 1);
        database.expire(5_000);
        assert_eq!(database.take(b"k"), None);
    }
}
