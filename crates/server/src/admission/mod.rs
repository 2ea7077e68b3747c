//! Owns admission: which runs wait for their turn, and who admits them. `downbeat_core::admission` decides
//! whose turn it is; a guard of the store ensures that servers together do not admit too many.

mod queue;
mod room;

pub(crate) use room::Admission;
