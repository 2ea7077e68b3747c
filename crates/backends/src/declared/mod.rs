//! The user's own backends: declared in an agent's settings as argv templates with typed params. Never a shell.

mod backend;
mod param;
mod program;
mod read;
mod template;

pub use backend::DeclaredBackend;
pub(crate) use read::Key;
pub use read::{Declared, Refused};
