//! Owns where an agent dials: `HOST`, `HOST:PORT` or `http://HOST:PORT` in, `HOST:PORT` out.

use downbeat_core::shown::shown;

/// Where servers listen for agents, unless an address names another port.
const PORT: u16 = 4681;

/// The address with its port.
pub(crate) fn dialled(text: &str) -> Result<String, String> {
    let wrong = || format!("`{}` is not an address; write HOST:PORT", shown(text));
    let address = match text.split_once("://") {
        None => text,
        Some(("http", rest)) => rest.strip_suffix('/').unwrap_or(rest),
        Some(("https", _)) => {
            return Err(format!(
                "`{}` asks for TLS, which agents cannot do yet; write HOST:PORT to connect in clear text",
                shown(text)
            ));
        }
        Some(_) => return Err(wrong()),
    };
    let (host, port) = match address.strip_prefix('[') {
        // [::1] and [::1]:4681
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or_else(wrong)?;
            (
                format!("[{host}]"),
                if port.is_empty() { None } else { Some(port.strip_prefix(':').ok_or_else(wrong)?) },
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
        return Err(wrong());
    }
    let port = port.map_or(Ok(PORT), str::parse).map_err(|_| wrong())?;
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
            assert_eq!(dialled(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn an_address_that_promises_tls_is_refused() {
        let refused = dialled("https://downbeat.internal:4681").unwrap_err();
        assert!(refused.contains("asks for TLS") && refused.contains("write HOST:PORT"), "{refused}");
    }

    #[test]
    fn what_is_not_an_address_is_refused() {
        for text in
            ["", ":4681", "a:b", "a:99999", "ftp://a:1", "http://a:1/x", "http://joe@a:1", "a b", "[::1"]
        {
            assert!(dialled(text).unwrap_err().contains("write HOST:PORT"), "{text}");
        }
    }
}
