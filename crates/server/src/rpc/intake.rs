//! Limits the time that messages of agents take to arrive, and the memory of all messages together. A message is
//! assembled as it arrives, so without this limit a few connections could make the server hold gigabytes.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use downbeat_core::limits;
use downbeat_proto::grpc;
use downbeat_proto::message::Fault;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

/// Counts the bytes of large messages of the server and of one connection.
#[derive(Clone, Debug)]
pub(super) struct Intake {
    all: Arc<Tally>,
    connection: Arc<Tally>,
}

#[derive(Debug)]
struct Tally {
    held_bytes: AtomicUsize,
    most_bytes: usize,
}

/// One call. The size of its message counts until the response.
#[derive(Debug)]
pub(super) struct Received {
    intake: Intake,
    bytes: AtomicUsize,
    counted_bytes: AtomicUsize,
}

#[derive(Debug)]
pub(super) struct Metered<B> {
    body: B,
    call: Arc<Received>,
    begun: Instant,
    /// Created only when the body has to wait.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl Intake {
    pub(super) fn new(all_bytes: usize, connection_bytes: usize) -> Self {
        Self { all: Tally::new(all_bytes), connection: Tally::new(connection_bytes) }
    }

    /// Creates the intake of another connection of the same server.
    pub(super) fn of_connection(&self) -> Self {
        Self { all: Arc::clone(&self.all), connection: Tally::new(self.connection.most_bytes) }
    }

    pub(super) fn call(&self) -> Arc<Received> {
        let (bytes, counted_bytes) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Received { intake: self.clone(), bytes, counted_bytes })
    }
}

impl Tally {
    fn new(most_bytes: usize) -> Arc<Self> {
        Arc::new(Self { held_bytes: AtomicUsize::new(0), most_bytes })
    }

    fn add(&self, bytes: usize) -> bool {
        if self.held_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes <= self.most_bytes {
            return true;
        }
        self.subtract(bytes);
        false
    }

    fn subtract(&self, bytes: usize) {
        self.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Received {
    /// Counts received bytes. Returns whether there is room for them.
    fn add(&self, arrived: usize) -> bool {
        let before = self.bytes.fetch_add(arrived, Ordering::Relaxed);
        let large = |bytes: usize| bytes.saturating_sub(limits::SMALL_MESSAGE_BYTES);
        let more = large(before + arrived) - large(before);
        if more == 0 {
            return true;
        }
        if !self.intake.connection.add(more) {
            return false;
        }
        if !self.intake.all.add(more) {
            self.intake.connection.subtract(more);
            return false;
        }
        self.counted_bytes.fetch_add(more, Ordering::Relaxed);
        true
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        let counted = *self.counted_bytes.get_mut();
        self.intake.connection.subtract(counted);
        self.intake.all.subtract(counted);
    }
}

impl<B> Metered<B> {
    pub(super) fn new(body: B, call: Arc<Received>) -> Self {
        Self { body, call, begun: Instant::now(), deadline: None }
    }

    fn is_late(&mut self, cx: &mut Context<'_>) -> bool {
        let bytes = self.call.bytes.load(Ordering::Relaxed);
        let seconds = limits::MESSAGE_S + (bytes / limits::MESSAGE_BYTES_PER_S) as u64;
        let until = self.begun + Duration::from_secs(seconds);
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep_until(until)));
        if deadline.deadline() != until {
            deadline.as_mut().reset(until);
        }
        deadline.as_mut().poll(cx).is_ready()
    }
}

impl<B> Body for Metered<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        let refused = |why: &str| Poll::Ready(Some(Err(grpc::to_error(Fault::Unavailable(why.to_owned())))));
        match Pin::new(&mut this.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                let arrived = frame.data_ref().map_or(0, Bytes::len);
                if this.call.add(arrived) {
                    Poll::Ready(Some(Ok(frame)))
                } else {
                    refused("the server is receiving too many large messages; send it again later")
                }
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(error.into()))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending if this.is_late(cx) => refused("the message took too long to arrive"),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::poll_fn;

    use super::*;

    const SMALL: usize = limits::SMALL_MESSAGE_BYTES;

    /// Yields chunks of these sizes, and then ends or never does.
    struct Pieces {
        sizes: Vec<usize>,
        ends: bool,
    }

    impl Body for Pieces {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            match self.sizes.pop() {
                Some(size) => Poll::Ready(Some(Ok(Frame::data(Bytes::from(vec![0; size]))))),
                None if self.ends => Poll::Ready(None),
                None => Poll::Pending,
            }
        }
    }

    /// Returns how many bytes of a body arrive, and whether it ends without an error.
    async fn read(call: &Arc<Received>, sizes: &[usize], ends: bool) -> (usize, bool) {
        let mut body = Metered::new(Pieces { sizes: sizes.to_vec(), ends }, call.clone());
        let mut bytes = 0;
        while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            match frame {
                Ok(frame) => bytes += frame.data_ref().map_or(0, Bytes::len),
                Err(_) => return (bytes, false),
            }
        }
        (bytes, true)
    }

    #[tokio::test(start_paused = true)]
    async fn large_messages_are_bounded_over_all_connections_and_small_ones_get_through() {
        let first = Intake::new(300, 200);
        let second = first.of_connection();
        let large = first.call();
        assert_eq!(read(&large, &[100, SMALL + 50], true).await, (SMALL + 150, true));
        // This connection may hold 50 more, and the other 150.
        assert_eq!(read(&first.call(), &[SMALL, 100], true).await, (100, false));
        assert_eq!(read(&second.call(), &[SMALL, 151], true).await, (151, false));
        assert_eq!(read(&second.call(), &[SMALL, 150], true).await, (SMALL + 150, true));
        assert_eq!(read(&first.call(), &[SMALL], true).await, (SMALL, true));
        // Its call is finished.
        drop(large);
        assert_eq!(read(&first.call(), &[SMALL, 200], true).await, (SMALL + 200, true));
        assert_eq!(first.all.held_bytes.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_stops_half_way_is_not_waited_for_forever() {
        let intake = Intake::new(usize::MAX, usize::MAX);
        let begun = Instant::now();
        assert_eq!(read(&intake.call(), &[10], false).await, (10, false));
        assert!(begun.elapsed() >= Duration::from_secs(limits::MESSAGE_S));
        // More time for more bytes.
        let begun = Instant::now();
        let bytes = 10 * limits::MESSAGE_BYTES_PER_S;
        assert_eq!(read(&intake.call(), &[bytes], false).await, (bytes, false));
        assert!(begun.elapsed() >= Duration::from_secs(limits::MESSAGE_S + 10));
    }
}
