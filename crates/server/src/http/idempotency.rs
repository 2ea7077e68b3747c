//! Reads the header `Idempotency-Key`, and identifies the request that it belongs to.

use axum::http::{HeaderMap, StatusCode};
use downbeat_api::code;
use downbeat_core::ids::sha256_hex;

use super::problem::{Failure, HttpResult};
use crate::service::IdempotencyKey;

/// The maximum length of an idempotency key, in bytes.
pub(super) const KEY_BYTES: usize = 255;

/// The requests that share their keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    Submit,
    Retry,
    RetryMany,
    Debug,
    Job,
    Hook,
}

/// Returns the key of a request, if it has one. `parts` is everything in which two requests of the scope may differ.
pub(super) fn idempotency_key(
    headers: &HeaderMap,
    scope: Scope,
    parts: &[Option<&[u8]>],
) -> HttpResult<Option<IdempotencyKey>> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    let bad = |why: &str| Failure::new(StatusCode::BAD_REQUEST, code::BAD_IDEMPOTENCY_KEY, why);
    let key =
        value.to_str().map_err(|_| bad("the Idempotency-Key holds characters that are not visible ASCII"))?;
    if key.is_empty() || key.len() > KEY_BYTES {
        return Err(bad(&format!(
            "the Idempotency-Key has {} bytes; it must have 1 to {KEY_BYTES}",
            key.len()
        )));
    }
    // A header cannot contain a line break, so no two scopes share a key.
    let (scoped, former) = match scope {
        Scope::Submit => (key.to_owned(), None),
        Scope::Retry => (format!("retry\n{key}"), Some(key.to_owned())),
        Scope::RetryMany => (format!("retry many\n{key}"), None),
        Scope::Debug => (format!("debug\n{key}"), None),
        Scope::Job => (format!("job\n{key}"), None),
        Scope::Hook => (format!("hook\n{key}"), None),
    };
    Ok(Some(IdempotencyKey { key: scoped, former, request_hash: hash(parts) }))
}

/// Returns a hash of all parts. Their lengths are hashed with them, so that no byte can move to the next part.
fn hash(parts: &[Option<&[u8]>]) -> String {
    let mut bytes = Vec::new();
    for part in parts {
        bytes.extend(part.map_or(u64::MAX, |part| part.len() as u64).to_le_bytes());
        bytes.extend(part.unwrap_or_default());
    }
    sha256_hex(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_counts_and_an_absent_part_is_not_an_empty_one() {
        let requests: [&[Option<&[u8]>]; 5] = [
            &[Some(b"ab"), Some(b"c")],
            &[Some(b"a"), Some(b"bc")],
            &[None, Some(b"abc")],
            &[Some(b""), Some(b"abc")],
            &[Some(b"abc"), None],
        ];
        let hashes: std::collections::BTreeSet<String> = requests.map(hash).into();
        assert_eq!(hashes.len(), requests.len());
        assert_eq!(hash(requests[0]), hash(requests[0]));
    }
}
