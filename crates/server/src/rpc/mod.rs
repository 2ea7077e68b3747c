//! The agents' side of the server: the protocol's calls, one file per call that does more than pass on.

mod connected;
mod host;
mod intake;
mod poll;
mod register;
mod report;
mod serve;

pub(crate) use host::Host;
pub(crate) use serve::serve;
