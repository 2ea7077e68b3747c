//! Faults on the real thing: processes that are really killed and frozen, disks that are really full. The records
//! are compared with the book, which the nodes wrote.

#![allow(clippy::print_stdout, reason = "what was done")]

mod agent_dies;
mod disk_full;
mod guard;
mod nodes;
mod random;
mod scenarios;
mod server_dies;
mod site;
mod vital;
