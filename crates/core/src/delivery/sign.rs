//! Owns the signature of a webhook.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// Returns the value of the header `X-Downbeat-Signature`: `t=SECONDS,v1=HEX`, where HEX is the HMAC-SHA256 of
/// `SECONDS.BODY`. The time is signed, so that a receiver can refuse an old message that somebody sends again.
pub fn signature(secret: &[u8], seconds: i64, body: &[u8]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC accepts keys of any length");
    mac.update(format!("{seconds}.").as_bytes());
    mac.update(body);
    let hex: String = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("t={seconds},v1={hex}")
}

#[cfg(test)]
mod tests {
    use super::signature;

    /// The expected value is from `printf '1700000000.{"a":1}' | openssl dgst -sha256 -hmac secret`.
    #[test]
    fn the_signature_is_that_of_openssl() {
        let expected = "t=1700000000,v1=49f24e537407743fa4a0242bb63b94b9a47ee99cbbe071ccd8a22550ae411686";
        assert_eq!(signature(b"secret", 1_700_000_000, br#"{"a":1}"#), expected);
    }
}
