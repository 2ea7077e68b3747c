//! Owns the calls of one agent's connection: it counts each call and limits its message.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use downbeat_proto::grpc;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::{Request, Response};

use super::intake::{Intake, Metered};

/// One agent's connection. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Connected {
    services: grpc::Services,
    intake: Intake,
    pub(super) calls: Calls,
}

/// The calls of one connection: how many started, and how many are in progress.
#[derive(Clone, Debug, Default)]
pub(super) struct Calls(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    started: AtomicU64,
    in_progress: AtomicU64,
}

#[derive(Debug)]
struct CallInProgress(Calls);

/// The body of a response that may be a stream.
#[derive(Debug)]
struct Streaming {
    body: grpc::Body,
    _in_progress: CallInProgress,
}

impl Connected {
    pub(super) fn new(services: grpc::Services, intake: Intake) -> Self {
        Self { services, intake, calls: Calls::default() }
    }

    pub(super) fn call(
        &self,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<grpc::Body>, Infallible>> + Send + use<> {
        let in_progress = self.calls.begin();
        let received = self.intake.call();
        let request = request.map(|body| Metered::new(body, Arc::clone(&received)));
        let may_stream = !grpc::is_agent_call(&request);
        let response = self.services.call(request);
        async move {
            // The size of the message counts until the response.
            let _received = received;
            let response = response.await?;
            // A stream is in progress until its end; a wrapper around each response would cost each call of each node.
            if may_stream {
                return Ok(
                    response.map(|body| grpc::Body::new(Streaming { body, _in_progress: in_progress }))
                );
            }
            drop(in_progress);
            Ok(response)
        }
    }
}

impl Body for Streaming {
    type Data = <grpc::Body as Body>::Data;
    type Error = <grpc::Body as Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Calls {
    fn begin(&self) -> CallInProgress {
        self.0.started.fetch_add(1, Ordering::Relaxed);
        self.0.in_progress.fetch_add(1, Ordering::Relaxed);
        CallInProgress(self.clone())
    }

    /// Waits until there was no call for `idle` and none is in progress. It may wait up to twice as long: a
    /// timer per call would cost too much.
    pub(super) async fn until_idle(self, idle: Duration) {
        let count = || self.0.started.load(Ordering::Relaxed);
        let mut before = count();
        loop {
            tokio::time::sleep(idle).await;
            if self.0.in_progress.load(Ordering::Relaxed) == 0 && count() == before {
                return;
            }
            before = count();
        }
    }
}

impl Drop for CallInProgress {
    fn drop(&mut self) {
        self.0.0.in_progress.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_ends_when_it_makes_no_calls_and_not_before() {
        let (calls, idle) = (Calls::default(), Duration::from_secs(120));
        let (begun, idled) = (Instant::now(), tokio::spawn(calls.clone().until_idle(idle)));
        for _ in 0..10 {
            tokio::time::sleep(idle / 2).await;
            drop(calls.begin());
        }
        assert!(!idled.is_finished());
        idled.await.unwrap();
        assert!(begun.elapsed() >= idle * 6 && begun.elapsed() <= idle * 7);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_does_not_end_while_a_call_is_in_progress() {
        let (calls, idle) = (Calls::default(), Duration::from_secs(120));
        let (call, idled) = (calls.begin(), tokio::spawn(calls.until_idle(idle)));
        tokio::time::sleep(idle * 10).await;
        assert!(!idled.is_finished());
        drop(call);
        idled.await.unwrap();
    }
}
