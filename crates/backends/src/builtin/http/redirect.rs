//! Decides whether a redirect is followed. Headers and a body may contain secrets: they never reach an origin (scheme,
//! host and port) that the job did not name.

use downbeat_core::shown::shown;
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, LOCATION};
use reqwest::{Method, Request, StatusCode, Url};

#[derive(Debug)]
pub(super) enum Next {
    /// The response is final. The note is the reason why a redirect was not followed.
    Answer(Option<String>),
    Request(Box<Request>),
    /// The response does not count.
    Fail(String),
}

/// Decides what follows the response to a request.
pub(super) fn next(sent: &Request, status: StatusCode, headers: &HeaderMap) -> Next {
    let Some(location) = location(sent.url(), status, headers) else { return Next::Answer(None) };
    let (from, to) = (sent.url().scheme(), location.scheme());
    // From http to https and never back, so that secrets are not sent unencrypted.
    if !matches!((from, to), ("http", "http" | "https") | ("https", "https")) {
        return Next::Fail(format!("redirected from {from} to {to}; this is not allowed"));
    }
    let mut request = match sent.try_clone() {
        Some(copy) if location.origin() == sent.url().origin() => copy,
        _ if *sent.method() == Method::GET || *sent.method() == Method::HEAD => {
            Request::new(sent.method().clone(), sent.url().clone())
        }
        _ => {
            return Next::Answer(Some(format!(
                "redirected to another origin ({}): not followed, since headers and body could leak; request that URL \
                 directly",
                shown(location.as_str())
            )));
        }
    };
    if becomes_get(status, sent.method()) {
        *request.method_mut() = Method::GET;
        *request.body_mut() = None;
        for header in [CONTENT_TYPE, CONTENT_ENCODING] {
            request.headers_mut().remove(header);
        }
    }
    *request.url_mut() = location;
    Next::Request(Box::new(request))
}

/// Returns the target of a redirect, without user and password: only the job may choose those. `None` if the response
/// is not a redirect, or its target cannot be parsed.
fn location(base: &Url, status: StatusCode, headers: &HeaderMap) -> Option<Url> {
    if !matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let mut location = base.join(headers.get(LOCATION)?.to_str().ok()?).ok()?;
    // These fail only for a URL without a host, which has no user.
    let _ = location.set_username("");
    let _ = location.set_password(None);
    Some(location)
}

/// As all clients do: 303 requires it, and servers that respond to a POST with 301 or 302 expect it.
fn becomes_get(status: StatusCode, method: &Method) -> bool {
    match status.as_u16() {
        303 => *method != Method::HEAD,
        301 | 302 => *method == Method::POST,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(method: Method, url: &str) -> Request {
        let mut request = Request::new(method, url.parse().unwrap());
        request.headers_mut().insert("x-vault-token", "secret".parse().unwrap());
        request.headers_mut().insert(CONTENT_TYPE, "application/json".parse().unwrap());
        *request.body_mut() = Some("secret".into());
        request
    }

    fn led(method: Method, from: &str, status: u16, to: &str) -> Next {
        let headers = HeaderMap::from_iter([(LOCATION, to.parse().unwrap())]);
        next(&sent(method, from), StatusCode::from_u16(status).unwrap(), &headers)
    }

    fn followed(method: Method, from: &str, status: u16, to: &str) -> (String, bool, bool) {
        match led(method, from, status, to) {
            Next::Request(request) => (
                format!("{} {}", request.method(), request.url()),
                request.headers().contains_key("x-vault-token"),
                request.body().is_some(),
            ),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn within_an_origin_the_request_is_sent_again_as_it_was() {
        for method in [Method::GET, Method::POST, Method::DELETE] {
            let expected = (format!("{method} http://a/x"), true, true);
            assert_eq!(followed(method, "http://a/y", 307, "/x"), expected);
        }
        let default_port = followed(Method::PUT, "https://a/y", 308, "https://a:443/x");
        assert_eq!(default_port, ("PUT https://a/x".to_owned(), true, true));
        let get = followed(Method::POST, "http://a/y", 303, "x");
        assert_eq!(get, ("GET http://a/x".to_owned(), true, false));
    }

    #[test]
    fn another_origin_gets_neither_headers_nor_body() {
        for (from, to) in [
            ("http://a/", "http://b/"),
            ("http://a/", "http://a:81/"),
            ("http://a/", "https://a/"),
            ("https://a/", "https://a.b/"),
            ("http://a/", "//b/"),
            ("http://a/", "http://joe:pw@b/"),
        ] {
            for status in [301, 302, 303, 307, 308] {
                let (_, headers, body) = followed(Method::GET, from, status, to);
                assert_eq!((headers, body), (false, false), "{from} {status} {to}");
                let Next::Answer(Some(note)) = led(Method::POST, from, status, to) else {
                    panic!("a POST was led from {from} to {to}")
                };
                assert!(
                    note.starts_with("redirected to another origin (http") && !note.contains("pw"),
                    "{note}"
                );
            }
        }
    }

    #[test]
    fn nothing_leads_out_of_http_or_back_from_https() {
        for (from, to) in
            [("https://a/", "http://a/"), ("http://a/", "ftp://a/"), ("http://a/", "file:///etc/passwd")]
        {
            assert!(matches!(led(Method::GET, from, 302, to), Next::Fail(_)), "{from} {to}");
        }
    }

    #[test]
    fn a_response_without_redirect_is_final() {
        assert!(matches!(led(Method::GET, "http://a/", 304, "/x"), Next::Answer(None)));
        assert!(matches!(led(Method::GET, "http://a/", 200, "/x"), Next::Answer(None)));
        let none = next(&sent(Method::GET, "http://a/"), StatusCode::FOUND, &HeaderMap::new());
        assert!(matches!(none, Next::Answer(None)));
    }
}
