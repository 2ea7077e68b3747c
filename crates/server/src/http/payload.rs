//! Receives the body of a request, limited in size and time, and limits the total size of all bodies in memory.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use downbeat_api::code;
use downbeat_core::limits;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::problem::{Failure, HttpResult};
use crate::error::Error;

/// A whole body. Its permits are released when its bytes are dropped.
#[derive(Debug)]
pub(super) struct Payload(pub(super) Bytes);

const KIB: usize = 1024;
/// One permit per KiB of a large body.
static ROOM: Semaphore = Semaphore::const_new(limits::HTTP_BODIES_BYTES / KIB);

/// Reads a body as a JSON object. Serde alone would also read the fields from an array.
pub(super) fn object<T: DeserializeOwned>(body: &[u8]) -> HttpResult<T> {
    let read = match serde_json::from_slice(body) {
        Ok(fields @ Value::Object(_)) => serde_json::from_value(fields).map_err(|error| error.to_string()),
        Ok(_) => Err("it is not an object".to_owned()),
        Err(error) => Err(error.to_string()),
    };
    read.map_err(|why| {
        let detail = format!("the body is not a valid JSON object of this request: {why}");
        Failure::new(StatusCode::BAD_REQUEST, code::MALFORMED, detail)
    })
}

struct Reserved {
    bytes: Bytes,
    _permits: SemaphorePermit<'static>,
}

impl AsRef<[u8]> for Reserved {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<S: Send + Sync> FromRequest<S> for Payload {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failure> {
        let most = most_bytes(request.headers());
        let permits = reserve(&ROOM, most)?;
        let within = time_limit(most);
        let received = timeout(within, Bytes::from_request(request, state)).await;
        let bytes = received.map_err(|_| too_slow(within))?.map_err(|rejection| unreadable(&rejection))?;
        Ok(Self(keep(bytes, permits)))
    }
}

/// Returns the maximum size of a body: its declared length, or else the limit.
fn most_bytes(headers: &HeaderMap) -> usize {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    length.unwrap_or(limits::JOB_FILE_BYTES).min(limits::JOB_FILE_BYTES)
}

/// Returns how long a body may take: a client that sends a byte now and then must not keep its connection forever.
fn time_limit(bytes: usize) -> Duration {
    Duration::from_secs(limits::HTTP_BODY_S + (bytes / limits::HTTP_BODY_BYTES_PER_S) as u64)
}

/// Reserves memory for a body. A small body needs no permit.
fn reserve(room: &'static Semaphore, bytes: usize) -> Result<Option<SemaphorePermit<'static>>, Failure> {
    if bytes <= limits::SMALL_MESSAGE_BYTES {
        return Ok(None);
    }
    let count = u32::try_from(bytes.div_ceil(KIB)).unwrap_or(u32::MAX);
    let permits = room.try_acquire_many(count);
    permits.map(Some).map_err(|_| {
        Error::Busy("the server is receiving too many large requests; try again".to_owned()).into()
    })
}

/// Attaches the permits that the body needs and releases the others.
fn keep(bytes: Bytes, permits: Option<SemaphorePermit<'static>>) -> Bytes {
    let Some(mut permits) = permits.filter(|_| bytes.len() > limits::SMALL_MESSAGE_BYTES) else {
        return bytes;
    };
    let unused = permits.num_permits().saturating_sub(bytes.len().div_ceil(KIB));
    drop(permits.split(unused));
    Bytes::from_owner(Reserved { bytes, _permits: permits })
}

fn too_slow(within: Duration) -> Failure {
    let detail = format!("the body did not arrive within {} s; send it again", within.as_secs());
    Failure::new(StatusCode::REQUEST_TIMEOUT, code::REQUEST_TIMEOUT, detail)
}

fn unreadable(rejection: &BytesRejection) -> Failure {
    if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
        let most = limits::JOB_FILE_BYTES;
        let detail = format!("the body is larger than {most} bytes, the maximum for a job file");
        return Failure::new(StatusCode::PAYLOAD_TOO_LARGE, code::TOO_LARGE, detail);
    }
    Failure::new(rejection.status(), code::MALFORMED, rejection.body_text())
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::response::IntoResponse;
    use futures_util::stream;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_ends_is_given_up_on() {
        let drop_by_drop = stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Some((Ok::<_, std::io::Error>(Bytes::from_static(b"#")), ()))
        });
        let request = Request::post("/runs")
            .header(header::CONTENT_LENGTH, "1000")
            .body(Body::from_stream(drop_by_drop))
            .unwrap();
        let refused = Payload::from_request(request, &()).await.unwrap_err().into_response();
        assert_eq!(refused.status(), StatusCode::REQUEST_TIMEOUT);
    }

    #[test]
    fn a_large_body_may_take_longer_and_no_length_buys_more_than_the_largest() {
        let time_limit = |headers: &HeaderMap| time_limit(most_bytes(headers));
        let with = |length: &str| {
            time_limit(&HeaderMap::from_iter([(header::CONTENT_LENGTH, length.parse().unwrap())]))
        };
        assert_eq!(with("10"), Duration::from_secs(30));
        assert_eq!(with("1048576"), Duration::from_secs(94));
        assert_eq!(with("99999999999"), Duration::from_secs(94));
        assert_eq!(time_limit(&HeaderMap::new()), Duration::from_secs(94));
    }

    #[test]
    fn large_bodies_are_bounded_together_and_small_ones_get_through() {
        static ROOM: Semaphore = Semaphore::const_new(256);
        let (large, small) = (200 * KIB, limits::SMALL_MESSAGE_BYTES);
        let first = keep(Bytes::from(vec![1; 100 * KIB]), reserve(&ROOM, large).unwrap());
        assert_eq!((first.len(), ROOM.available_permits()), (100 * KIB, 156), "only what it has");
        let refused = reserve(&ROOM, large).unwrap_err().into_response();
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(refused.headers().contains_key(header::RETRY_AFTER));
        assert!(reserve(&ROOM, small).unwrap().is_none());
        // It did not declare its length.
        let short = keep(Bytes::from_static(b"#"), reserve(&ROOM, 150 * KIB).unwrap());
        assert_eq!((&short[..], ROOM.available_permits()), (&b"#"[..], 156));
        let part = first.slice(..10);
        drop(first);
        assert_eq!(ROOM.available_permits(), 156, "a slice is still in use");
        drop(part);
        assert_eq!(ROOM.available_permits(), 256);
    }
}
