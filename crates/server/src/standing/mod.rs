//! Clusters and their standing tasks on this server: what it knows of them, the decisions for those that it owns, and the
//! removal of deleted clusters.

mod overdue;
mod projection;
mod removal;
#[cfg(test)]
mod tests;
mod walker;

pub(crate) use overdue::end_overdue;
pub(crate) use projection::Standing;
pub(crate) use removal::remove_deleted;
pub(crate) use walker::{follow_ups, walk};
