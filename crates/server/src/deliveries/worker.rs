//! Owns the loop that sends due deliveries. It reads those that are due, and sleeps until the next one is.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use downbeat_core::delivery::{self, Delivery, DeliveryState, Next};
use downbeat_core::ids::{DeliveryId, ServerId};
use downbeat_core::{Change, Dice, Event, Timestamp, level};
use downbeat_store::{self as store, DueKey};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument as _, debug, warn};

use super::send::{Sent, send};
use crate::journal::Perform;
use crate::parts::Parts;

/// Deliveries that one server sends at once, and those to one host: a host that never answers must not delay others.
const AT_ONCE: usize = 64;
const PER_HOST: usize = 4;
/// Deliveries that are read at once: each may have 64 KiB.
const READ: u32 = 64;
/// Reads of one round: a host that takes nothing may have thousands of deliveries in front of those of others.
const READS: u32 = 40;
/// The longest sleep: the clock may be set, and events of another server may be missed.
const SLEEP: Duration = Duration::from_secs(30);
/// The pause after which a delivery of another server's run is taken: normally that server has taken it.
const OTHERS: Duration = Duration::from_secs(1);
/// How long after the timeout of a try its server may record the result. Then any server sends the delivery again.
const RECORD: Duration = Duration::from_secs(5);

/// A handle to the deliveries that this server sends now; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Deliveries {
    server: ServerId,
    now: Arc<Notify>,
    later: Arc<Notify>,
    busy: Arc<Mutex<Busy>>,
}

#[derive(Debug, Default)]
struct Busy {
    ids: HashSet<DeliveryId>,
    hosts: HashMap<String, usize>,
}

impl Deliveries {
    pub(crate) fn new(server: ServerId) -> Self {
        Self { server, now: Arc::default(), later: Arc::default(), busy: Arc::default() }
    }

    fn busy(&self) -> MutexGuard<'_, Busy> {
        self.busy.lock().expect("nothing panics while it holds the deliveries")
    }

    /// Takes a place for a delivery, if there is one and this server does not send it already.
    fn begin(&self, delivery: &Delivery) -> Option<Place> {
        let host = delivery.message.destination();
        let mut busy = self.busy();
        let at_host = busy.hosts.get(&host).copied().unwrap_or(0);
        if busy.ids.len() >= AT_ONCE || at_host >= PER_HOST || !busy.ids.insert(delivery.id) {
            return None;
        }
        busy.hosts.insert(host.clone(), at_host + 1);
        Some(Place { deliveries: self.clone(), id: delivery.id, host })
    }

    fn is_full(&self) -> bool {
        self.busy().ids.len() >= AT_ONCE
    }
}

/// The place of a delivery that is being sent.
struct Place {
    deliveries: Deliveries,
    id: DeliveryId,
    host: String,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut busy = self.deliveries.busy();
        busy.ids.remove(&self.id);
        if let Some(count) = busy.hosts.get_mut(&self.host) {
            *count -= 1;
            if *count == 0 {
                busy.hosts.remove(&self.host);
            }
        }
        drop(busy);
        self.deliveries.now.notify_one();
    }
}

impl Perform for Deliveries {
    fn perform(&self, events: &Arc<[Event]>) {
        for event in events.iter() {
            match &event.change {
                Change::DeliveryQueued { .. } | Change::DeliveryRequested { .. }
                    if event.server == self.server =>
                {
                    self.now.notify_one();
                }
                Change::DeliveryQueued { .. }
                | Change::DeliveryTaken { .. }
                | Change::DeliveryTried { .. }
                | Change::DeliveryRequested { .. }
                    if event.server != self.server =>
                {
                    self.later.notify_one();
                }
                _ => {}
            }
        }
    }
}

/// Sends due deliveries until `stop` is cancelled.
pub(crate) async fn deliver(parts: Parts, stop: CancellationToken) {
    let sending = TaskTracker::new();
    loop {
        let wait = match stop.run_until_cancelled(round(&parts, &sending, &stop)).await {
            None => break,
            Some(Ok(next)) => next.map_or(SLEEP, |next| parts.clock.until(next).min(SLEEP)),
            Some(Err(error)) => {
                warn!(%error, "cannot read the deliveries that are due; trying again");
                SLEEP / 10
            }
        };
        tokio::select! {
            () = stop.cancelled() => break,
            () = parts.deliveries.now.notified() => {}
            () = wait_for_others(&parts.deliveries) => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
    // Those in progress are dropped: another server sends them again.
    sending.close();
}

async fn wait_for_others(deliveries: &Deliveries) {
    deliveries.later.notified().await;
    tokio::time::sleep(OTHERS).await;
}

/// Starts to send what is due. Returns when the next delivery is due that waits only for its time.
async fn round(
    parts: &Parts,
    sending: &TaskTracker,
    stop: &CancellationToken,
) -> Result<Option<Timestamp>, store::Error> {
    let mut after: Option<DueKey> = None;
    if !parts.level.reaches(level::DELIVERIES) {
        return Ok(None);
    }
    for _ in 0..READS {
        let found = parts.store.due_deliveries(after, READ).await?;
        let now = parts.clock.now();
        for delivery in &found {
            let Some(due_at) = delivery.state.due_at() else { continue };
            if due_at > now {
                return Ok(Some(due_at));
            }
            if let Some(place) = parts.deliveries.begin(delivery) {
                let (parts, delivery, stop) = (parts.clone(), delivery.clone(), stop.clone());
                let span = parts.span.clone();
                let one = async move {
                    stop.run_until_cancelled(take_and_send(&parts, &delivery)).await;
                    drop(place);
                };
                sending.spawn(one.instrument(span));
            }
        }
        after = found.last().and_then(DueKey::of);
        if after.is_none() || found.len() < READ as usize || parts.deliveries.is_full() {
            break;
        }
    }
    Ok(None)
}

async fn take_and_send(parts: &Parts, delivery: &Delivery) {
    let (id, run, at) = (delivery.id, delivery.run.clone(), parts.clock.now());
    let attempt = delivery.tries + 1;
    let until = at.saturating_add(delivery.message.timeout().0 + RECORD).unwrap_or(at);
    let taken = Change::DeliveryTaken { run: run.clone(), delivery: id, attempt, until, at };
    match parts.journal.commit_one(taken).await {
        Ok(Ok(())) => {}
        Ok(Err(refusal)) => {
            debug!(delivery = %id, %refusal, "another server sends the delivery");
            return;
        }
        Err(error) => {
            warn!(delivery = %id, %error, "cannot take a delivery; it stays due");
            return;
        }
    }
    let Sent { attempted, code, error } = send(parts, delivery, attempt).await;
    let now = parts.clock.now();
    let mut dice = Dice::new(parts.chance.seed());
    let state = match delivery::next(attempt, attempted, now, &mut dice) {
        Next::Delivered => DeliveryState::Delivered { at: now },
        Next::RetryAt(due_at) => DeliveryState::Pending { due_at },
        Next::GiveUp => DeliveryState::Failed { at: now },
    };
    parts.metrics.delivery_tried(delivery.message.action(), state.status());
    let tried = Change::DeliveryTried { run, delivery: id, attempt, code, error, state, at: now };
    if let Err(error) = parts.journal.commit_one(tried).await {
        warn!(delivery = %id, %error, "cannot record that a delivery was sent; it is sent again");
    }
}
