//! Settings of server and agent: file, environment and flags, later ones win, and each value remembers where it
//! came from. What the values mean is the components' own affair.

mod agent;
mod dial;
mod kinds;
mod load;
mod server;
mod show;

pub(crate) use agent::AgentKeys;
pub(crate) use kinds::LogFormat;
pub(crate) use load::{AGENT, Derived, Loaded, SERVER, Said, Sources, load, load_backends};
pub(crate) use server::ServerKeys;
pub(crate) use show::without_password;

#[cfg(test)]
mod tests;
