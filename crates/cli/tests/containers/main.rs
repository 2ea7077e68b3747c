//! Containers on a real engine, with server and agents as processes: what becomes of them when leases are kept, renewed,
//! lost and granted again.

mod engine;
mod lease;
mod run;
