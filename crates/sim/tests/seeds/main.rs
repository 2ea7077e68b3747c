//! Seeds: many that must hold, some that must be the same twice, and some that are broken and must be found.

#![allow(clippy::print_stdout, clippy::print_stderr)]

mod broken;
mod many;
mod twice;
