//! Owns the setting that names reserved destinations to which servers may connect for jobs.

use std::net::IpAddr;

/// Host names, addresses and networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allow {
    names: Vec<String>,
    networks: Vec<Network>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    address: IpAddr,
    prefix: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a host name, an address or a network; write hooks.example, 127.0.0.1 or 10.0.0.0/8, without a port"
)]
pub struct BadEntry(String);

impl Allow {
    pub fn parse<'a>(entries: impl IntoIterator<Item = &'a str>) -> Result<Self, BadEntry> {
        let mut allow = Self::default();
        for entry in entries {
            if let Some(network) = Network::parse(entry) {
                allow.networks.push(network);
            } else if is_name(entry) {
                allow.names.push(plain_name(entry));
            } else {
                return Err(BadEntry(entry.to_owned()));
            }
        }
        Ok(allow)
    }

    /// Returns whether the list has this host, or a network with this address.
    pub(super) fn permits(&self, host: &str, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(address))
            || (!self.names.is_empty() && self.names.contains(&plain_name(host)))
    }
}

/// Returns the name as lists compare it: without the dot at its end, in lower case.
fn plain_name(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// Returns whether this could be a name. Digits and dots alone are a mistyped address.
fn is_name(entry: &str) -> bool {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
    entry.chars().all(plain) && entry.chars().any(|letter| letter.is_ascii_alphabetic())
}

impl Network {
    fn parse(entry: &str) -> Option<Self> {
        let (address, prefix) = match entry.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (entry, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            Some(prefix) => prefix.parse().ok().filter(|prefix| *prefix <= bits)?,
            None => bits,
        };
        Some(Self { address, prefix })
    }

    /// A mapped IPv4 address counts as IPv4: a connection to it is one over IPv4.
    fn contains(&self, address: IpAddr) -> bool {
        match (self.address.to_canonical(), address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let ignored = 32 - u32::from(self.prefix.min(32));
                let mask = u32::MAX.checked_shl(ignored).unwrap_or(0);
                network.to_bits() & mask == address.to_bits() & mask
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let ignored = 128 - u32::from(self.prefix);
                let mask = u128::MAX.checked_shl(ignored).unwrap_or(0);
                network.to_bits() & mask == address.to_bits() & mask
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_neither_name_nor_network_is_refused() {
        for entry in
            ["", "10.0.0.0/33", "fe80::/129", "10.0.0", "10.0.0.1:80", "http://a", "a b", "10.0.0.0/", "*"]
        {
            assert_eq!(Allow::parse([entry]), Err(BadEntry(entry.to_owned())), "{entry}");
        }
        for entry in
            ["localhost", "hooks.example.", "my_host-1", "10.0.0.0/8", "::1", "fe80::/10", "0.0.0.0/0"]
        {
            assert!(Allow::parse([entry]).is_ok(), "{entry}");
        }
    }
}
