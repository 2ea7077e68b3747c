//! Decides what triggers do: whether the sender of a request knows the secret (`signature`), what its body says
//! (`payload`), how many requests a path accepts (`rate`), with which params a job starts (`params`), and which jobs
//! start each other in a circle (`circle`).

mod circle;
mod params;
mod payload;
mod rate;
mod signature;

pub use circle::circle;
pub use params::{http_facts, params};
pub use payload::{BadPayload, PayloadKind, read_payload};
pub use rate::Bucket;
pub use signature::{Proven, Sent, Unproven, check, sign};
