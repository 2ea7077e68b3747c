//! A client of the REST API: requests that go to whichever of several servers answers, and event streams that resume
//! where they broke.
//!
//! Invariant: nothing in here prints, and nothing depends on the server.

mod address;
mod error;
mod http;
mod sse;
mod stream;

pub use address::{is_local, url};
pub use error::Error;
pub use http::{Body, Client};
pub use sse::{Feed, Message};
pub use stream::Stream;
