//! Seeds: many that must hold, some that must repeat exactly, and some with a defect that must be found.

#![allow(clippy::print_stdout, clippy::print_stderr)]

mod broken;
mod many;
mod twice;
