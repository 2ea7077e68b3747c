//! Starts the things that tests need and waits for them: the program's processes, servers, agents, disks and databases.
//! Everything ends with the test that started it.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "seeds, and the logs of processes when a test fails"
)]

mod cli;
mod client;
mod daemon;
mod database;
mod dev;
mod disk;
#[cfg(feature = "in-process")]
pub mod in_process;
mod listener;
mod port;
mod postgres;
mod process;
pub mod processes;
mod program;
mod results;
mod seed;
mod server;
mod site;
mod wait;

pub use cli::run_in;
pub use client::{Answer, Client};
pub use daemon::Daemon;
pub use database::{Database, postgres_url};
pub use dev::Dev;
pub use disk::SmallDisk;
pub use listener::shut_listener;
pub use postgres::Postgres;
pub use process::{Done, Lines, Process};
pub use program::{command, example, program, repository};
pub use results::with_results;
pub use seed::seed;
pub use server::Server;
pub use site::{Builder, Site, Store};
pub use wait::{DEADLINE, eventually, until, within};
