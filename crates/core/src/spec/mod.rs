//! The job file: from text to a checked definition.

mod definition;

pub use definition::{
    Branch, Condition, Definition, Delivery, Entry, OnDisconnect, Placement, Retry, Strategy, Task,
};
