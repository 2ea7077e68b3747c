//! A store in memory, for tests and the simulator. With `tables` it is the readable specification of every store.

mod copy;
mod remove;
mod store;

pub use store::MemoryStore;
