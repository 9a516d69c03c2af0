//! The names of limits: each stands for one definition and one store.

use std::collections::HashMap;
use std::rc::Rc;

use super::{Definition, LimitLine};

/// Every name, in the order of the configuration. `L` is what is kept of the line that was bound to a store first.
#[derive(Debug)]
pub struct Definitions<'a, L> {
    all: Vec<Known<'a, L>>,
    indices: HashMap<&'a str, usize>,
}

/// A name.
#[derive(Debug)]
struct Known<'a, L> {
    definition: Rc<Definition<'a>>,
    /// The place of the first line.
    place: String,
    bound: Option<BoundLine<L>>,
}

/// The line of a name that was bound to a store first.
#[derive(Debug)]
pub struct BoundLine<L> {
    /// The line.
    pub line: L,
    /// The place of the line: file and number.
    pub place: String,
    /// The index of the store.
    pub store: usize,
}

impl<L> Default for Definitions<'_, L> {
    fn default() -> Self {
        Self { all: Vec::new(), indices: HashMap::new() }
    }
}

impl<'a, L> Definitions<'a, L> {
    /// The line at this place, with the definition that all lines of its limit share: they must define the same.
    pub fn add<V>(
        &mut self,
        line: LimitLine<'a, V>,
        place: &str,
    ) -> Result<LimitLine<'a, V>, NameError> {
        let name = line.definition.name;
        let index = *self.indices.entry(name).or_insert(self.all.len());
        if index == self.all.len() {
            let definition = Rc::clone(&line.definition);
            self.all.push(Known { definition, place: place.to_owned(), bound: None });
        }
        let Some(Known { definition, place, .. }) = self.all.get(index) else { return Ok(line) };
        if definition.written != line.definition.written {
            let [written, first] = [&line.definition, definition].map(|it| it.written.clone());
            let (name, place) = (name.to_owned(), place.clone());
            return Err(NameError::Redefined { name, written, first, place });
        }
        definition.is_settled.set(definition.is_settled.get() || line.settle.is_some());
        Ok(LimitLine { definition: Rc::clone(definition), ..line })
    }

    /// Every name.
    pub fn names(&self) -> impl Iterator<Item = &'a str> {
        self.all.iter().map(|known| known.definition.name)
    }

    /// The limits that are bound, and the indices of their stores.
    pub fn bound(&self) -> impl Iterator<Item = (&Definition<'a>, usize)> {
        self.all.iter().filter_map(|known| Some((&*known.definition, known.bound.as_ref()?.store)))
    }

    /// The line of this name that was bound to a store first.
    pub fn first(&self, name: &str) -> Option<&BoundLine<L>> {
        self.all.get(*self.indices.get(name)?)?.bound.as_ref()
    }

    /// Notes that a line of this name is bound to a store. All lines of a name must have one store; `shown` is how a store
    /// is shown in an error.
    pub fn bind(
        &mut self,
        name: &str,
        line: BoundLine<L>,
        shown: impl Fn(usize) -> String,
    ) -> Result<(), NameError> {
        let known = self.indices.get(name).and_then(|index| self.all.get_mut(*index));
        let Some(known) = known else { return Ok(()) };
        match &known.bound {
            None => known.bound = Some(line),
            Some(first) if first.store == line.store => {}
            Some(first) => {
                let (store, other) = (shown(line.store), shown(first.store));
                let (name, first) = (name.to_owned(), first.place.clone());
                return Err(NameError::Rebound { name, place: line.place, store, other, first });
            }
        }
        Ok(())
    }
}

/// Why a line cannot have its name.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Another line defines the name otherwise.
    #[error(
        "the limit \"{name}\" cannot be \"{written}\", as it is already defined as \"{first}\" in \
         {place}; add \"name=\" to give this one a name, and a budget, of its own"
    )]
    Redefined {
        /// The name.
        name: String,
        /// The definition of the line.
        written: String,
        /// The definition of the first line.
        first: String,
        /// The place of the first line.
        place: String,
    },
    /// Another line of the name has another store.
    #[error(
        "the limit \"{name}\" of {place} has another store, {store}, than {other} in {first}; add \"name=\" \
         to give it a name of its own, or set \"rate_limit_redis_pass\" at the level of the limit"
    )]
    Rebound {
        /// The name.
        name: String,
        /// The place of the line.
        place: String,
        /// The store.
        store: String,
        /// The store of the line that was bound first.
        other: String,
        /// The place of that line.
        first: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conf::directive::tests::directive;
    use crate::conf::limit::{LimitError, LimitWords};

    /// The line of these parameters, at `place`.
    fn add<'a>(
        names: &mut Definitions<'a, ()>,
        parameters: &'a str,
        place: &str,
    ) -> Result<LimitLine<'a, &'a str>, String> {
        let words = directive(parameters);
        let words = LimitWords::read(&words).expect("words");
        let line = words.compile(Ok::<_, LimitError>).expect("a line");
        names.add(line, place).map_err(|error| error.to_string())
    }

    #[test]
    fn lines_of_a_name_share_a_definition() {
        let mut names = Definitions::default();
        let first = add(&mut names, "rate_limit_redis a rate=1r/s", "a:1").unwrap();
        let other = add(&mut names, "rate_limit_redis a rate=1r/s name=x", "a:2").unwrap();
        assert!(!first.definition.is_settled.get());
        let second = "rate_limit_redis b rate=1r/s cost=2 settle=$s dry_run";
        let second = add(&mut names, second, "a:3").unwrap();
        assert!(Rc::ptr_eq(&first.definition, &second.definition));
        assert!(first.definition.is_settled.get() && !other.definition.is_settled.get());
        assert_eq!(names.names().collect::<Vec<_>>(), ["default", "x"]);
        let error = add(&mut names, "rate_limit_redis a rate=2r/s", "a:4").unwrap_err();
        let expected = "the limit \"default\" cannot be \"algorithm=token_bucket rate=2r/s\", as it is already \
                        defined as \"algorithm=token_bucket rate=1r/s\" in a:1; add \"name=\" to give this one a \
                        name, and a budget, of its own";
        assert_eq!(error, expected);
    }

    #[test]
    fn a_name_has_one_store() {
        let mut names = Definitions::default();
        add(&mut names, "rate_limit_redis a rate=1r/s name=x", "a:1").unwrap();
        add(&mut names, "rate_limit_redis a rate=1r/s name=y", "a:2").unwrap();
        assert!(names.first("x").is_none() && names.bound().next().is_none());
        let mut bind = |name, place: &str, store| {
            let line = BoundLine { line: (), place: place.to_owned(), store };
            names.bind(name, line, |store| format!("store{store}"))
        };
        assert_eq!(bind("y", "a:2", 7), Ok(()));
        assert_eq!(bind("y", "a:5", 7), Ok(()));
        assert_eq!(bind("z", "a:6", 7), Ok(()), "a name that no line has");
        let error = bind("y", "a:7", 8).unwrap_err().to_string();
        let expected = "the limit \"y\" of a:7 has another store, store8, than store7 in a:2; add \"name=\" to \
                        give it a name of its own, or set \"rate_limit_redis_pass\" at the level of the limit";
        assert_eq!(error, expected);
        let bound: Vec<_> = names.bound().map(|(it, store)| (it.name, store)).collect();
        assert_eq!(bound, [("y", 7)]);
        assert_eq!(names.first("y").map(|first| first.place.as_str()), Some("a:2"));
    }
}
