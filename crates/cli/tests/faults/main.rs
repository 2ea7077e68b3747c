//! Faults on the real thing: processes that are really killed and frozen, disks that are really full. What the records
//! say is held against what the nodes really did.

#![allow(clippy::print_stdout, reason = "what was done")]

mod agent_dies;
mod disk_full;
mod guard;
mod nodes;
mod random;
mod scenarios;
mod server_dies;
mod site;
