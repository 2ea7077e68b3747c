//! Owns the decision whether a server may connect to an address for a job.
//!
//! The address is checked, not the name: a name may resolve to anything, and to something else a second later. Private
//! networks (10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, fc00::/7) are allowed: the services that jobs notify are there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Allow;

/// Why an address is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reserved {
    #[error("this machine (loopback)")]
    Loopback,
    #[error("the link-local network")]
    LinkLocal,
    #[error("no address of a host")]
    Unspecified,
    #[error("more than one host (multicast or broadcast)")]
    Multicast,
    #[error("the metadata of a cloud provider")]
    Metadata,
    #[error("this server")]
    ItsOwn,
}

/// Checks one address that a host name resolved to, or that a URL contains. `is_own` is set if this server listens
/// there.
pub fn check(host: &str, address: IpAddr, is_own: bool, allow: &Allow) -> Result<(), Reserved> {
    if allow.permits(host, address) {
        return Ok(());
    }
    if let Some(reserved) = reserved(address) {
        return Err(reserved);
    }
    if is_own { Err(Reserved::ItsOwn) } else { Ok(()) }
}

fn reserved(address: IpAddr) -> Option<Reserved> {
    match address {
        IpAddr::V4(address) => reserved_v4(address),
        IpAddr::V6(address) => reserved_v6(address),
    }
}

/// Addresses outside of 169.254.0.0/16 at which clouds serve credentials: Alibaba, Azure, Oracle.
const METADATA_V4: [Ipv4Addr; 3] =
    [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(168, 63, 129, 16), Ipv4Addr::new(192, 0, 0, 192)];

/// The same on IPv6: AWS and Google.
const METADATA_V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)];

fn reserved_v4(address: Ipv4Addr) -> Option<Reserved> {
    if METADATA_V4.contains(&address) || address == Ipv4Addr::new(169, 254, 169, 254) {
        return Some(Reserved::Metadata);
    }
    match address.octets() {
        // Linux connects to itself for 0.0.0.0.
        [0, ..] => Some(Reserved::Unspecified),
        [127, ..] => Some(Reserved::Loopback),
        [169, 254, ..] => Some(Reserved::LinkLocal),
        [224..=255, ..] => Some(Reserved::Multicast),
        _ => None,
    }
}

fn reserved_v6(address: Ipv6Addr) -> Option<Reserved> {
    if METADATA_V6.contains(&address) {
        return Some(Reserved::Metadata);
    }
    if address.is_unspecified() {
        return Some(Reserved::Unspecified);
    }
    if address.is_loopback() {
        return Some(Reserved::Loopback);
    }
    if let Some(inner) = embedded(address) {
        return reserved_v4(inner);
    }
    match address.segments()[0] {
        0xfe80..=0xfebf => Some(Reserved::LinkLocal),
        0xff00..=0xffff => Some(Reserved::Multicast),
        _ => None,
    }
}

/// Returns the IPv4 address to which packets for this address go: mapped and compatible addresses, NAT64 and 6to4.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [a, b, c, d, e, f, high, low] = address.segments();
    let inner = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Ipv4Addr::new(a, b, c, d)
    };
    match [a, b, c, d, e, f] {
        [0, 0, 0, 0, 0, 0 | 0xffff] | [0x64, 0xff9b, 0, 0, 0, 0] => Some(inner(high, low)),
        [0x2002, high, low, ..] => Some(inner(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(host: &str, address: &str, is_own: bool, allow: &[&str]) -> Result<(), Reserved> {
        let allow = Allow::parse(allow.iter().copied()).unwrap();
        check(host, address.parse().unwrap(), is_own, &allow)
    }

    #[test]
    fn addresses_of_this_machine_its_link_and_its_cloud_are_reserved() {
        use Reserved::{LinkLocal, Loopback, Metadata, Multicast, Unspecified};
        for (address, expected) in [
            ("93.184.216.34", None),
            ("10.1.2.3", None),
            ("172.16.0.1", None),
            ("192.168.1.1", None),
            ("100.64.0.1", None),
            ("2606:2800:220:1::1", None),
            ("fd12:3456::1", None),
            ("::ffff:10.0.0.1", None),
            ("64:ff9b::5db8:d822", None),
            ("127.0.0.1", Some(Loopback)),
            ("127.255.0.9", Some(Loopback)),
            ("::1", Some(Loopback)),
            ("::ffff:127.0.0.1", Some(Loopback)),
            ("::127.0.0.1", Some(Loopback)),
            ("64:ff9b::7f00:1", Some(Loopback)),
            ("2002:7f00:1::", Some(Loopback)),
            ("0.0.0.0", Some(Unspecified)),
            ("0.1.2.3", Some(Unspecified)),
            ("::", Some(Unspecified)),
            ("::ffff:0.0.0.0", Some(Unspecified)),
            ("169.254.0.1", Some(LinkLocal)),
            ("::ffff:169.254.1.1", Some(LinkLocal)),
            ("fe80::1", Some(LinkLocal)),
            ("febf::1", Some(LinkLocal)),
            ("fec0::1", None),
            ("224.0.0.1", Some(Multicast)),
            ("240.0.0.1", Some(Multicast)),
            ("255.255.255.255", Some(Multicast)),
            ("ff02::1", Some(Multicast)),
            ("169.254.169.254", Some(Metadata)),
            ("::ffff:169.254.169.254", Some(Metadata)),
            ("64:ff9b::a9fe:a9fe", Some(Metadata)),
            ("100.100.100.200", Some(Metadata)),
            ("168.63.129.16", Some(Metadata)),
            ("fd00:ec2::254", Some(Metadata)),
        ] {
            assert_eq!(checked("hooks.example", address, false, &[]).err(), expected, "{address}");
        }
    }

    #[test]
    fn the_setting_allows_names_addresses_and_networks() {
        for (host, address, is_own, allow, expected) in [
            ("localhost", "127.0.0.1", false, ["localhost"], true),
            ("LOCALHOST", "127.0.0.1", false, ["localhost"], true),
            ("localhost.", "127.0.0.1", false, ["LocalHost"], true),
            ("other", "127.0.0.1", false, ["localhost"], false),
            ("other", "127.0.0.1", false, ["127.0.0.1"], true),
            ("other", "127.0.0.2", false, ["127.0.0.1"], false),
            ("other", "127.0.0.2", false, ["127.0.0.0/8"], true),
            ("other", "::ffff:127.0.0.2", false, ["127.0.0.0/8"], true),
            ("other", "169.254.1.1", false, ["169.254.0.0/17"], true),
            ("other", "169.254.129.1", false, ["169.254.0.0/17"], false),
            ("other", "fe80::7", false, ["fe80::/10"], true),
            ("other", "fec0::7", true, ["fe80::/10"], false),
            ("other", "10.0.0.1", true, ["10.0.0.2"], false),
            ("other", "10.0.0.1", true, ["10.0.0.0/8"], true),
            ("other", "10.0.0.1", true, ["0.0.0.0/0"], true),
        ] {
            let allowed = checked(host, address, is_own, &allow).is_ok();
            assert_eq!(allowed, expected, "{host} {address} with {allow:?}");
        }
    }
}
