//! Parses the address of a server.

use downbeat_api::request::HTTP_PORT;
use reqwest::Url;

use crate::error::{Error, Result};

/// Parses a URL, HOST or HOST:PORT. A URL without a port means port 80, where a proxy listens; HOST means the server's
/// own port.
pub fn url(server: &str) -> Result<Url> {
    let is_url = server.contains("://");
    let text = if is_url { server.to_owned() } else { format!("http://{server}") };
    let wrong = |why: &str| Error::BadAddress { server: server.to_owned(), why: why.to_owned() };
    let mut url = Url::parse(&text).map_err(|error| wrong(&error.to_string()))?;
    if url.scheme() == "https" {
        return Err(wrong("https is not supported in this version"));
    }
    if url.scheme() != "http" {
        return Err(wrong(&format!("`{}` is not supported", url.scheme())));
    }
    if url.host_str().is_none() {
        return Err(wrong("the host is missing"));
    }
    if !is_url && !names_port(server) {
        let _ = url.set_port(Some(HTTP_PORT));
    }
    Ok(url)
}

/// Returns whether HOST:PORT has a port: `[::1]` has none.
fn names_port(server: &str) -> bool {
    let authority = server.split('/').next().unwrap_or_default();
    authority.rsplit(']').next().unwrap_or_default().contains(':')
}

/// Returns whether the URL names this machine. A proxy for other hosts cannot reach its ports.
pub fn is_local(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    host == "localhost" || host.starts_with("127.") || host == "[::1]"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_a_port_is_asked_on_the_servers_own() {
        for (server, url) in [
            ("10.0.0.1", "http://10.0.0.1:4680/"),
            ("db.example", "http://db.example:4680/"),
            ("[::1]", "http://[::1]:4680/"),
            ("[::1]:5000", "http://[::1]:5000/"),
            ("host:80", "http://host/"),
            ("host:4680", "http://host:4680/"),
            ("http://proxy.example", "http://proxy.example/"),
        ] {
            assert_eq!(self::url(server).unwrap().as_str(), url, "{server}");
        }
    }

    #[test]
    fn an_invalid_url_is_refused() {
        for server in ["https://host", "http://", "host:port:x"] {
            assert!(matches!(url(server), Err(Error::BadAddress { .. })), "{server}");
        }
    }
}
