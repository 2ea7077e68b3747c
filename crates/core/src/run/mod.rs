//! A run: its strict state machine, its record, and the engine that runs its plan.

pub mod again;
pub mod constraints;
mod course;
pub mod engine;
mod life;
mod live;
mod machine;
mod metrics;
mod record;
pub mod retry;
mod states;
mod words;

pub use course::{AdmissionFacts, Course, Effect, EffectResult, New, Notify, Occasion, requested_stop};
pub use life::{Checked, ConstraintKind, Ending, Found, Life, Queued, Violation, shortened};
pub use live::{Ended, Hook, RolloutProgress, RunEnd, RunLive, RunStage, RunVerdict, StopCause, Stopped};
pub use machine::{Illegal, RunEvent, check_path, frees_nodes, step, successors};
pub use metrics::RunMetrics;
pub use record::{Instance, Keeps, RolloutSize, RunBrief, RunMade, RunRecord};
pub use states::{StateTimes, Stay};
pub use words::{RunState, RunStatus};
