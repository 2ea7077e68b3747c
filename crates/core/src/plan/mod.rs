//! The plan: a definition compiled for the nodes that it came to. Steps, entries, and what waits for what.

mod compile;
mod resolve;

pub use compile::{Edge, EdgeKind, Error, Plan, PlanEntry, Shape, Step};
pub use resolve::{Unfit, resolve};
