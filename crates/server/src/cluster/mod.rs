//! The servers that share a store: who lives, and who looks after the runs of those that do not.

mod common;
mod life;

pub(crate) use common::CommonLevel;
pub(crate) use life::{LastSign, Life};
