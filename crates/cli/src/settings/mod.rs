//! Settings of server and agent: file, environment and flags. Later sources win, and each value keeps its source. The
//! components define what the values mean.

mod agent;
mod dial;
mod kinds;
mod load;
mod server;
mod show;
mod table;

pub(crate) use agent::{AGENT, AgentKeys};
pub(crate) use kinds::LogFormat;
pub(crate) use load::{Given, Loaded, Sources, load, load_backends};
pub(crate) use server::{SERVER, ServerKeys};
pub(crate) use show::without_password;
pub(crate) use table::Flags;

#[cfg(test)]
mod tests;
