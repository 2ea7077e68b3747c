//! Owns the trace: every commit, call and fault of a seed, with its time. Two runs of a seed produce the same trace.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::world::World;

#[derive(Debug, Default)]
pub(crate) struct Trace {
    lines: Mutex<Vec<String>>,
}

impl Trace {
    pub(crate) fn log(&self, at: Duration, what: std::fmt::Arguments<'_>) {
        let line = format!("{:>12.6} {what}", at.as_secs_f64());
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.lines.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Adds the product's log to the trace while the guard exists.
pub(crate) fn log_into(world: Arc<World>) -> tracing::subscriber::DefaultGuard {
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .without_time()
        .with_ansi(false)
        .with_writer(move || Log { world: world.clone(), text: Vec::new() })
        .finish();
    tracing::subscriber::set_default(subscriber)
}

struct Log {
    world: Arc<World>,
    text: Vec<u8>,
}

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let text = String::from_utf8_lossy(&self.text);
        self.world.log(format_args!("    {}", text.trim_end()));
    }
}
