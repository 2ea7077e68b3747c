//! Owns this server's signs of life, and its look at those of the others: a run whose owner fell silent is taken over.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use downbeat_core::Timestamp;
use downbeat_core::ids::{RunId, ServerId};
use downbeat_core::level;
use downbeat_store::{self as store, News, ServerRecord};
use jiff::SignedDuration;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::dispatch::Share;
use crate::parts::Parts;
use crate::runs::take_over;

/// The time after which a server counts as stale has so many parts. In each it signs twice, and it is taken for gone
/// when all but one have passed in silence: so its runs go on elsewhere within that time.
const PARTS: u32 = 5;
/// How long a server that is gone is still listed.
const FORGET_AFTER: SignedDuration = SignedDuration::from_hours(24);

/// When this server's last sign of life reached the store, unless one failed since; cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Standing(Arc<Mutex<Option<Instant>>>);

impl Standing {
    /// Whether the others see this server alive.
    pub(crate) fn is_good(&self, stale_after: Duration) -> bool {
        self.signed().is_some_and(|signed| signed.elapsed() < stale_after)
    }

    fn signed(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the module.
pub(crate) struct Life {
    parts: Parts,
    http: String,
    grpc: String,
    rhythm: Mutex<Rhythm>,
}

/// How this server's own signs of life have come.
#[derive(Clone, Copy, Debug)]
struct Rhythm {
    /// Since when without a break, here and so elsewhere: silence before does not count, for it may have been the
    /// store's.
    since: Timestamp,
    last: Timestamp,
    /// Another server started later under the same name.
    replaced: bool,
}

impl Life {
    /// Takes the store's time, and signs on.
    pub(crate) async fn begin(parts: Parts, http: String, grpc: String) -> Result<Self, store::Error> {
        parts.clock.set_by(parts.store.as_ref()).await?;
        let now = parts.clock.now();
        let rhythm = Mutex::new(Rhythm { since: now, last: now, replaced: false });
        let life = Self { parts, http, grpc, rhythm };
        life.sign().await?;
        if !life.parts.store.is_shared() {
            // An embedded store has one server: whoever else signed on is a former life.
            for other in life.parts.store.servers().await? {
                if other.id != life.parts.server {
                    life.parts.store.remove_server(other.id).await?;
                }
            }
        }
        Ok(life)
    }

    fn rhythm(&self) -> MutexGuard<'_, Rhythm> {
        self.rhythm.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pause(&self) -> Duration {
        self.parts.settings.server_stale_after.0 / PARTS / 2
    }

    /// Signs until it is told to stop. Apart from all that takes long: who is busy is not gone.
    pub(crate) async fn live(self: Arc<Self>, stop: CancellationToken) {
        let mut quiet = false;
        while stop.run_until_cancelled(tokio::time::sleep(self.pause())).await.is_some() {
            if self.rhythm().replaced {
                continue;
            }
            let signed = async {
                self.parts.clock.set_by(self.parts.store.as_ref()).await?;
                self.sign().await
            };
            match signed.await {
                Ok(()) if quiet => {
                    quiet = false;
                    info!("the store takes signs of life again");
                }
                Ok(()) => {}
                Err(error) => {
                    *self.parts.standing.signed() = None;
                    // The next one begins a new rhythm.
                    self.rhythm().last = Timestamp::MIN;
                    if !std::mem::replace(&mut quiet, true) {
                        warn!(%error, "cannot give a sign of life; trying on");
                    }
                }
            }
        }
    }

    /// Looks after the runs of those that are gone, until it is told to stop.
    pub(crate) async fn look_after(self: Arc<Self>, stop: CancellationToken) {
        let mut news = self.parts.store.news();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = another_left(&mut news) => {}
                () = tokio::time::sleep(self.pause()) => {}
            }
            // A store that is away is complained about by whoever signs.
            if self.parts.standing.is_good(self.parts.settings.server_stale_after.0) {
                self.take_over_ownerless().await;
            }
        }
    }

    async fn sign(&self) -> Result<(), store::Error> {
        let parts = &self.parts;
        let record = ServerRecord {
            id: parts.server,
            name: parts.name.to_string(),
            http: self.http.clone(),
            grpc: self.grpc.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: parts.started_at,
            seen_at: parts.clock.now(),
            level: level::LEVEL,
        };
        parts.store.put_server(&record).await?;
        *parts.standing.signed() = Some(Instant::now());
        let (now, break_after) = (parts.clock.now(), self.gone_after() / 2);
        let mut rhythm = self.rhythm();
        if rhythm.last == Timestamp::MIN || now.duration_since(rhythm.last) > break_after {
            rhythm.since = now;
        }
        rhythm.last = now;
        Ok(())
    }

    /// What cannot be taken now is looked at again soon.
    pub(crate) async fn take_over_ownerless(&self) {
        let taken = async { take_over(&self.parts, self.ownerless().await?).await };
        if let Err(error) = taken.await {
            warn!(%error, "cannot look after runs");
        }
    }

    /// Two servers of one name would take each other's place for ever: the one that started first gives way.
    fn give_way(&self, servers: &[ServerRecord]) {
        let (own, name, started) = (self.parts.server, &*self.parts.name, self.parts.started_at);
        let is_later = |s: &&ServerRecord| s.id != own && s.name == name && s.started_at > started;
        if let Some(other) = servers.iter().find(is_later)
            && !std::mem::replace(&mut self.rhythm().replaced, true)
        {
            *self.parts.standing.signed() = None;
            error!(
                name,
                other = %other.http,
                "another server was started with this server's name; its runs go to others: give each its own --name"
            );
        }
    }

    /// A server that has been gone for so long does not come back under its old id: its row goes.
    async fn forget(&self, servers: &[ServerRecord]) -> Result<(), store::Error> {
        let now = self.parts.clock.now();
        for server in servers.iter().filter(|server| now.duration_since(server.seen_at) > FORGET_AFTER) {
            self.parts.store.remove_server(server.id).await?;
            info!(server = server.name, "forgot a server that has been gone for a day");
        }
        Ok(())
    }

    /// Open runs whose owner is gone. Also those that are this server's by the record and have no actor: the commit
    /// that made them so took effect without its knowing, or what followed failed.
    async fn ownerless(&self) -> Result<Vec<RunId>, store::Error> {
        // Before the servers: whoever owns a run by then has signed on before.
        let open = self.parts.store.open_run_owners().await?;
        let now = self.parts.clock.now();
        let since = self.rhythm().since;
        let lives = |server: &ServerRecord| now.duration_since(server.seen_at.max(since)) < self.gone_after();
        let servers = self.parts.store.servers().await?;
        let alive: BTreeSet<ServerId> = servers.iter().filter(|s| lives(s)).map(|s| s.id).collect();
        let index = alive.iter().position(|server| *server == self.parts.server).unwrap_or(0);
        let share = Share { index: index as u64, servers: alive.len() as u64 };
        self.parts.dispatcher.board().share(share);
        self.parts.level.settle(servers.iter().filter(|s| lives(s)).map(|s| s.level));
        self.give_way(&servers);
        self.forget(&servers).await?;
        let (own, runs) = (self.parts.server, &self.parts.runs);
        let ownerless = |(run, owner): &(RunId, ServerId)| {
            if *owner == own { !runs.owns(run) } else { !alive.contains(owner) }
        };
        Ok(open.into_iter().filter(ownerless).map(|(run, _)| run).collect())
    }

    fn gone_after(&self) -> SignedDuration {
        let stale_after: Duration = self.parts.settings.server_stale_after.0;
        SignedDuration::try_from(stale_after * (PARTS - 1) / PARTS).unwrap_or(SignedDuration::MAX)
    }
}

/// A server that leaves says so: its runs need not wait until it counts as gone.
async fn another_left(news: &mut broadcast::Receiver<News>) {
    loop {
        match news.recv().await {
            Ok(News::Servers) => return,
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}
