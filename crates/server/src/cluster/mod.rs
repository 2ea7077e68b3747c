//! The servers that share a store: who lives, and who looks after the runs of those that do not.

mod life;

pub(crate) use life::{Life, Standing};
