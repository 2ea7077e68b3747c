//! Owns the threads that access files that users name. A mount whose server is gone never responds, and blocks the
//! thread. So only a few run at once: the other threads are needed, for example to end work.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::timeout;

/// For working directories, programs, and files that backends read and write.
pub(crate) static USERS_FILES: BlockingCalls = BlockingCalls::new(8, Duration::from_secs(5));

/// A limit of concurrent blocking calls.
#[derive(Debug)]
pub struct BlockingCalls {
    free: Semaphore,
    returned: AtomicU64,
    patience: Duration,
}

impl BlockingCalls {
    pub const fn new(most: usize, patience: Duration) -> Self {
        Self { free: Semaphore::const_new(most), returned: AtomicU64::new(0), patience }
    }

    /// Runs a call on a thread that may block. Fails if no permit is free and no call has returned for a while. Dropping
    /// this future leaves the call, and its permit, running.
    pub async fn run<T: Send + 'static>(
        &'static self,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        let permit = loop {
            let returned = self.returned.load(Ordering::Relaxed);
            match timeout(self.patience, self.free.acquire()).await {
                Ok(Ok(permit)) => break permit,
                Ok(Err(closed)) => return Err(io::Error::other(closed)),
                // Slow, because there are many.
                Err(_) if self.returned.load(Ordering::Relaxed) != returned => {}
                Err(_) => {
                    return Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        "a mount of this host does not respond, and too many calls wait for it already",
                    ));
                }
            }
        };
        let called = tokio::task::spawn_blocking(move || {
            let value = call();
            self.returned.fetch_add(1, Ordering::Relaxed);
            drop(permit);
            value
        });
        called.await.map_err(|error| io::Error::other(format!("the call failed: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn calls_that_hang_keep_their_places_and_no_call_waits_forever() {
        static CALLS: BlockingCalls = BlockingCalls::new(2, Duration::from_millis(10));
        let (answers, hung) = (0..2).map(|_| channel::<()>()).unzip::<_, _, Vec<_>, Vec<_>>();
        for mount in hung {
            assert!(Box::pin(CALLS.run(move || mount.recv())).now_or_never().is_none());
        }
        let refused = CALLS.run(|| ()).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
        drop(answers);
        while CALLS.run(|| ()).await.is_err() {}
    }
}
