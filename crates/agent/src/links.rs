//! Owns the way to a server: which one, when to try again, when to try another. What is said over it is not its own.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use downbeat_core::Dice;
use downbeat_proto::Link;
use downbeat_proto::grpc::Client;
use downbeat_proto::message::Fault;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

use crate::output::pace;
use crate::settings::Tuning;

/// While no server answers, each address is complained about this often: whoever looks at the log sees it, and a night
/// does not fill a disk.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);
/// A bulk link that nobody used for this long is closed.
const BULK_IDLE: Duration = Duration::from_secs(30);

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

/// The ways to one server, shared by all parts of the agent: one for control (hello, registration, heartbeats, polls,
/// reports), which is always wanted, and one for bulk (much output), which is opened on demand. On a slow line
/// heartbeats and polls so never queue behind output.
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
    complaints: std::sync::Mutex<Complaints>,
    /// Apart from `connecting`, which is locked while no server is there: a call that ends does not wait for that.
    current: std::sync::Mutex<Option<Lent>>,
    connecting: Mutex<Connecting>,
    bulk: Mutex<Bulk>,
    /// The number of the last link that failed.
    given_up: watch::Sender<u64>,
}

#[derive(Debug)]
struct Connecting {
    made: u64,
    dice: Dice,
}

#[derive(Debug, Default)]
struct Bulk {
    link: Option<Lent>,
    /// A link that nobody used for a while is closed.
    used_at: Option<Instant>,
    /// Not to be opened again before this.
    not_before: Option<Instant>,
}

/// When each address was last complained about, since a server last answered.
#[derive(Debug, Default)]
struct Complaints(HashMap<String, Instant>);

/// What a link is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Control,
    Bulk,
}

/// A link for one call.
#[derive(Clone, Debug)]
pub(crate) struct Lent {
    number: u64,
    pub(crate) purpose: Purpose,
    address: Arc<str>,
    link: Arc<dyn Link>,
    /// Calls that were answered over this link, and how many were when it was lent.
    answered: Arc<AtomicU64>,
    answered_before: u64,
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
    fn new(number: u64, purpose: Purpose, address: &str, link: Arc<dyn Link>) -> Self {
        Self { number, purpose, address: address.into(), link, answered: Arc::default(), answered_before: 0 }
    }

    fn for_a_call(&self) -> Self {
        Self { answered_before: self.answered.load(Ordering::Relaxed), ..self.clone() }
    }

    /// Whether both are one link.
    pub(crate) fn is(&self, other: &Lent) -> bool {
        self.number == other.number
    }

    /// Whether another call over this link was answered since it was lent for this one.
    fn was_answered_meanwhile(&self) -> bool {
        self.answered.load(Ordering::Relaxed) != self.answered_before
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
        Self {
            connector,
            addresses,
            hostname,
            tuning,
            failures: AtomicU32::new(0),
            known: AtomicBool::new(false),
            complaints: std::sync::Mutex::default(),
            current: std::sync::Mutex::default(),
            connecting: Mutex::new(Connecting { made: 0, dice }),
            bulk: Mutex::default(),
            given_up: watch::Sender::new(0),
        }
    }

    /// The control link; connects, for as long as it takes, when there is none.
    pub(crate) async fn lend(&self) -> Lent {
        if let Some(lent) = &*self.current() {
            return lent.for_a_call();
        }
        let mut connecting = self.connecting.lock().await;
        loop {
            // Somebody else may have connected meanwhile.
            if let Some(lent) = &*self.current() {
                return lent.for_a_call();
            }
            let failures = self.failures.load(Ordering::Relaxed);
            if failures > 0 {
                tokio::time::sleep(pause(failures, &self.tuning, &mut connecting.dice)).await;
            }
            let turn = usize::try_from(connecting.made).unwrap_or(0) % self.addresses.len();
            let address = &self.addresses[turn];
            connecting.made += 1;
            match self.connector.connect(address).await {
                Ok(link) => {
                    tracing::debug!(hostname = %self.hostname, server = %address, "connected");
                    *self.current() = Some(Lent::new(connecting.made, Purpose::Control, address, link));
                }
                Err(fault) => self.failed(address, &fault),
            }
        }
    }

    /// The link for a call that carries this many bytes of output. A few go over the control link: a second connection
    /// for each node that prints a line would cost a server of thousands of nodes dearly.
    pub(crate) async fn lend_for_output(&self, bytes: usize) -> Lent {
        let control = self.lend().await;
        let mut bulk = self.bulk.lock().await;
        bulk.used_at = Some(Instant::now());
        // To the server that the control link leads to: the other one may have been given up because of its server.
        let open = bulk.link.as_ref().filter(|link| link.address == control.address);
        if let Some(link) = open {
            return link.for_a_call();
        }
        bulk.link = None;
        let is_early = bulk.not_before.is_some_and(|not_before| Instant::now() < not_before);
        if bytes <= pace::LEAST_BYTES || is_early {
            return control;
        }
        match self.connector.connect(&control.address).await {
            Ok(link) => {
                tracing::debug!(hostname = %self.hostname, server = %control.address, "connected for output");
                // Numbers tell links apart. Control links have those from 1 on.
                let link = Lent::new(0, Purpose::Bulk, &control.address, link);
                let lent = link.for_a_call();
                bulk.link = Some(link);
                lent
            }
            Err(fault) => {
                tracing::debug!(hostname = %self.hostname, server = %control.address, %fault, "no second connection");
                bulk.not_before = Some(Instant::now() + self.tuning.backoff_most);
                control
            }
        }
    }

    /// Closes the bulk link when nobody used it for a while. To be called now and then.
    pub(crate) fn close_idle(&self, now: Instant) {
        // Locked: it is being opened.
        if let Ok(mut bulk) = self.bulk.try_lock()
            && bulk.used_at.is_some_and(|used_at| now.duration_since(used_at) >= BULK_IDLE)
        {
            bulk.link = None;
        }
    }

    /// Every call ends with this: what failed in passing is tried at the next server.
    pub(crate) async fn settle<T>(&self, lent: &Lent, result: &Result<T, Fault>) {
        match result {
            Err(Fault::TimedOut(_)) if lent.was_answered_meanwhile() => {
                tracing::debug!(hostname = %self.hostname, server = %lent.address, "a call timed out; others are answered");
            }
            Err(fault @ (Fault::Unavailable(_) | Fault::TimedOut(_))) => match lent.purpose {
                Purpose::Control => {
                    if self.give_up(lent) {
                        self.failed(&lent.address, fault);
                    }
                }
                Purpose::Bulk => self.settle_bulk(lent, fault).await,
            },
            // Whatever it said: it is there.
            Ok(_) | Err(_) => {
                lent.answered.fetch_add(1, Ordering::Relaxed);
                if result.is_ok() {
                    self.answered(lent);
                }
            }
        }
    }

    /// A failure of the bulk link says nothing about the control link, and does not close it.
    async fn settle_bulk(&self, lent: &Lent, fault: &Fault) {
        tracing::debug!(hostname = %self.hostname, server = %lent.address, %fault, "output was not taken");
        let mut bulk = self.bulk.lock().await;
        if bulk.link.as_ref().is_some_and(|link| Arc::ptr_eq(&link.answered, &lent.answered)) {
            bulk.link = None;
            if matches!(fault, Fault::Unavailable(_)) {
                bulk.not_before = Some(Instant::now() + self.tuning.backoff_most);
            }
        }
    }

    fn answered(&self, lent: &Lent) {
        self.known.store(true, Ordering::Relaxed);
        if self.failures.load(Ordering::Relaxed) > 0 && self.failures.swap(0, Ordering::Relaxed) > 0 {
            self.complaints().0.clear();
            tracing::info!(hostname = %self.hostname, server = %lent.address, "a server answers");
        }
    }

    /// This server answers, and refuses what others may take: the next call goes to the next one.
    pub(crate) fn move_on(&self, lent: &Lent) {
        if self.addresses.len() > 1 {
            self.give_up(lent);
        }
    }

    /// Returns whether it was still the one that calls go over.
    fn give_up(&self, lent: &Lent) -> bool {
        let mut current = self.current();
        let is_current = current.as_ref().is_some_and(|link| link.is(lent));
        if is_current {
            *current = None;
            self.given_up.send_replace(lent.number);
        }
        is_current
    }

    fn current(&self) -> std::sync::MutexGuard<'_, Option<Lent>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
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
mod tests;
