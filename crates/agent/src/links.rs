//! Owns the connections to servers: which server, when to retry, when to try another one. It does not know
//! the messages.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
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

/// How often the same warning is logged while no server responds: often enough to be seen, and a night of them does not
/// fill the disk.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);
/// How often an agent without a server connects during a term of its leases, at least.
const CONNECTS_IN_TERM: u32 = 3;
/// A bulk link that is unused for this long is closed.
const BULK_IDLE: Duration = Duration::from_secs(30);

/// Creates links: gRPC, or a replacement in tests and simulations.
#[async_trait]
pub trait Connector: Send + Sync + std::fmt::Debug + 'static {
    async fn connect(&self, address: &str) -> Result<Arc<dyn Link>, Fault>;
}

#[derive(Clone, Copy, Debug)]
pub struct Grpc;

#[async_trait]
impl Connector for Grpc {
    async fn connect(&self, address: &str) -> Result<Arc<dyn Link>, Fault> {
        Ok(Arc::new(Client::connect(address).await?))
    }
}

/// The links to one server, shared by all parts of the agent: one for control (hello, registration,
/// heartbeats, polls, reports), which is always open, and one for bulk output, which is opened on demand. On
/// a slow network heartbeats and polls thus never queue behind output.
#[derive(Debug)]
pub(crate) struct Links {
    connector: Arc<dyn Connector>,
    addresses: Vec<String>,
    /// Names the agent in the log, which several agents may share.
    hostname: String,
    tuning: Tuning,
    /// The longest pause between two connects: a server that is back gives leases one more term, and several connects
    /// have to fit into it.
    pause_most: parking_lot::Mutex<Duration>,
    /// Calls and connects that failed since the last successful call.
    failures: AtomicU32,
    /// A server has responded before.
    known: AtomicBool,
    complaints: parking_lot::Mutex<Complaints<String>>,
    /// Not part of `connecting`, which stays locked while no server responds: a call that ends must not wait
    /// for it.
    current: parking_lot::Mutex<Option<CallLink>>,
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
    link: Option<CallLink>,
    used_at: Option<Instant>,
    /// Not opened again before this time.
    not_before: Option<Instant>,
}

/// When each key was last warned about.
#[derive(Debug)]
pub(crate) struct Complaints<K>(HashMap<K, Instant>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Control,
    Bulk,
}

/// A link for one call.
#[derive(Clone, Debug)]
pub(crate) struct CallLink {
    number: u64,
    pub(crate) purpose: Purpose,
    address: Arc<str>,
    link: Arc<dyn Link>,
    /// Calls that the server responded to over this link, and their number when the link was used.
    answered: Arc<AtomicU64>,
    answered_before: u64,
}

impl<K> Default for Complaints<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash> Complaints<K> {
    pub(crate) fn is_due(&mut self, key: K, now: Instant) -> bool {
        let last = self.0.entry(key).or_insert(now);
        let is_due = *last == now || now.duration_since(*last) >= COMPLAIN_EVERY;
        if is_due {
            *last = now;
        }
        is_due
    }
}

impl CallLink {
    fn new(number: u64, purpose: Purpose, address: &str, link: Arc<dyn Link>) -> Self {
        Self { number, purpose, address: address.into(), link, answered: Arc::default(), answered_before: 0 }
    }

    fn for_a_call(&self) -> Self {
        Self { answered_before: self.answered.load(Ordering::Relaxed), ..self.clone() }
    }

    pub(crate) fn is(&self, other: &CallLink) -> bool {
        self.number == other.number
    }

    /// Returns whether another call over this link got a response since this call got the link.
    fn was_answered_meanwhile(&self) -> bool {
        self.answered.load(Ordering::Relaxed) != self.answered_before
    }
}

impl std::ops::Deref for CallLink {
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
            pause_most: parking_lot::Mutex::new(tuning.backoff_most),
            failures: AtomicU32::new(0),
            known: AtomicBool::new(false),
            complaints: parking_lot::Mutex::default(),
            current: parking_lot::Mutex::default(),
            connecting: Mutex::new(Connecting { made: 0, dice }),
            bulk: Mutex::default(),
            given_up: watch::Sender::new(0),
        }
    }

    /// Notes how long leases last.
    pub(crate) fn set_lease_ttl(&self, lease_ttl: Duration) {
        *self.pause_most.lock() = self.tuning.backoff_most.min(lease_ttl / CONNECTS_IN_TERM);
    }

    /// Returns the control link. Connects first, for as long as it takes, if there is none.
    pub(crate) async fn control_link(&self) -> CallLink {
        if let Some(used) = &*self.current.lock() {
            return used.for_a_call();
        }
        let mut connecting = self.connecting.lock().await;
        loop {
            // Another task may have connected in the meantime.
            if let Some(used) = &*self.current.lock() {
                return used.for_a_call();
            }
            let failures = self.failures.load(Ordering::Relaxed);
            if failures > 0 {
                let (least, most) = (self.tuning.backoff_least, *self.pause_most.lock());
                tokio::time::sleep(pause(failures, least, most, &mut connecting.dice)).await;
            }
            let turn = usize::try_from(connecting.made).unwrap_or(0) % self.addresses.len();
            let address = &self.addresses[turn];
            connecting.made += 1;
            match self.connector.connect(address).await {
                Ok(link) => {
                    tracing::debug!(hostname = %self.hostname, server = %address, "connected");
                    *self.current.lock() =
                        Some(CallLink::new(connecting.made, Purpose::Control, address, link));
                }
                Err(fault) => self.failed(address, &fault),
            }
        }
    }

    /// Returns the link for a call that carries this much output. Small output uses the control link: a
    /// second connection for each node that prints a line would be too expensive for a server with thousands
    /// of nodes.
    pub(crate) async fn link_for_output(&self, bytes: usize) -> CallLink {
        let control = self.control_link().await;
        let mut bulk = self.bulk.lock().await;
        bulk.used_at = Some(Instant::now());
        // The bulk link has to lead to the same server as the control link, which may have moved to another
        // one.
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
                // Control links are numbered from 1.
                let link = CallLink::new(0, Purpose::Bulk, &control.address, link);
                let used = link.for_a_call();
                bulk.link = Some(link);
                used
            }
            Err(fault) => {
                tracing::debug!(hostname = %self.hostname, server = %control.address, %fault, "no second connection");
                bulk.not_before = Some(Instant::now() + self.tuning.backoff_most);
                control
            }
        }
    }

    /// Closes the bulk link if it was unused for a while. Call this from time to time.
    pub(crate) fn close_idle(&self, now: Instant) {
        // A locked link is being opened.
        if let Ok(mut bulk) = self.bulk.try_lock()
            && bulk.used_at.is_some_and(|used_at| now.duration_since(used_at) >= BULK_IDLE)
        {
            bulk.link = None;
        }
    }

    /// Notes the result of a call. After a failure to reach the server, the next call goes to the next
    /// server.
    pub(crate) async fn note_result<T>(&self, used: &CallLink, result: &Result<T, Fault>) {
        match result {
            Err(Fault::TimedOut(_)) if used.was_answered_meanwhile() => {
                tracing::debug!(hostname = %self.hostname, server = %used.address, "a call timed out; other calls succeed");
            }
            Err(fault @ (Fault::Unavailable(_) | Fault::TimedOut(_))) => match used.purpose {
                Purpose::Control => {
                    if self.give_up(used) {
                        self.failed(&used.address, fault);
                    }
                }
                Purpose::Bulk => self.note_bulk_failure(used, fault).await,
            },
            // Any response proves that the server is there.
            Ok(_) | Err(_) => {
                used.answered.fetch_add(1, Ordering::Relaxed);
                if result.is_ok() {
                    self.answered(used);
                }
            }
        }
    }

    /// A failure of the bulk link does not close the control link.
    async fn note_bulk_failure(&self, used: &CallLink, fault: &Fault) {
        tracing::debug!(hostname = %self.hostname, server = %used.address, %fault, "cannot send output");
        let mut bulk = self.bulk.lock().await;
        if bulk.link.as_ref().is_some_and(|link| Arc::ptr_eq(&link.answered, &used.answered)) {
            bulk.link = None;
            if matches!(fault, Fault::Unavailable(_)) {
                bulk.not_before = Some(Instant::now() + self.tuning.backoff_most);
            }
        }
    }

    fn answered(&self, used: &CallLink) {
        self.known.store(true, Ordering::Relaxed);
        if self.failures.load(Ordering::Relaxed) > 0 && self.failures.swap(0, Ordering::Relaxed) > 0 {
            self.complaints.lock().0.clear();
            tracing::info!(hostname = %self.hostname, server = %used.address, "a server responds again");
        }
    }

    /// Uses the next server for the next call: this one responds, and refuses what others may accept.
    pub(crate) fn move_on(&self, used: &CallLink) {
        if self.addresses.len() > 1 {
            self.give_up(used);
        }
    }

    /// Drops this link if calls still use it. Returns whether they did.
    fn give_up(&self, used: &CallLink) -> bool {
        let mut current = self.current.lock();
        let is_current = current.as_ref().is_some_and(|link| link.is(used));
        if is_current {
            *current = None;
            self.given_up.send_replace(used.number);
        }
        is_current
    }

    /// Waits until another call found this link broken.
    pub(crate) async fn given_up(&self, used: &CallLink) {
        // The channel cannot close while `self` exists.
        let _ = self.given_up.subscribe().wait_for(|number| *number >= used.number).await;
    }

    fn failed(&self, address: &str, fault: &Fault) {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed);
        let (hostname, server) = (&self.hostname, address);
        if !self.complaints.lock().is_due(address.to_owned(), Instant::now()) {
            tracing::debug!(%hostname, server, %fault, "cannot reach the server");
        } else if failures == 0 && self.known.load(Ordering::Relaxed) {
            tracing::warn!(%hostname, server, %fault, "lost the server; retrying");
        } else {
            tracing::warn!(%hostname, server, %fault, "cannot reach the server; retrying");
        }
    }
}

/// Returns the pause before a retry; it doubles with each failure. Half of it is random: thousands of agents that lost
/// one server must not reconnect at the same time.
pub(crate) fn pause(failures: u32, least: Duration, most: Duration, dice: &mut Dice) -> Duration {
    let half = least.saturating_mul(1 << (failures - 1).min(16)).min(most) / 2;
    half + dice.up_to(half)
}

#[cfg(test)]
mod tests;
