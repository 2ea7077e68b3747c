//! A store in memory: for tests and the simulator. With `tables` it is the readable form of what every store does.

mod copy;
mod store;

pub use store::MemoryStore;
