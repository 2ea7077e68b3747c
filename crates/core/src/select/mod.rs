//! Selectors choose nodes: `group:web and label.disk = ssd and not node:web-09`.

mod glob;
mod grammar;
mod rule;
mod selector;
mod token;
mod unmatched;

pub use selector::{Scope, Selector};
pub use token::Error;
