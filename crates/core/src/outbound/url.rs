//! Owns the check of a URL in a job file. The server parses it again before it connects.

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadUrl {
    #[error("is not a URL; write https://HOST/PATH")]
    Form,
    #[error("has a scheme that servers do not call; write https://HOST/PATH or http://HOST/PATH")]
    Scheme,
    #[error("has no host; write https://HOST/PATH")]
    Host,
    #[error("contains a blank or a control character; encode it, for example as %20")]
    Character,
}

/// Checks that this is an `http` or `https` URL with a host.
pub fn check_url(url: &str) -> Result<(), BadUrl> {
    if url.chars().any(|letter| letter.is_whitespace() || letter.is_control()) {
        return Err(BadUrl::Character);
    }
    let (scheme, rest) = url.split_once("://").ok_or(BadUrl::Form)?;
    if !["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) {
        return Err(BadUrl::Scheme);
    }
    let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    if host.is_empty() || host.starts_with(':') { Err(BadUrl::Host) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_http_urls_with_a_host_are_accepted() {
        for (url, expected) in [
            ("https://hooks.example/a?b=c", Ok(())),
            ("HTTP://10.0.0.1:8080", Ok(())),
            ("http://[::1]:80/", Ok(())),
            ("https://me:word@hooks.example", Ok(())),
            ("hooks.example", Err(BadUrl::Form)),
            ("", Err(BadUrl::Form)),
            ("file:///etc/passwd", Err(BadUrl::Scheme)),
            ("gopher://a", Err(BadUrl::Scheme)),
            ("http://", Err(BadUrl::Host)),
            ("http:///path", Err(BadUrl::Host)),
            ("http://:80/", Err(BadUrl::Host)),
            ("http://a@/", Err(BadUrl::Host)),
            ("http://a b/", Err(BadUrl::Character)),
            ("http://a/\r\nX: y", Err(BadUrl::Character)),
        ] {
            assert_eq!(check_url(url), expected, "{url}");
        }
    }
}
