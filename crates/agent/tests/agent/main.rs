//! The agent against a server that is a value in this process.

mod delivery;
mod doubt;
mod fake;
mod lanes;
mod lines;
mod output;
mod processes;
mod rejection;
mod session;
mod suspend;
