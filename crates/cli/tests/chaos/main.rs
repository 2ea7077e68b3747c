//! Chaos on the real thing: several servers, agents and a PostgreSQL as real processes, faults of every kind from a
//! printed seed, and a checker that compares the records with the book.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "what was injected, what was found, and what to look at when it fails"
)]

mod agent;
mod book;
mod check;
mod cluster;
mod crash;
mod evidence;
mod faults;
mod gather;
mod jobs;
mod load;
mod network;
mod outage;
mod owner;
mod proxy;
mod random;
mod report;
mod rolling;
mod sabotage;
mod schedules;
mod server;
mod slow;
mod standing;
mod streams;
mod watcher;
