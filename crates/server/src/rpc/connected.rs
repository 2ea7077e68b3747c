//! Owns one agent's connection as a service: each call is counted, and its message is metered.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use downbeat_proto::grpc;
use hyper::body::Incoming;
use hyper::service::Service;
use hyper::{Request, Response};

use super::intake::{Intake, Metered, Received};

type Agent = grpc::Service;

/// What hyper calls for each request of one connection.
#[derive(Clone, Debug)]
pub(super) struct Connected {
    agent: Agent,
    intake: Intake,
    calls: Calls,
}

/// The calls of one connection, counted: those that ever began, and those that are under way.
#[derive(Clone, Debug, Default)]
pub(super) struct Calls(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    begun: AtomicU64,
    under_way: AtomicU64,
}

/// One call is under way.
#[derive(Debug)]
struct UnderWay(Calls);

/// A call that is under way. What its message takes is counted until it is answered.
pub(super) struct Answering {
    answer: <Agent as tower::Service<Request<Metered<Incoming>>>>::Future,
    _received: Arc<Received>,
    _under_way: UnderWay,
}

impl Connected {
    pub(super) fn new(agent: Agent, intake: Intake) -> Self {
        Self { agent, intake, calls: Calls::default() }
    }

    pub(super) fn calls(&self) -> Calls {
        self.calls.clone()
    }
}

impl Calls {
    fn begin(&self) -> UnderWay {
        self.0.begun.fetch_add(1, Ordering::Relaxed);
        self.0.under_way.fetch_add(1, Ordering::Relaxed);
        UnderWay(self.clone())
    }

    /// Waits until no call came for this long and none is under way, or up to twice as long: a timer per call would cost
    /// more than it is worth.
    pub(super) async fn cease(self, idle: Duration) {
        let count = || self.0.begun.load(Ordering::Relaxed);
        let mut before = count();
        loop {
            tokio::time::sleep(idle).await;
            if self.0.under_way.load(Ordering::Relaxed) == 0 && count() == before {
                return;
            }
            before = count();
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Service<Request<Incoming>> for Connected {
    type Response = Response<grpc::Body>;
    type Error = Infallible;
    type Future = Answering;

    fn call(&self, request: Request<Incoming>) -> Answering {
        let under_way = self.calls.begin();
        let received = self.intake.call();
        let request = request.map(|body| Metered::new(body, Arc::clone(&received)));
        // Always ready: it has no state.
        let answer = tower::Service::call(&mut self.agent.clone(), request);
        Answering { answer, _received: received, _under_way: under_way }
    }
}

impl Future for Answering {
    type Output = Result<Response<grpc::Body>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.answer.as_mut().poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_ends_when_it_makes_no_calls_and_not_before() {
        let (calls, idle) = (Calls::default(), Duration::from_secs(120));
        let (begun, ceased) = (Instant::now(), tokio::spawn(calls.clone().cease(idle)));
        for _ in 0..10 {
            tokio::time::sleep(idle / 2).await;
            drop(calls.begin());
        }
        assert!(!ceased.is_finished());
        ceased.await.unwrap();
        assert!(begun.elapsed() >= idle * 6 && begun.elapsed() <= idle * 7);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_does_not_end_while_a_call_is_under_way() {
        let (calls, idle) = (Calls::default(), Duration::from_secs(120));
        let (call, ceased) = (calls.begin(), tokio::spawn(calls.cease(idle)));
        tokio::time::sleep(idle * 10).await;
        assert!(!ceased.is_finished());
        drop(call);
        ceased.await.unwrap();
    }
}
