//! Owns admission: which runs wait, and which server admits them. `downbeat_core::admission` decides which run
//! is next; a guard of the store ensures that servers together do not admit too many.

mod queue;
mod room;

pub(crate) use room::Admission;
