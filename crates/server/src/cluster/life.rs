//! Owns this server's signs of life, and its look at those of the others: a run whose owner fell silent is taken over.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use downbeat_core::Timestamp;
use downbeat_core::ids::{RunId, ServerId};
use downbeat_core::level;
use downbeat_core::servers::{Look, Sign, Silence, look};
use downbeat_store::{self as store, Hint, ServerRecord};
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

/// When this server's last sign of life reached the store, unless one failed since. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastSign(Arc<Mutex<Option<Instant>>>);

impl LastSign {
    /// Whether the others see this server alive.
    pub(crate) fn is_fresh(&self, stale_after: Duration) -> bool {
        self.signed().is_some_and(|signed| signed.elapsed() < stale_after)
    }

    fn set(&self, signed: Option<Instant>) {
        *self.signed() = signed;
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
                    self.parts.last_sign.set(None);
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
        let mut hints = self.parts.store.hints();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = another_left(&mut hints) => {}
                () = tokio::time::sleep(self.pause()) => {}
            }
            // A store that is away is complained about by whoever signs.
            if self.parts.last_sign.is_fresh(self.parts.settings.server_stale_after.0) {
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
        parts.last_sign.set(Some(Instant::now()));
        let (now, break_after) = (parts.clock.now(), self.gone_after() / 2);
        let mut rhythm = self.rhythm();
        if rhythm.last == Timestamp::MIN || now.duration_since(rhythm.last) > break_after {
            rhythm.since = now;
        }
        rhythm.last = now;
        Ok(())
    }

    /// Looks at all servers' signs of life, and acts on them. If that fails, the next look is soon.
    pub(crate) async fn take_over_ownerless(&self) {
        let looked = async {
            // Before the servers: the owner of a run has signed on before it owns it.
            let open = self.parts.store.open_run_owners().await?;
            let servers = self.parts.store.servers().await?;
            self.act(self.look(&servers, open), &servers).await
        };
        if let Err(error) = looked.await {
            warn!(%error, "cannot look after runs");
        }
    }

    fn look(&self, servers: &[ServerRecord], open: Vec<(RunId, ServerId)>) -> Look {
        let parts = &self.parts;
        let now = parts.clock.now();
        let own = Sign {
            id: parts.server,
            name: &parts.name,
            started_at: parts.started_at,
            seen_at: now,
            level: level::LEVEL,
        };
        let signs: Vec<Sign<'_>> = servers.iter().map(sign_of).collect();
        let silence = Silence { since: self.rhythm().since, gone_after: self.gone_after() };
        look(&own, &signs, open, |run| parts.runs.owns(run), silence, now)
    }

    async fn act(&self, look: Look, servers: &[ServerRecord]) -> Result<(), store::Error> {
        let parts = &self.parts;
        let index = look.alive.iter().position(|server| *server == parts.server).unwrap_or(0);
        parts.dispatcher.board().share(Share { index: index as u64, servers: look.alive.len() as u64 });
        parts.level.update(look.level);
        for server in servers {
            if look.replaced_by == Some(server.id) && !std::mem::replace(&mut self.rhythm().replaced, true) {
                parts.last_sign.set(None);
                error!(
                    name = &*parts.name,
                    other = %server.http,
                    "another server was started with this server's name; its runs go to others: give each its own \
                     --name"
                );
            }
            if look.forgotten.contains(&server.id) {
                parts.store.remove_server(server.id).await?;
                info!(server = server.name, "forgot a server that has been gone for a day");
            }
        }
        take_over(parts, look.ownerless).await
    }

    fn gone_after(&self) -> SignedDuration {
        let stale_after: Duration = self.parts.settings.server_stale_after.0;
        SignedDuration::try_from(stale_after * (PARTS - 1) / PARTS).unwrap_or(SignedDuration::MAX)
    }
}

fn sign_of(server: &ServerRecord) -> Sign<'_> {
    Sign {
        id: server.id,
        name: &server.name,
        started_at: server.started_at,
        seen_at: server.seen_at,
        level: server.level,
    }
}

/// A server that leaves says so: its runs need not wait until it counts as gone.
async fn another_left(hints: &mut broadcast::Receiver<Hint>) {
    loop {
        match hints.recv().await {
            Ok(Hint::Servers) => return,
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}
