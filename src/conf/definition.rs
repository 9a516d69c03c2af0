//! What names stand for.

use super::Limit;

/// Every name that is taken, and what was defined under it first.
#[derive(Default)]
pub(super) struct Definitions(Vec<Definition>);

struct Definition {
    name: String,
    written: String,
    store: Option<String>,
    file: String,
    line: usize,
}

impl Definitions {
    /// Notes what `limit` defines. Lines that share a name must define the same.
    pub(super) fn add(&mut self, limit: &Limit, file: String, line: usize) -> Result<(), String> {
        let written = limit.written();
        match self.0.iter().find(|definition| definition.name == limit.name()) {
            None => {
                let name = limit.name().to_owned();
                self.0.push(Definition { name, written, store: None, file, line });
                Ok(())
            }
            Some(first) if first.written == written => Ok(()),
            Some(first) => Err(first.conflict(&written)),
        }
    }

    /// Notes where `limit` keeps its counters. They all must be in one store.
    pub(super) fn bind(&mut self, limit: &Limit, url: &str) -> Result<(), String> {
        let name = limit.name();
        let Some(definition) = self.0.iter_mut().find(|definition| definition.name == name) else {
            return Ok(());
        };
        match definition.store.get_or_insert_with(|| url.to_owned()) {
            store if store == url => Ok(()),
            _ => Err(definition.conflict("another store")),
        }
    }
}

impl Definition {
    fn conflict(&self, other: &str) -> String {
        let Self { name, written, file, line, .. } = self;
        format!(
            "the limit \"{name}\" is already defined as \"{written}\" in {file}:{line} and cannot \
             have {other} too; add \"name=\" to give this one a name of its own"
        )
    }
}
