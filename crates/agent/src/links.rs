//! Owns the way to a server: which one, when to try again, when to try another. What is said over it is not its own.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use downbeat_core::Dice;
use downbeat_proto::Link;
use downbeat_proto::grpc::Client;
use downbeat_proto::message::Fault;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

use crate::settings::Tuning;

/// While no server answers, each address is complained about this often: whoever looks at the log sees it, and a night
/// does not fill a disk.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

/// Makes links: gRPC, or whatever a test or a simulation puts in its place.
#[async_trait]
pub trait Connector: Send + Sync + std::fmt::Debug + 'static {
    async fn connect(&self, address: &str) -> Result<Arc<dyn Link>, Fault>;
}

/// Connects by gRPC.
#[derive(Clone, Copy, Debug)]
pub struct Grpc;

#[async_trait]
impl Connector for Grpc {
    async fn connect(&self, address: &str) -> Result<Arc<dyn Link>, Fault> {
        Ok(Arc::new(Client::connect(address).await?))
    }
}

/// One link at a time, shared by all parts of the agent.
#[derive(Debug)]
pub(crate) struct Links {
    connector: Arc<dyn Connector>,
    addresses: Vec<String>,
    /// Whose links they are: several agents may share a log.
    hostname: String,
    tuning: Tuning,
    /// Calls and connects that failed since the last call that did not.
    failures: AtomicU32,
    /// A server has answered before.
    known: AtomicBool,
    /// Apart from `current`, which is locked while connecting: an answer that arrived does not wait for that.
    complaints: std::sync::Mutex<Complaints>,
    current: Mutex<Current>,
    /// The number of the last link that failed.
    given_up: watch::Sender<u64>,
}

#[derive(Debug)]
struct Current {
    link: Option<Lent>,
    made: u64,
    dice: Dice,
}

/// When each address was last complained about, since a server last answered.
#[derive(Debug, Default)]
struct Complaints(HashMap<String, Instant>);

/// A link for one call.
#[derive(Clone, Debug)]
pub(crate) struct Lent {
    number: u64,
    address: Arc<str>,
    link: Arc<dyn Link>,
}

impl Complaints {
    fn is_due(&mut self, address: &str, now: Instant) -> bool {
        match self.0.get_mut(address) {
            Some(last) if now.duration_since(*last) < COMPLAIN_EVERY => false,
            Some(last) => {
                *last = now;
                true
            }
            None => {
                self.0.insert(address.to_owned(), now);
                true
            }
        }
    }
}

impl Lent {
    /// Whether both are one link.
    pub(crate) fn is(&self, other: &Lent) -> bool {
        self.number == other.number
    }
}

impl std::ops::Deref for Lent {
    type Target = dyn Link;

    fn deref(&self) -> &Self::Target {
        &*self.link
    }
}

impl Links {
    pub(crate) fn new(
        connector: Arc<dyn Connector>,
        addresses: Vec<String>,
        hostname: String,
        tuning: Tuning,
        dice: Dice,
    ) -> Self {
        let current = Mutex::new(Current { link: None, made: 0, dice });
        Self {
            connector,
            addresses,
            hostname,
            tuning,
            failures: AtomicU32::new(0),
            known: AtomicBool::new(false),
            complaints: std::sync::Mutex::default(),
            current,
            given_up: watch::Sender::new(0),
        }
    }

    /// The current link; connects, for as long as it takes, when there is none.
    pub(crate) async fn lend(&self) -> Lent {
        let mut current = self.current.lock().await;
        loop {
            if let Some(lent) = &current.link {
                return lent.clone();
            }
            let failures = self.failures.load(Ordering::Relaxed);
            if failures > 0 {
                tokio::time::sleep(pause(failures, &self.tuning, &mut current.dice)).await;
            }
            let turn = usize::try_from(current.made).unwrap_or(0) % self.addresses.len();
            let address = &self.addresses[turn];
            current.made += 1;
            match self.connector.connect(address).await {
                Ok(link) => {
                    tracing::debug!(hostname = %self.hostname, server = %address, "connected");
                    current.link =
                        Some(Lent { number: current.made, address: address.as_str().into(), link });
                }
                Err(fault) => self.failed(address, &fault),
            }
        }
    }

    /// Every call ends with this: what failed in passing is tried at the next server.
    pub(crate) async fn settle<T>(&self, lent: &Lent, result: &Result<T, Fault>) {
        match result {
            Ok(_) => {
                self.known.store(true, Ordering::Relaxed);
                if self.failures.load(Ordering::Relaxed) > 0 && self.failures.swap(0, Ordering::Relaxed) > 0 {
                    self.complaints().0.clear();
                    tracing::info!(hostname = %self.hostname, server = %lent.address, "a server answers");
                }
            }
            Err(fault @ Fault::Unavailable(_)) => {
                let mut current = self.current.lock().await;
                if current.link.as_ref().is_some_and(|link| link.number == lent.number) {
                    current.link = None;
                    self.given_up.send_replace(lent.number);
                    self.failed(&lent.address, fault);
                }
            }
            Err(
                Fault::NotFound(_)
                | Fault::Superseded(_)
                | Fault::Unknown(_)
                | Fault::Occupied(_)
                | Fault::Rejected(_),
            ) => {}
        }
    }

    /// This server answers, and refuses what others may take: the next call goes to the next one.
    pub(crate) async fn move_on(&self, lent: &Lent) {
        let mut current = self.current.lock().await;
        if self.addresses.len() > 1 && current.link.as_ref().is_some_and(|link| link.number == lent.number) {
            current.link = None;
            self.given_up.send_replace(lent.number);
        }
    }

    /// Until another call found that this link leads nowhere.
    pub(crate) async fn given_up(&self, lent: &Lent) {
        // It cannot be closed while `self` is here.
        let _ = self.given_up.subscribe().wait_for(|number| *number >= lent.number).await;
    }

    fn complaints(&self) -> std::sync::MutexGuard<'_, Complaints> {
        self.complaints.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, address: &str, fault: &Fault) {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed);
        let (hostname, server) = (&self.hostname, address);
        if !self.complaints().is_due(address, Instant::now()) {
            tracing::debug!(%hostname, server, %fault, "no server reached");
        } else if failures == 0 && self.known.load(Ordering::Relaxed) {
            tracing::warn!(%hostname, server, %fault, "lost the server; trying on");
        } else {
            tracing::warn!(%hostname, server, %fault, "no server reached; trying on");
        }
    }
}

/// Half of it is certain, half is chance: thousands of agents that lost one server must not come back as one.
fn pause(failures: u32, tuning: &Tuning, dice: &mut Dice) -> Duration {
    let doubled = tuning.backoff_least.saturating_mul(1 << (failures - 1).min(16));
    let half = doubled.min(tuning.backoff_most) / 2;
    half + dice.up_to(half)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_differ() {
        let tuning = Tuning::default();
        let mut dice = Dice::new(7);
        for (failures, most_ms) in [(1, 100), (2, 200), (3, 400), (6, 3_200), (7, 5_000), (4_000_000, 5_000)]
        {
            let most = Duration::from_millis(most_ms);
            let pauses: Vec<Duration> = (0..50).map(|_| pause(failures, &tuning, &mut dice)).collect();
            assert!(pauses.iter().all(|pause| (most / 2..=most).contains(pause)), "{failures}: {pauses:?}");
            assert!(pauses.iter().any(|pause| pause != &pauses[0]));
        }
    }

    #[test]
    fn each_address_is_complained_about_at_once_and_then_once_a_minute() {
        let mut complaints = Complaints::default();
        let begun = Instant::now();
        let due: Vec<u64> = (0..=150)
            .filter(|second| complaints.is_due("a:1", begun + Duration::from_secs(*second)))
            .collect();
        assert_eq!(due, [0, 60, 120]);
        assert!(complaints.is_due("b:1", begun));
    }
}
