//! A client of the REST API: requests to any of several servers, event streams that resume after a broken connection,
//! and runs that are read once and then updated by their events.
//!
//! Invariant: nothing in this crate prints, and nothing depends on the server.

mod address;
mod error;
mod fold;
mod http;
mod live;
mod sse;
mod stream;

pub use address::{is_local, url};
pub use error::Error;
pub use fold::Projection;
pub use http::{Body, Client, Start};
pub use live::{Live, Update};
pub use sse::{Feed, Message};
pub use stream::Stream;
