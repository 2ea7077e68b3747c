//! The backends that every agent has in it. Their schemas are core's catalogue: one table for checking and doing.

mod exec;
mod ping;
mod test;

use std::sync::Arc;

use downbeat_core::backend::{BackendSchema, Catalogue};

use crate::backend::Backend;
use crate::process::Ledger;

pub use exec::Exec;
pub use ping::Ping;
pub use test::Test;

/// All built-in backends; which of them a node offers is the agent's to decide.
pub fn builtin(ledger: &Arc<Ledger>) -> Vec<Arc<dyn Backend>> {
    vec![Arc::new(Test), Arc::new(Ping), Arc::new(Exec::new(ledger.clone()))]
}

fn schema(name: &str) -> BackendSchema {
    Catalogue::builtin().backend(name).expect("the catalogue lists every built-in backend").clone()
}
