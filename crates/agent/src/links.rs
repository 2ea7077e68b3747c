//! Owns the way to a server: which one, when to try again, when to try another. What is said over it is not its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use downbeat_core::Dice;
use downbeat_proto::Link;
use downbeat_proto::grpc::Client;
use downbeat_proto::message::Fault;
use tokio::sync::Mutex;

use crate::settings::Tuning;

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
    tuning: Tuning,
    /// Calls and connects that failed since the last call that did not.
    failures: AtomicU32,
    current: Mutex<Current>,
}

#[derive(Debug)]
struct Current {
    link: Option<Lent>,
    made: u64,
    dice: Dice,
}

/// A link for one call.
#[derive(Clone, Debug)]
pub(crate) struct Lent {
    number: u64,
    link: Arc<dyn Link>,
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
        tuning: Tuning,
        dice: Dice,
    ) -> Self {
        let current = Mutex::new(Current { link: None, made: 0, dice });
        Self { connector, addresses, tuning, failures: AtomicU32::new(0), current }
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
                    tracing::debug!(server = %address, "connected");
                    current.link = Some(Lent { number: current.made, link });
                }
                Err(fault) => {
                    if self.failures.fetch_add(1, Ordering::Relaxed) == 0 {
                        tracing::warn!(server = %address, %fault, "no server reached; trying on");
                    } else {
                        tracing::debug!(server = %address, %fault, "no server reached");
                    }
                }
            }
        }
    }

    /// Every call ends with this: what failed in passing is tried at the next server.
    pub(crate) async fn settle<T>(&self, lent: &Lent, result: &Result<T, Fault>) {
        match result {
            Ok(_) => {
                if self.failures.load(Ordering::Relaxed) > 0 && self.failures.swap(0, Ordering::Relaxed) > 0 {
                    tracing::info!("a server answers again");
                }
            }
            Err(Fault::Unavailable(why)) => {
                let mut current = self.current.lock().await;
                if current.link.as_ref().is_some_and(|link| link.number == lent.number) {
                    current.link = None;
                    if self.failures.fetch_add(1, Ordering::Relaxed) == 0 {
                        tracing::warn!(%why, "lost the server; trying on");
                    }
                }
            }
            Err(Fault::NotFound(_) | Fault::Superseded(_) | Fault::Rejected(_)) => {}
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
}
