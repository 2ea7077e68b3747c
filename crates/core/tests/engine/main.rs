//! The engine, driven without a server: scenarios from the tables, and random runs against a slow interpreter.

mod random;
mod scenarios;
mod world;
