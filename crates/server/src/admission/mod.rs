//! Admission: which runs wait for their turn, and who lets them in. Whose turn it is `downbeat_core::admission` says;
//! that no two servers let in too many is the store's guard.

mod queue;
mod room;

pub(crate) use room::Admission;
