//! The command line: arguments in, text out. `dev`, `server` and `agent` start the real components; every other
//! command is a client of the REST API and decides nothing by itself.

mod app;
mod args;
mod bench;
mod cluster;
mod connect;
mod debug;
mod delivery;
mod event;
mod exit;
mod inline;
mod job;
mod later;
mod node;
mod out;
mod render;
mod run;
mod schedule;
mod serve;
mod settings;
mod status;
mod task;

pub use app::main;
