//! The plan: a definition compiled for its resolved nodes. It has steps, entries, and the dependencies between them.

mod compile;
mod compiled;
mod expressions;
mod index;
mod resolve;
mod resolved;

pub use compile::Error;
pub use compiled::{Each, Edge, EdgeKind, Items, Pass, Plan, PlanEntry, ResolvedTemplate, Shape, Step};
pub(crate) use index::indexed_by;
pub use index::{EntryIx, ItemIx, NodeIx, PassIx, SetIx, StepIx, WalkIx};
pub use resolve::{Unfit, resolve, resolve_again};
pub use resolved::{NodeRef, Resolved, RetryScope};
