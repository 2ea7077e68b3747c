//! Spawns the tasks of a connection in the server's span, so that their log lines name the server.

use hyper::rt::Executor;
use tracing::{Instrument, Span};

#[derive(Clone, Debug)]
pub(crate) struct Spawn(Span);

impl Spawn {
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
