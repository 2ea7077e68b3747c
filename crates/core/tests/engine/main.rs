//! The engine, driven without a server: scenarios from the tables, and random runs against a slow interpreter.

#![allow(clippy::print_stdout)]

mod graph;
mod model;
mod scenarios;
mod world;
