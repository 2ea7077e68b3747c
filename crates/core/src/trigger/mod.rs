//! Decides what triggers do: whether the sender of a request knows the secret (`signature`), what its body says
//! (`payload`), how many requests a path accepts (`rate`), with which params a job starts (`params`), and which jobs
//! start each other in a circle (`circle`), and which events start which jobs (`happened`).

mod circle;
mod happened;
mod params;
mod payload;
mod rate;
mod signature;

pub use circle::circle;
pub use happened::{Happened, What, caller_of, depth_of};
pub use params::{http_facts, params};
pub use payload::{BadPayload, PayloadKind, read_payload};
pub use rate::Bucket;
pub use signature::{Proven, Sent, Unproven, check, sign};
