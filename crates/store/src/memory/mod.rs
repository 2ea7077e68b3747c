//! A store in memory, for tests and the simulator. With `tables` it is the readable specification of every store.

mod copy;
mod deliveries;
mod jobs;
mod lists;
mod remove;
mod store;
mod volume;

pub use store::MemoryStore;
