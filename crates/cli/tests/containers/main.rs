//! Containers on a real engine, with server and agents as processes: their end when leases are kept, renewed,
//! lost and granted again.

mod engine;
mod lease;
mod run;
