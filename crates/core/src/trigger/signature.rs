//! Decides whether the sender of a request knows the secret of an HTTP trigger. All comparisons take the same time,
//! whatever was sent.

use hmac::{Hmac, KeyInit, Mac};
use jiff::Timestamp;
use sha2::Sha256;

use crate::limits::HOOK_WINDOW_S;
use crate::spec::HookAuth;

/// The headers of a request that prove something, and its body. A header that is sent twice is an empty text.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sent<'r> {
    /// `Authorization`.
    pub authorization: Option<&'r str>,
    /// `X-Downbeat-Secret`.
    pub secret: Option<&'r str>,
    /// `X-Hub-Signature-256`.
    pub github: Option<&'r str>,
    /// `X-Slack-Signature`.
    pub slack: Option<&'r str>,
    /// `X-Slack-Request-Timestamp`.
    pub slack_timestamp: Option<&'r str>,
    pub body: &'r [u8],
}

/// A request whose sender knows the secret, or that needs none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proven {
    /// Nothing identifies the request: each one is another request.
    Plain,
    /// The signature in hexadecimal digits: a request with the same one is the same request.
    Signed(String),
}

/// Why a request is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unproven {
    #[error("the header {0} is missing; the trigger needs it")]
    Missing(&'static str),
    #[error("the header {0} is not valid")]
    Malformed(&'static str),
    #[error("the secret is wrong")]
    WrongSecret,
    #[error("the signature is wrong: the sender has another secret, or the body was changed on its way")]
    WrongSignature,
    #[error("the request was signed more than {} s before or after now; send it again", HOOK_WINDOW_S)]
    TooOld,
}

const GITHUB: &str = "X-Hub-Signature-256";
const SLACK: &str = "X-Slack-Signature";
const SLACK_TIME: &str = "X-Slack-Request-Timestamp";
const SECRET: &str = "X-Downbeat-Secret";
const AUTHORIZATION: &str = "Authorization";

/// Checks a request. `secret` is not used with `auth: none`.
pub fn check(auth: HookAuth, secret: &[u8], sent: &Sent<'_>, now: Timestamp) -> Result<Proven, Unproven> {
    match auth {
        HookAuth::None => Ok(Proven::Plain),
        HookAuth::Secret => {
            let found = match (sent.secret, sent.authorization) {
                (Some(secret), _) => secret,
                (None, Some(text)) => bearer(text).ok_or(Unproven::Malformed(AUTHORIZATION))?,
                (None, None) => return Err(Unproven::Missing(SECRET)),
            };
            // Texts of any two lengths take the same time, because only their codes are compared.
            let code = code(secret, &[found.as_bytes()]).finalize().into_bytes();
            let is_same = self::code(secret, &[secret]).verify(&code).is_ok();
            if is_same { Ok(Proven::Plain) } else { Err(Unproven::WrongSecret) }
        }
        HookAuth::Github => {
            let text = sent.github.ok_or(Unproven::Missing(GITHUB))?;
            let signature = digest(text, "sha256=").ok_or(Unproven::Malformed(GITHUB))?;
            signed(secret, &[sent.body], &signature)
        }
        HookAuth::Slack => {
            let text = sent.slack.ok_or(Unproven::Missing(SLACK))?;
            let signature = digest(text, "v0=").ok_or(Unproven::Malformed(SLACK))?;
            let at = sent.slack_timestamp.ok_or(Unproven::Missing(SLACK_TIME))?;
            let seconds = seconds(at).ok_or(Unproven::Malformed(SLACK_TIME))?;
            // First the signature: only who knows the secret learns about the time.
            let proven = signed(secret, &[b"v0:", at.as_bytes(), b":", sent.body], &signature)?;
            let is_near = seconds.abs_diff(now.as_second()) <= HOOK_WINDOW_S.unsigned_abs();
            if is_near { Ok(proven) } else { Err(Unproven::TooOld) }
        }
    }
}

fn bearer(text: &str) -> Option<&str> {
    let (scheme, token) = text.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim()).filter(|token| !token.is_empty())
}

/// Returns the signature of a text in hexadecimal digits, as senders compute it.
pub fn sign(secret: &[u8], parts: &[&[u8]]) -> String {
    hex(&code(secret, parts).finalize().into_bytes())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn code(secret: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut code = Hmac::<Sha256>::new_from_slice(secret).expect("a key may have any length");
    parts.iter().for_each(|part| code.update(part));
    code
}

fn signed(secret: &[u8], parts: &[&[u8]], signature: &[u8; 32]) -> Result<Proven, Unproven> {
    code(secret, parts).verify_slice(signature).map_err(|_| Unproven::WrongSignature)?;
    Ok(Proven::Signed(hex(signature)))
}

/// Reads the 64 hexadecimal digits after a prefix.
fn digest(text: &str, prefix: &str) -> Option<[u8; 32]> {
    let digits = text.strip_prefix(prefix)?.as_bytes();
    let mut bytes = [0; 32];
    if digits.len() != 64 {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        *byte = u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok()?;
    }
    Some(bytes)
}

/// Reads a time in seconds since 1970.
fn seconds(text: &str) -> Option<i64> {
    let is_number = (1..=12).contains(&text.len()) && text.bytes().all(|digit| digit.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The example of GitHub's documentation.
    const GITHUB_SECRET: &[u8] = b"It's a Secret to Everybody";
    const GITHUB_BODY: &[u8] = b"Hello, World!";
    const GITHUB_SIGNATURE: &str = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";

    /// The example of Slack's documentation.
    const SLACK_SECRET: &[u8] = b"8f742231b10e8888abcd99yyyzzz85a5";
    const SLACK_TIME: &str = "1531420618";
    const SLACK_BODY: &[u8] = b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c";
    const SLACK_SIGNATURE: &str = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503";

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn github(signature: Option<&str>, body: &[u8]) -> Result<Proven, Unproven> {
        let sent = Sent { github: signature, body, ..Sent::default() };
        check(HookAuth::Github, GITHUB_SECRET, &sent, at(0))
    }

    #[test]
    fn signatures_of_github_are_checked_against_the_body() {
        let signature = GITHUB_SIGNATURE.strip_prefix("sha256=").unwrap();
        assert_eq!(github(Some(GITHUB_SIGNATURE), GITHUB_BODY), Ok(Proven::Signed(signature.to_owned())));
        let upper = format!("sha256={}", signature.to_uppercase());
        assert_eq!(github(Some(&upper), GITHUB_BODY), Ok(Proven::Signed(signature.to_owned())));
        for (text, expected) in [
            (None, Unproven::Missing(GITHUB)),
            (Some(""), Unproven::Malformed(GITHUB)),
            (Some(signature), Unproven::Malformed(GITHUB)),
            (Some("sha256="), Unproven::Malformed(GITHUB)),
            (Some("sha1=757107ea0eb2509fc211221cce984b8a37570b6d"), Unproven::Malformed(GITHUB)),
            (Some(&GITHUB_SIGNATURE[..70]), Unproven::Malformed(GITHUB)),
            (Some(&format!("{GITHUB_SIGNATURE}0")), Unproven::Malformed(GITHUB)),
            (Some(&GITHUB_SIGNATURE.replace('e', "g")), Unproven::Malformed(GITHUB)),
            (Some(&GITHUB_SIGNATURE.replace('e', "f")), Unproven::WrongSignature),
        ] {
            assert_eq!(github(text, GITHUB_BODY), Err(expected), "{text:?}");
        }
        assert_eq!(github(Some(GITHUB_SIGNATURE), b"Hello, World?"), Err(Unproven::WrongSignature));
    }

    #[test]
    fn signatures_of_slack_are_checked_against_time_and_body_and_expire() {
        let slack = |signature, slack_timestamp, now| {
            let sent = Sent { slack: signature, slack_timestamp, body: SLACK_BODY, ..Sent::default() };
            check(HookAuth::Slack, SLACK_SECRET, &sent, at(now))
        };
        let (signature, time, signed_at) = (Some(SLACK_SIGNATURE), Some(SLACK_TIME), 1_531_420_618);
        for (signature, time, now, expected) in [
            (signature, time, signed_at, None),
            (signature, time, signed_at + 300, None),
            (signature, time, signed_at - 300, None),
            (signature, time, signed_at + 301, Some(Unproven::TooOld)),
            (signature, time, signed_at - 301, Some(Unproven::TooOld)),
            // The time is signed, too.
            (signature, Some("1531420918"), signed_at + 301, Some(Unproven::WrongSignature)),
            (signature, Some("01531420618"), signed_at, Some(Unproven::WrongSignature)),
            (signature, Some(""), signed_at, Some(Unproven::Malformed(super::SLACK_TIME))),
            (signature, Some("+1531420618"), signed_at, Some(Unproven::Malformed(super::SLACK_TIME))),
            (signature, Some("1531420618.5"), signed_at, Some(Unproven::Malformed(super::SLACK_TIME))),
            (signature, Some("9999999999999999999"), signed_at, Some(Unproven::Malformed(super::SLACK_TIME))),
            (signature, None, signed_at, Some(Unproven::Missing(super::SLACK_TIME))),
            (None, time, signed_at, Some(Unproven::Missing(SLACK))),
            (Some("v1=00"), time, signed_at, Some(Unproven::Malformed(SLACK))),
        ] {
            let found = slack(signature, time, now);
            assert_eq!(found.err(), expected, "{signature:?} {time:?} at {now}");
        }
    }

    #[test]
    fn a_shared_secret_is_sent_in_one_of_two_headers() {
        let secret = b"sixteen bytes at least";
        let text = std::str::from_utf8(secret).unwrap();
        for (header, authorization, expected) in [
            (Some(text), None, None),
            (Some(text), Some("Bearer other"), None),
            (None, Some("Bearer sixteen bytes at least"), None),
            (None, Some("bearer  sixteen bytes at least"), None),
            (None, Some("Basic c2l4dGVlbg=="), Some(Unproven::Malformed(AUTHORIZATION))),
            (None, Some("Bearer "), Some(Unproven::Malformed(AUTHORIZATION))),
            (None, Some("Bearer sixteen bytes at leas"), Some(Unproven::WrongSecret)),
            (Some("sixteen bytes at least "), None, Some(Unproven::WrongSecret)),
            (Some(""), None, Some(Unproven::WrongSecret)),
            (None, None, Some(Unproven::Missing(SECRET))),
        ] {
            let sent = Sent { secret: header, authorization, body: b"{}", ..Sent::default() };
            let found = check(HookAuth::Secret, secret, &sent, at(0));
            assert_eq!(found.err(), expected, "{header:?} {authorization:?}");
        }
        assert_eq!(check(HookAuth::None, b"", &Sent::default(), at(0)), Ok(Proven::Plain));
    }

    proptest! {
        #[test]
        fn no_text_is_a_signature_but_64_digits_after_the_prefix(text in "(sha256=|v0=)?[0-9a-fA-FgG=é ]{0,70}", body: Vec<u8>) {
            let read = digest(&text, "sha256=");
            let rest = text.strip_prefix("sha256=").unwrap_or_default();
            let is_valid = rest.len() == 64 && rest.bytes().all(|digit| digit.is_ascii_hexdigit());
            prop_assert_eq!(read.is_some(), is_valid);
            prop_assert!(github(Some(&text), &body).is_err());
        }

        #[test]
        fn no_text_makes_the_checks_panic(text in any::<String>(), other in any::<String>(), body: Vec<u8>, now in 0_i64..4_000_000_000) {
            for auth in [HookAuth::Secret, HookAuth::Github, HookAuth::Slack] {
                let sent = Sent {
                    authorization: Some(&other), secret: Some(&text), github: Some(&text), slack: Some(&text),
                    slack_timestamp: Some(&other), body: &body,
                };
                prop_assert!(check(auth, b"sixteen bytes at least", &sent, at(now)).is_err());
            }
        }

        #[test]
        fn what_is_signed_is_accepted_and_nothing_else(secret in "[ -~]{16,40}", body: Vec<u8>, flip: usize) {
            let text = sign(secret.as_bytes(), &[&body]);
            let signature = format!("sha256={text}");
            let checked = |secret: &str, body: &[u8]| {
                let sent = Sent { github: Some(&signature), body, ..Sent::default() };
                check(HookAuth::Github, secret.as_bytes(), &sent, at(0))
            };
            prop_assert_eq!(checked(&secret, &body), Ok(Proven::Signed(text.clone())));
            let longer = secret.clone() + "x";
            prop_assert!(checked(&longer, &body).is_err());
            let mut other = body.clone();
            match other.len() {
                0 => other.push(0),
                length => other[flip % length] ^= 1,
            }
            prop_assert!(checked(&secret, &other).is_err());
        }
    }
}
