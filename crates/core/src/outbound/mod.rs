//! Owns the rules for HTTP calls that servers make for jobs: which addresses they may connect to.

mod address;
mod allow;
mod url;

pub use address::{Reserved, check};
pub use allow::{Allow, BadEntry};
pub use url::{BadUrl, check_url};
