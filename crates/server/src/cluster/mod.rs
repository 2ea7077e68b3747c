//! Owns the servers that share a store: which are alive, and which one takes over the runs of a server that is gone.

mod common;
mod membership;

pub(crate) use common::CommonLevel;
pub(crate) use membership::{LastSign, Membership, heartbeat_pause};
