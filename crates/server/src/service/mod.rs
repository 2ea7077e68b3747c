//! Owns the server's service: all operations that users and programs can call, over any transport.

mod approve;
mod backfill;
mod clusters;
mod debug;
mod deliveries;
mod find;
mod handle;
mod hooks;
mod jobs;
mod many;
mod nodes;
mod patience;
mod plan;
mod retry;
mod runs;
mod submit;
mod triggers;
mod waits;

pub(crate) use approve::Approval;
pub(crate) use backfill::BackfillRequest;
pub(crate) use debug::{DebugTarget, StartDebug};
pub use handle::Service;
pub(crate) use hooks::HookRequest;
pub(crate) use jobs::differ;
pub use jobs::{AppliedJob, Mode, Outcome};
pub(crate) use many::{Effect, WhichNodes, WhichRuns};
pub use nodes::Drain;
pub use retry::{Redo, Retry};
pub use submit::{IdempotencyKey, Submit, Submitted};

#[cfg(test)]
mod tests;
