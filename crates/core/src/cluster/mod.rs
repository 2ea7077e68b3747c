//! Clusters: their record, and the rule for their names.

mod name;
mod record;

pub use name::{BadName, check_name};
pub use record::{ClusterEdit, ClusterRecord, OnRegister};
