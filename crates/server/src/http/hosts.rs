//! Decides which host names a request may use, as a defence against DNS rebinding.
//!
//! A page at `http://evil.example:4680` may let its name resolve to 127.0.0.1 after it was loaded. The browser then
//! treats this server as the page's own: the page can read everything, and its requests look like those of the same
//! origin. Only the name in `Host` reveals it, so a browser must use a name that belongs to this server.
//!
//! | the server listens on | accepted |
//! |---|---|
//! | a loopback address | `localhost`, loopback addresses, `allowed_hosts` |
//! | any other address | the same, every address, this machine's hostname; other names only from programs |
//!
//! An address in `Host` cannot be rebound: no name was resolved. A request without `Host` does not come from a browser,
//! which always sends it. `*.localhost` is not accepted, since another program may serve a page under such a name.
//!
//! On a loopback address only programs of this machine connect, and they have no reason to use another
//! name. A public server has many names (DNS, a balancer, `/etc/hosts`) that it cannot know, and `downbeat
//! --server http://jobs.example:4680` has to work without a setting. A page cannot rebind a program, so the
//! name that a program uses does not matter. A page after rebinding is of the same origin: its reads have
//! no `Origin`, and without TLS no `Sec-Fetch-Site`. But they have `Accept-Language`, which every browser
//! sends, and which a page can change but not remove. So a request with any of these headers needs a known
//! name; others do not.

use std::net::{IpAddr, SocketAddr};

use axum::http::header::{ACCEPT_LANGUAGE, HOST, ORIGIN, REFERER};
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode};
use downbeat_api::code;

use super::problem::{Failure, HttpResult};

/// Browsers set headers with this prefix; no page can set or remove them.
const OF_BROWSERS: &str = "sec-";
/// In `allowed_hosts`: every name.
const ANY: &str = "*";

#[derive(Clone, Debug)]
pub(crate) struct Hosts {
    reach: Reach,
    hostname: String,
    allowed: Vec<String>,
}

/// Which machines can connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    ThisMachine,
    Others,
}

impl Hosts {
    /// `listen` is the address of the port, or `None` if it is unknown.
    pub(crate) fn new(listen: Option<SocketAddr>, hostname: &str, allowed: &[String]) -> Self {
        let is_loopback = listen.is_none_or(|listen| listen.ip().to_canonical().is_loopback());
        Self {
            reach: if is_loopback { Reach::ThisMachine } else { Reach::Others },
            hostname: normal(hostname),
            allowed: allowed.iter().map(|name| normal(name)).collect(),
        }
    }

    pub(super) fn check(&self, parts: &Parts) -> HttpResult<()> {
        let named = parts.uri.authority().map(Authority::as_str).into_iter();
        let named = named.chain(parts.headers.get_all(HOST).iter().map(|name| name.to_str().unwrap_or("?")));
        let by_browser = is_browser(&parts.headers);
        for host in named {
            if !self.accepts(host, by_browser) {
                return Err(self.unknown(host));
            }
        }
        Ok(())
    }

    fn accepts(&self, host: &str, by_browser: bool) -> bool {
        // Text that is not a valid host has an empty name, which is never known.
        let name = host.parse::<Authority>().map(|authority| normal(authority.host())).unwrap_or_default();
        let is_allowed = |allowed: &String| *allowed == name || allowed == ANY;
        if name == "localhost" || self.allowed.iter().any(is_allowed) {
            return true;
        }
        let address = name.parse::<IpAddr>().map(|address| address.to_canonical());
        match self.reach {
            Reach::ThisMachine => address.is_ok_and(|address| address.is_loopback()),
            Reach::Others => address.is_ok() || (!name.is_empty() && name == self.hostname) || !by_browser,
        }
    }

    fn unknown(&self, host: &str) -> Failure {
        let client = match self.reach {
            Reach::ThisMachine => "",
            Reach::Others => " for a browser or a program that looks like one",
        };
        let detail = format!(
            "this server is not known as `{host}`{client}; use its address, or add the name to its setting \
             `allowed_hosts`"
        );
        Failure::new(StatusCode::MISDIRECTED_REQUEST, code::UNKNOWN_HOST, detail)
    }
}

/// Converts to lower case, without the brackets of an IPv6 address and the final dot of a full name.
fn normal(name: &str) -> String {
    let name = name.trim().to_ascii_lowercase();
    let name = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(&name);
    name.strip_suffix('.').unwrap_or(name).to_owned()
}

fn is_browser(headers: &HeaderMap) -> bool {
    [ORIGIN, ACCEPT_LANGUAGE, REFERER].iter().any(|name| headers.contains_key(name))
        || headers.keys().any(|name| name.as_str().starts_with(OF_BROWSERS))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRAM: bool = false;
    const BROWSER: bool = true;

    fn hosts(listen: &str, allowed: &[&str]) -> Hosts {
        let allowed: Vec<String> = allowed.iter().map(|&name| name.to_owned()).collect();
        Hosts::new(Some(listen.parse().unwrap()), "Jobs-01", &allowed)
    }

    #[test]
    fn on_loopback_only_names_of_this_machine_are_accepted_from_any_client() {
        for listen in ["127.0.0.1:4680", "[::1]:4680", "127.0.0.2:4680"] {
            let hosts = hosts(listen, &["jobs.example"]);
            for by_browser in [PROGRAM, BROWSER] {
                for host in [
                    "localhost",
                    "LOCALHOST:4680",
                    "localhost.:4680",
                    "127.0.0.1:4680",
                    "127.0.0.2",
                    "[::1]:4680",
                    "jobs.example:80",
                ] {
                    assert!(hosts.accepts(host, by_browser), "{listen}: {host}");
                }
                for host in [
                    "evil.example",
                    "evil.localhost:4680",
                    "localhost.evil.example",
                    "127.0.0.1.evil.example",
                    "192.168.0.1:4680",
                    "jobs-01:4680",
                    "",
                    "a b",
                ] {
                    assert!(!hosts.accepts(host, by_browser), "{listen}: {host}");
                }
            }
        }
    }

    #[test]
    fn for_others_programs_may_use_any_name_and_browsers_only_known_ones() {
        for listen in ["0.0.0.0:4680", "[::]:4680", "192.168.0.1:4680"] {
            let hosts = hosts(listen, &["jobs.example"]);
            for host in
                ["localhost:4680", "192.168.0.1:4680", "[2001:db8::1]", "jobs-01:4680", "jobs.example"]
            {
                assert!(hosts.accepts(host, PROGRAM) && hosts.accepts(host, BROWSER), "{listen}: {host}");
            }
            for host in ["evil.example", "jobs-01.evil.example", "evil.localhost"] {
                assert!(hosts.accepts(host, PROGRAM), "{listen}: {host}");
                assert!(!hosts.accepts(host, BROWSER), "{listen}: {host}");
            }
        }
    }

    #[test]
    fn a_refusal_says_whether_being_a_browser_is_the_reason() {
        let detail = |listen: &str| format!("{:?}", hosts(listen, &[]).unknown("jobs.example"));
        assert!(!detail("127.0.0.1:1").contains("browser"), "{}", detail("127.0.0.1:1"));
        assert!(
            detail("0.0.0.0:1").contains("for a browser or a program that looks like one; use its address")
        );
    }

    #[test]
    fn a_star_allows_every_name() {
        assert!(hosts("127.0.0.1:1", &["*"]).accepts("evil.example", BROWSER));
    }

    #[test]
    fn every_browser_is_known_by_what_it_sends() {
        let with = |name: &'static str| HeaderMap::from_iter([(name.parse().unwrap(), "x".parse().unwrap())]);
        for name in ["origin", "accept-language", "referer", "sec-fetch-site", "sec-ch-ua"] {
            assert!(is_browser(&with(name)), "{name}");
        }
        for name in ["accept", "user-agent", "content-type", "idempotency-key"] {
            assert!(!is_browser(&with(name)), "{name}");
        }
    }
}
