//! The server's service: everything that people and programs can ask of it, over any transport. One file per verb.

mod cancel;
mod delete;
mod drain;
mod find;
mod handle;
mod health;
mod list;
mod patience;
mod pause;
mod plan;
mod retry;
mod submit;
mod waits;

pub use drain::Drain;
pub use handle::Service;
pub use retry::{Redo, Retry};
pub use submit::{Submit, Submitted};
pub(crate) use waits::NodeWaits;

#[cfg(test)]
mod tests;
