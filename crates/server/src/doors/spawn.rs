//! Spawns the tasks of a connection, so that they log in the name of the server that they belong to.

use hyper::rt::Executor;
use tracing::{Instrument, Span};

/// hyper's executor.
#[derive(Clone, Debug)]
pub(crate) struct Spawn(Span);

impl Spawn {
    /// In the span that is current now.
    pub(crate) fn current() -> Self {
        Self(Span::current())
    }
}

impl<F> Executor<F> for Spawn
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, work: F) {
        tokio::spawn(work.instrument(self.0.clone()));
    }
}
