//! Owns the threads of a port that are apart from those of the rest of the server. If thousands of connections are ready at
//! once, they wait for each other, and nothing else waits for them: the scheduler of the system divides the cores.

use std::io;

use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tracing::Instrument;

/// The threads of a port. They end when it is dropped.
#[derive(Debug)]
pub(crate) struct Threads(Option<Runtime>);

impl Threads {
    /// Serves a port on threads of its own.
    pub(crate) fn serve<F>(
        name: &str,
        listener: TcpListener,
        serve: impl FnOnce(TcpListener) -> F,
    ) -> io::Result<(Self, JoinHandle<()>)>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let runtime = Builder::new_multi_thread().thread_name(name).enable_all().build()?;
        let listener = listener.into_std()?;
        let task = {
            let _entered = runtime.enter();
            runtime.spawn(serve(TcpListener::from_std(listener)?).in_current_span())
        };
        Ok((Self(Some(runtime)), task))
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // A runtime must not be awaited by its drop inside another one.
            runtime.shutdown_background();
        }
    }
}
