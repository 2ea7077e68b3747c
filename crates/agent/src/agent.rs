//! Owns an agent from start to end: start, session, drain, end. The loops of a session belong to `session`.

use std::sync::Arc;
use std::time::Duration;

use downbeat_core::Dice;
use downbeat_core::ids::SessionId;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::guards::Guards;
use crate::holdings::Holdings;
use crate::installation::Installation;
use crate::lease_clock::LeaseClock;
use crate::links::{Connector, Links};
use crate::offer::Offer;
use crate::outbox::Outbox;
use crate::output::Outputs;
use crate::session::{self, Joined, Joining, Outgoing};
use crate::settings::Settings;
use crate::shared::Shared;
use crate::stop::Reason;
use crate::surroundings::Surroundings;
use crate::values;

/// In addition to the grace period: time for KILL to take effect and for streams to be read.
const KILL_MARGIN: Duration = Duration::from_secs(12);

/// How long a killed agent waits for its last results to be written.
const CLOSE_FOR: Duration = Duration::from_secs(2);

/// Starts agents. One process may run several, each with its own data directory.
#[derive(Clone, Copy, Debug)]
pub struct Agent;

/// A running agent. It continues when the handle is dropped.
#[derive(Debug)]
pub struct Handle {
    orders: Orders,
    task: JoinHandle<Result<(), Error>>,
}

#[derive(Clone, Debug, Default)]
struct Orders {
    drain: CancellationToken,
    abandon: CancellationToken,
    kill: CancellationToken,
}

impl Agent {
    /// Starts an agent; call it within a tokio runtime. The handle returns the error if the start fails.
    pub fn start(settings: Settings, connector: Arc<dyn Connector>) -> Handle {
        let orders = Orders::default();
        let task = tokio::spawn({
            let orders = orders.clone();
            async move {
                let surroundings = Surroundings::of_system(&settings)?;
                run(settings, connector, surroundings, orders).await
            }
        });
        Handle { orders, task }
    }

    /// Starts an agent in an environment that the caller provides.
    pub fn start_within(
        settings: Settings,
        connector: Arc<dyn Connector>,
        surroundings: Surroundings,
    ) -> Handle {
        let orders = Orders::default();
        let task = tokio::spawn(run(settings, connector, surroundings, orders.clone()));
        Handle { orders, task }
    }
}

impl Handle {
    /// Asks the agent to accept no new work, finish its current work, and end.
    pub fn drain(&self) {
        self.orders.drain.cancel();
    }

    /// Waits until the agent ended: it was drained, its node was deleted, a newer session of its installation has the
    /// node, or another [`Error`] occurred.
    pub async fn wait(&mut self) -> Result<(), Error> {
        (&mut self.task).await.unwrap_or_else(|error| Err(Error::Bug(error.to_string())))
    }

    pub async fn drain_and_stop(mut self) -> Result<(), Error> {
        self.drain();
        self.wait().await
    }

    /// Kills all processes of the agent and ends it without reporting. The next start delivers the results that exist.
    pub async fn kill(&mut self) {
        self.orders.kill.cancel();
        if !self.task.is_finished() {
            let _ = self.wait().await;
        }
    }

    /// Ends the agent as `kill -9` would: nothing is finished, reported or removed, and processes continue. For tests
    /// and simulations.
    pub async fn abandon(mut self) {
        self.orders.abandon.cancel();
        let _ = self.wait().await;
    }
}

async fn run(
    settings: Settings,
    connector: Arc<dyn Connector>,
    surroundings: Surroundings,
    orders: Orders,
) -> Result<(), Error> {
    let Surroundings { wall, seed, disk, host } = surroundings;
    if settings.servers.is_empty() {
        return Err(Error::NoServer);
    }
    let (outgoing, reports) = unbounded_channel();
    let (outbox, former) = Outbox::open(&settings.data, disk, outgoing.clone(), orders.abandon.clone())?;
    let outbox = Arc::new(outbox);
    let mut dice = Dice::new(seed);
    let session = SessionId(dice.uuid());
    let drawn = host.draw_instance(&mut dice);
    let chance = Dice::new(dice.next_u64());
    let links = Arc::new(Links::new(
        connector,
        settings.servers.clone(),
        settings.hostname.clone(),
        settings.tuning,
        dice,
    ));

    let life = async {
        let offer = Offer::new(&settings, host.as_ref())?;
        // Before anything else: leftover work of the previous run must not overlap with new work.
        let values = settings.data.join("values");
        values::sweep(&values);
        for identity in host.sweep(settings.grace).await {
            tracing::warn!(execution = %identity, "ended work that the previous session left running");
        }
        let installation = Installation::open(&settings.data, host.boot(), wall(), drawn)
            .map_err(|error| Error::Data { path: settings.data.clone(), error })?;
        let clock = LeaseClock::start(host.clone());
        let began = clock.now();
        let joining = Arc::new(Joining {
            cluster: settings.cluster.clone(),
            description: offer.description.clone(),
            session,
            installation,
            undelivered: Mutex::new(former.iter().map(|finished| finished.held).collect()),
            tuning: settings.tuning,
            dice: Mutex::new(chance),
        });
        let opening = session::open(&links, &outbox, former, &joining, &settings.data);
        let (Joined { node, welcome }, undelivered) = tokio::select! {
            biased;
            opened = opening => opened?,
            () = orders.drain.cancelled() => return Ok(()),
        };
        let shared = Arc::new(Shared {
            node,
            session,
            heartbeat_interval: welcome.heartbeat_interval,
            lease_ttl: welcome.lease_ttl,
            grace: settings.grace,
            values,
            disk,
            tuning: settings.tuning,
            wall,
            clock,
            environment: host.environment(),
            host: host.clone(),
            guards: Guards::default(),
            offer,
            links: links.clone(),
            joining,
            outbox: outbox.clone(),
            outputs: Outputs::new(welcome.output_max_bytes),
            outgoing,
            heard: Mutex::new(began),
            renewed: Notify::new(),
            heartbeat_now: Notify::new(),
            complaints: Mutex::default(),
            poll_again: Notify::new(),
            abandon: orders.abandon.clone(),
            holdings: Mutex::new(Holdings::new(settings.slots)),
            changed: Notify::new(),
        });
        shared.hold_former(undelivered);
        serve(&shared, reports, &orders.drain, settings.drain_timeout).await
    };
    let result = tokio::select! {
        biased;
        () = orders.kill.cancelled() => {
            orders.abandon.cancel();
            host.kill_all().await;
            // A disk that hangs does not delay the end that was requested twice.
            let _ = timeout(CLOSE_FOR, outbox.close()).await;
            return Ok(());
        }
        () = orders.abandon.cancelled() => {
            outbox.abandon().await;
            return Ok(());
        }
        result = life => result,
    };
    outbox.close().await;
    result
}

/// Runs the loops of a session until it is drained or one of them ends.
async fn serve(
    shared: &Arc<Shared>,
    reports: UnboundedReceiver<Outgoing>,
    drain: &CancellationToken,
    drain_timeout: Duration,
) -> Result<(), Error> {
    let mut loops = JoinSet::new();
    loops.spawn(session::heartbeat(shared.clone()));
    loops.spawn(session::poll(shared.clone()));
    let (large, larges) = unbounded_channel();
    loops.spawn(session::report(shared.clone(), reports, large));
    loops.spawn(session::send_ahead(shared.clone(), larges));
    loops.spawn(session::output(shared.clone()));
    loops.spawn(session::cut_off(shared.clone()));
    let over = tokio::select! {
        biased;
        over = loops.join_next() => over,
        () = drained(shared, drain, drain_timeout) => {
            // No heartbeat may follow the goodbye.
            loops.shutdown().await;
            session::leave(shared).await;
            return Ok(());
        }
    };
    loops.shutdown().await;
    // The node no longer belongs to this agent, nor do its leases.
    shared.holdings.lock().stop_all(Reason::Fenced);
    let _ = timeout(shared.grace + KILL_MARGIN, shared.until(Holdings::is_idle)).await;
    Err(match over {
        Some(Ok(error)) => error,
        Some(Err(error)) => Error::Bug(error.to_string()),
        None => Error::Bug("the session has no loops".to_owned()),
    })
}

async fn drained(shared: &Shared, drain: &CancellationToken, drain_timeout: Duration) {
    drain.cancelled().await;
    tracing::info!(node = %shared.node, "draining: refusing new work");
    shared.holdings.lock().draining = true;
    let _ = shared.outgoing.send(Outgoing::Offer);
    // Work that was just assigned to this node may still be on its way. Without this poll it would be lost before it
    // started.
    shared.poll_again.notify_one();
    if timeout(shared.tuning.farewell, shared.until(|holdings| holdings.is_complete)).await.is_err() {
        tracing::debug!(node = %shared.node, "no server responded to the last poll");
    }
    if timeout(drain_timeout, shared.until(Holdings::is_idle)).await.is_err() {
        tracing::warn!(node = %shared.node, "work did not end in time; stopping it");
        shared.holdings.lock().stop_all(Reason::Shutdown);
        let _ = timeout(shared.grace + KILL_MARGIN, shared.until(Holdings::is_idle)).await;
    }
    if timeout(shared.tuning.farewell, shared.until(Holdings::is_empty)).await.is_err() {
        tracing::warn!(node = %shared.node, "some results were not delivered; the next start delivers them");
    }
    tracing::info!(node = %shared.node, "drained");
}
