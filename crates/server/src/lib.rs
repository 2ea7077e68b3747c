//! Owns one instance of the control plane. Any number of them share one store.
//!
//! Invariant: state changes only through the journal, and nothing acts on uncommitted changes.

mod admission;
mod caller;
mod clock;
mod cluster;
mod counted;
mod deliveries;
mod dispatch;
mod doors;
mod error;
mod force;
mod heavy;
mod hook_rates;
pub mod http;
mod jobs;
mod journal;
mod metrics;
mod nodes;
mod outbound;
mod output;
mod parts;
mod replica;
mod rpc;
mod runs;
mod secret;
mod service;
mod settings;
mod signal;
mod standing;
mod start;
mod stats;
mod surroundings;
#[cfg(test)]
mod testing;
mod triggers;
mod vital;
mod volume;
mod works;

pub use caller::Caller;
pub use clock::Wall;
pub use error::{Class, Conflict, Error, Noun};
pub use force::Force;
pub use jobs::JobState;
pub use outbound::Outside;
pub use replica::{Lost, Pieces, Since, Upstream};
pub use service::{
    AppliedJob, Drain, IdempotencyKey, Mode, Outcome, Redo, Retry, Service, Submit, Submitted,
};
pub use settings::Settings;
pub use start::{Server, StartError, start, start_replica_within, start_within};
pub use surroundings::Surroundings;
pub use vital::VitalTaskEnded;
