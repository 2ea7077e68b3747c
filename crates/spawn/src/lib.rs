//! Starts processes that are in their control group from their first instruction: `clone3` with `CLONE_INTO_CGROUP`,
//! which neither the standard library nor glibc before 2.39 offers.
//!
//! Invariant: this is the only crate with unsafe code, and it decides nothing. A parent that is suspended until its
//! child executes the program (`CLONE_VFORK`), a child that calls nothing but system calls, and one function around
//! both.

#![allow(unsafe_code, reason = "a child that shares the parent's memory until it executes a program")]

mod child;
mod clone;
mod command;
mod watch;

pub use command::{Command, Error, OpenFiles, Started, Step, is_supported, spawn};
pub use watch::Watched;
