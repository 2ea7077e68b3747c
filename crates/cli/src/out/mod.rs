//! Printing: the only access to standard output and standard error, and the output formats.

mod sink;
mod yaml;

pub(crate) use sink::{Format, Out};
pub(crate) use yaml::document as yaml_document;
