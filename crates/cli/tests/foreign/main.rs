//! The agents' port as a client sees it that was not written with this program: Python stubs generated from the protocol.

mod client;
mod codes;
mod services;
mod session;
