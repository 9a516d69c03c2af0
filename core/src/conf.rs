//! The configuration: from the words of a directive to typed values, or to the error that `nginx -t` shows.
//!
//! Everything here depends on words alone. What needs NGINX is in the module crate: where a directive stands,
//! its variables, files and addresses. [`DIRECTIVES`] is the table of all directives, with a row for each.

mod directive;
pub mod limit;
mod policy;
pub mod store;
mod table;
pub(crate) mod value;

pub use directive::{Directive, DirectiveError, text};
pub use policy::{LogKey, LogLevel, LogLimit, MOST_TOP_KEYS, OnError, OnInvalid};
pub use table::{
    Arguments, Contexts, DEFAULT_MEMORY, DEFAULT_STORE, DIRECTIVES, Policy, PolicyLevel, Row,
    SetPolicy, Sets,
};
pub use value::{Setting, UrlError, endpoint, variable};
