//! Owns the check of addresses before a connection: of a name when it is resolved, of an address in a URL.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;

use downbeat_core::outbound::{self, Allow};
use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::error::RefusedAddress;

/// Where this server listens, and what it may call besides unreserved addresses.
#[derive(Clone, Debug)]
pub(super) struct Guard {
    pub(super) allow: Arc<Allow>,
    pub(super) own: Arc<[SocketAddr]>,
}

impl Guard {
    /// Checks an address in a URL. A name is checked when it is resolved.
    pub(super) fn check(&self, url: &Url) -> Result<(), RefusedAddress> {
        let host = url.host_str().unwrap_or_default();
        let literal = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        match literal.parse() {
            Ok(address) => self.check_address(host, address, self.is_own_port(url)),
            Err(_) => Ok(()),
        }
    }

    /// Returns whether this server listens on the port of the URL.
    pub(super) fn is_own_port(&self, url: &Url) -> bool {
        let port = url.port_or_known_default();
        self.own.iter().any(|own| Some(own.port()) == port)
    }

    fn check_address(&self, host: &str, address: IpAddr, is_own_port: bool) -> Result<(), RefusedAddress> {
        let is_own = is_own_port && self.is_own(address);
        outbound::check(host, address, is_own, &self.allow).map_err(|why| RefusedAddress {
            host: host.to_owned(),
            address,
            why,
        })
    }

    /// Returns whether this server listens at the address. If it listens at all addresses, those to which a socket can
    /// be bound are its own.
    fn is_own(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.own.iter().any(|own| own.ip().to_canonical() == address)
            || (self.own.iter().any(|own| own.ip().is_unspecified()) && UdpSocket::bind((address, 0)).is_ok())
    }
}

/// Resolves names with the system's resolver, and returns only addresses that are allowed. A resolver does not see the
/// port: there is one for the ports of this server, and one for all others.
pub(super) struct CheckedResolver {
    pub(super) guard: Guard,
    pub(super) is_own_port: bool,
}

impl Resolve for CheckedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (guard, is_own_port) = (self.guard.clone(), self.is_own_port);
        Box::pin(async move {
            let host = name.as_str();
            let mut allowed: Vec<SocketAddr> = Vec::new();
            let mut refused = None;
            // The port is that of the URL; 0 leaves it open.
            for found in tokio::net::lookup_host((host, 0)).await? {
                match guard.check_address(host, found.ip(), is_own_port) {
                    Ok(()) => allowed.push(found),
                    Err(error) => refused = Some(error),
                }
            }
            match refused {
                Some(refused) if allowed.is_empty() => Err(refused.into()),
                _ => Ok(Box::new(allowed.into_iter()) as Addrs),
            }
        })
    }
}
