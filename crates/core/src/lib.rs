//! The rules and decisions of Downbeat. No IO, no clock, no dice, no async: callers pass those in as values.
//!
//! Invariant: nothing in this crate depends on tokio, a socket, a file or the time of day.

pub mod admission;
pub mod backend;
pub mod change;
pub mod cluster;
pub mod collections;
pub mod debug;
pub mod delivery;
pub mod dice;
pub mod execution;
pub mod expr;
pub mod ids;
pub mod job;
pub mod level;
pub mod limits;
pub mod nearest;
pub mod node;
pub mod outbound;
mod parts;
pub mod place;
pub mod plan;
pub mod portion;
pub mod retention;
pub mod run;
pub mod schedule;
pub mod select;
pub mod servers;
pub mod shown;
pub mod span;
pub mod spec;
pub mod standing;
pub mod state;
pub mod trigger;
mod words;
pub mod work;

pub use change::{Applied, Change, Event, Refusal, Silence};
pub use dice::Dice;
pub use jiff::Timestamp;
pub use portion::Portion;
pub use span::Span;
