//! What is printed: the one way to standard output and standard error, and the formats that it takes.

mod sink;
mod yaml;

pub(crate) use sink::{Format, Out};
