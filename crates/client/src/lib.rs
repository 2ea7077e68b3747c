//! A client of the REST API: requests that go to whichever of several servers answers, event streams that resume where
//! they broke, and runs that are read once and then follow their events.
//!
//! Invariant: nothing in here prints, and nothing depends on the server.

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
pub use http::{Body, Client};
pub use live::{Heard, Live};
pub use sse::{Feed, Message};
pub use stream::Stream;
