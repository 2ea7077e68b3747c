//! Owns how the body of a request is received: bounded in bytes and in time.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use downbeat_core::limits;
use tokio::time::timeout;

use super::problem::Failure;

/// A whole body.
#[derive(Debug)]
pub(super) struct Payload(pub(super) Bytes);

impl<S: Send + Sync> FromRequest<S> for Payload {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failure> {
        let within = patience(request.headers());
        let received = timeout(within, Bytes::from_request(request, state)).await;
        let bytes = received.map_err(|_| too_slow(within))?;
        bytes.map(Self).map_err(|rejection| unreadable(&rejection))
    }
}

/// How long a body may take: a client that sends a byte now and then must not keep its connection forever.
fn patience(headers: &HeaderMap) -> Duration {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let bytes = length.unwrap_or(limits::JOB_FILE_BYTES).min(limits::JOB_FILE_BYTES);
    Duration::from_secs(limits::HTTP_BODY_S + (bytes / limits::HTTP_BODY_BYTES_PER_S) as u64)
}

fn too_slow(within: Duration) -> Failure {
    let detail = format!("the body did not arrive within {} s; send it again", within.as_secs());
    Failure::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", detail)
}

fn unreadable(rejection: &BytesRejection) -> Failure {
    if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
        let most = limits::JOB_FILE_BYTES;
        let detail =
            format!("the body is larger than {most} bytes, which is the most that a job file may have");
        return Failure::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", detail);
    }
    Failure::new(rejection.status(), "malformed", rejection.body_text())
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
        let with = |length: &str| {
            patience(&HeaderMap::from_iter([(header::CONTENT_LENGTH, length.parse().unwrap())]))
        };
        assert_eq!(with("10"), Duration::from_secs(30));
        assert_eq!(with("1048576"), Duration::from_secs(94));
        assert_eq!(with("99999999999"), Duration::from_secs(94));
        assert_eq!(patience(&HeaderMap::new()), Duration::from_secs(94));
    }
}
