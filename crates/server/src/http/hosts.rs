//! Decides for which names a request may ask the server: the answer to DNS rebinding.
//!
//! A page at `http://evil.example:4680` may let its name resolve to 127.0.0.1 after it was loaded. The browser then takes
//! this server for the page's own: the page reads everything, and its requests look like those of the same origin. The
//! one thing that gives it away is the name in `Host`, so a browser must come by a name that belongs to this server.
//!
//! | the server listens on | accepted |
//! |---|---|
//! | a loopback address | `localhost`, loopback addresses, `allowed_hosts` |
//! | any other address | the same, every address, this machine's hostname; and any name, unless a browser asks |
//!
//! An address in `Host` cannot be rebound: no name was resolved. Nor can a request without `Host`: browsers always send
//! it. `*.localhost` is not accepted, since another program may serve a page under such a name.
//!
//! On a loopback address only programs of this machine connect, and they have no reason to use another name. A server
//! for others has many names (DNS, a balancer, `/etc/hosts`) that it cannot know, and `downbeat --server
//! http://jobs.example:4680` has to work without a setting. A program cannot be rebound by a page, so its name does not
//! matter; but is it a program? A page after rebinding is of the same origin: its reads carry no `Origin`, and without
//! TLS no `Sec-Fetch-Site`. They carry `Accept-Language`, which every browser sends, and which a page can change but not
//! remove. So a request with any of these needs a known name, and others do not.

use std::net::{IpAddr, SocketAddr};

use axum::http::header::{ACCEPT_LANGUAGE, HOST, ORIGIN, REFERER};
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode};
use downbeat_api::code;

use super::problem::{Answer, Failure};

/// Headers with this prefix are the browser's own: no page can set or remove them.
const OF_BROWSERS: &str = "sec-";
/// In `allowed_hosts`: every name.
const ANY: &str = "*";

/// The names of this server.
#[derive(Clone, Debug)]
pub(crate) struct Hosts {
    reach: Reach,
    hostname: String,
    allowed: Vec<String>,
}

/// Who can connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    ThisMachine,
    Others,
}

impl Hosts {
    /// `listen` is the address that the port listens on; nothing when that is not known.
    pub(crate) fn new(listen: Option<SocketAddr>, hostname: &str, allowed: &[String]) -> Self {
        let is_loopback = listen.is_none_or(|listen| listen.ip().to_canonical().is_loopback());
        Self {
            reach: if is_loopback { Reach::ThisMachine } else { Reach::Others },
            hostname: normal(hostname),
            allowed: allowed.iter().map(|name| normal(name)).collect(),
        }
    }

    /// Refuses a request that asks for a name that is not this server's.
    pub(super) fn check(&self, parts: &Parts) -> Answer<()> {
        let asked = parts.uri.authority().map(Authority::as_str).into_iter();
        let asked = asked.chain(parts.headers.get_all(HOST).iter().map(|name| name.to_str().unwrap_or("?")));
        let by_browser = is_browser(&parts.headers);
        for host in asked {
            if !self.accepts(host, by_browser) {
                return Err(self.unknown(host));
            }
        }
        Ok(())
    }

    fn accepts(&self, host: &str, by_browser: bool) -> bool {
        // What is not even a host has no name that could be known.
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
        let to_whom = match self.reach {
            Reach::ThisMachine => "",
            Reach::Others => " to a browser, or a program that looks like one",
        };
        let detail = format!(
            "this server is not known as `{host}`{to_whom}; use its address, or start it with that name in the setting \
             `allowed_hosts`"
        );
        Failure::new(StatusCode::MISDIRECTED_REQUEST, code::UNKNOWN_HOST, detail)
    }
}

/// Lower case, without the brackets of an IPv6 address and without the dot that ends a full name.
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
    fn on_loopback_only_names_of_this_machine_are_accepted_whoever_asks() {
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
    fn whoever_is_refused_hears_whether_it_is_for_being_a_browser() {
        let told = |listen: &str| format!("{:?}", hosts(listen, &[]).unknown("jobs.example"));
        assert!(!told("127.0.0.1:1").contains("browser"), "{}", told("127.0.0.1:1"));
        assert!(
            told("0.0.0.0:1").contains("to a browser, or a program that looks like one; use its address")
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
