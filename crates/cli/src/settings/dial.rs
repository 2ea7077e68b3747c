//! Parses the address that an agent connects to: `HOST`, `HOST:PORT` or `http://HOST:PORT` in, `HOST:PORT` out.

use downbeat_core::shown::shown;

/// The default port for agents.
const PORT: u16 = 4681;

pub(crate) fn with_port(text: &str) -> Result<String, String> {
    let invalid = || format!("`{}` is not an address; write HOST:PORT", shown(text));
    let address = match text.split_once("://") {
        None => text,
        Some(("http", rest)) => rest.strip_suffix('/').unwrap_or(rest),
        Some(("https", _)) => {
            return Err(format!(
                "`{}` requires TLS, which agents do not support yet; write HOST:PORT to connect in clear text",
                shown(text)
            ));
        }
        Some(_) => return Err(invalid()),
    };
    let (host, port) = match address.strip_prefix('[') {
        // [::1] and [::1]:4681
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or_else(invalid)?;
            (
                format!("[{host}]"),
                if port.is_empty() { None } else { Some(port.strip_prefix(':').ok_or_else(invalid)?) },
            )
        }
        None => match address.split_once(':') {
            // An IPv6 address without brackets has no port.
            Some((_, rest)) if rest.contains(':') => (format!("[{address}]"), None),
            Some((host, port)) => (host.to_owned(), Some(port)),
            None => (address.to_owned(), None),
        },
    };
    let bare = host.trim_matches(['[', ']']);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '%');
    if bare.is_empty() || !bare.chars().all(is_plain) {
        return Err(invalid());
    }
    let port = port.map_or(Ok(PORT), str::parse).map_err(|_| invalid())?;
    Ok(format!("{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_port_has_the_agents_port() {
        for (text, expected) in [
            ("10.0.0.1", "10.0.0.1:4681"),
            ("10.0.0.1:7", "10.0.0.1:7"),
            ("http://downbeat.internal", "downbeat.internal:4681"),
            ("http://downbeat.internal:7/", "downbeat.internal:7"),
            ("::1", "[::1]:4681"),
            ("[::1]", "[::1]:4681"),
            ("[::1]:7", "[::1]:7"),
        ] {
            assert_eq!(with_port(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn an_address_that_promises_tls_is_refused() {
        let refused = with_port("https://downbeat.internal:4681").unwrap_err();
        assert!(refused.contains("requires TLS") && refused.contains("write HOST:PORT"), "{refused}");
    }

    #[test]
    fn what_is_not_an_address_is_refused() {
        for text in
            ["", ":4681", "a:b", "a:99999", "ftp://a:1", "http://a:1/x", "http://joe@a:1", "a b", "[::1"]
        {
            assert!(with_port(text).unwrap_err().contains("write HOST:PORT"), "{text}");
        }
    }
}
