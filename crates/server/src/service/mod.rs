//! Owns the server's service: all operations that users and programs can call, over any transport. One file
//! per operation.

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
