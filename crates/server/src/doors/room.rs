//! Counts connections: in total, and per address. It opens no sockets.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use downbeat_core::collections::HashMap;

/// How many connections one port accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) total: usize,
    pub(crate) per_address: usize,
    /// Connections from this machine: a proxy, a test or many agents may connect from there.
    pub(crate) loopback: usize,
}

/// Why there is no room for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Full {
    #[error("the maximum of {0} connections is open")]
    Total(usize),
    #[error("the maximum of {0} connections from that address is open")]
    Address(usize),
}

/// The connections of one port. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    bounds: Bounds,
    counts: Arc<Mutex<Counts>>,
}

#[derive(Debug, Default)]
struct Counts {
    total: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// One connection. Dropping it makes room for another.
#[derive(Debug)]
#[must_use]
pub(crate) struct Permit {
    room: Room,
    address: IpAddr,
}

impl Room {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self { bounds, counts: Arc::default() }
    }

    pub(crate) fn enter(&self, from: IpAddr) -> Result<Permit, Full> {
        let address = counted_as(from);
        let most = if address.is_loopback() { self.bounds.loopback } else { self.bounds.per_address };
        let mut counts = self.counts();
        if counts.total >= self.bounds.total {
            return Err(Full::Total(self.bounds.total));
        }
        let of_address = counts.by_address.entry(address).or_default();
        if *of_address >= most {
            return Err(Full::Address(most));
        }
        *of_address += 1;
        counts.total += 1;
        drop(counts);
        Ok(Permit { room: self.clone(), address })
    }

    // A panic between two additions leaves a count that is off by one, which is better than a closed port.
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut counts = self.room.counts();
        counts.total = counts.total.saturating_sub(1);
        if let Some(count) = counts.by_address.get_mut(&self.address) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                counts.by_address.remove(&self.address);
            }
        }
    }
}

/// Returns the address to count. An IPv4 address that arrives as IPv6 counts as IPv4. Of an IPv6 address
/// only the first 64 bits count: one host has all addresses with that prefix.
fn counted_as(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { total: 5, per_address: 2, loopback: 4 };

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_address_gets_no_more_than_its_share_and_leaves_the_others_theirs() {
        let room = Room::new(BOUNDS);
        let _two = [room.enter(address("10.0.0.1")).unwrap(), room.enter(address("10.0.0.1")).unwrap()];
        assert_eq!(room.enter(address("10.0.0.1")).unwrap_err(), Full::Address(2));
        assert!(room.enter(address("10.0.0.2")).is_ok());
    }

    #[test]
    fn all_addresses_together_get_no_more_than_the_total() {
        let room = Room::new(BOUNDS);
        let held: Vec<Permit> =
            (1..=5).map(|last| room.enter(address(&format!("10.0.0.{last}"))).unwrap()).collect();
        assert_eq!(room.enter(address("10.0.0.9")).unwrap_err(), Full::Total(5));
        drop(held);
        assert!(room.enter(address("10.0.0.9")).is_ok());
    }

    #[test]
    fn a_connection_that_ends_makes_room_and_leaves_nothing_behind() {
        let room = Room::new(BOUNDS);
        for _ in 0..100 {
            let one = room.enter(address("10.0.0.1")).unwrap();
            let _two = room.enter(address("10.0.0.1")).unwrap();
            drop(one);
        }
        let counts = room.counts();
        assert_eq!((counts.total, counts.by_address.len()), (0, 0));
    }

    #[test]
    fn this_machine_has_a_bound_of_its_own() {
        let room = Room::new(BOUNDS);
        let held: Vec<Permit> = (0..4).map(|_| room.enter(address("127.0.0.1")).unwrap()).collect();
        assert_eq!(room.enter(address("127.0.0.1")).unwrap_err(), Full::Address(4));
        drop(held);
    }

    #[test]
    fn addresses_of_one_host_count_together() {
        let room = Room::new(BOUNDS);
        let _held = [
            room.enter(address("2001:db8::1")).unwrap(),
            room.enter(address("2001:db8::2:1")).unwrap(),
            room.enter(address("10.0.0.1")).unwrap(),
            room.enter(address("::ffff:10.0.0.1")).unwrap(),
        ];
        assert_eq!(room.enter(address("2001:db8::3")).unwrap_err(), Full::Address(2));
        assert_eq!(room.enter(address("10.0.0.1")).unwrap_err(), Full::Address(2));
        assert!(room.enter(address("2001:db8:0:1::1")).is_ok());
    }
}
