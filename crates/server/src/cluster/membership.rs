//! Sends this server's heartbeats, and watches those of the others: it takes over runs whose owner is silent.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use downbeat_core::ids::{RunId, ServerId};
use downbeat_core::servers::{Look, Sign, SilenceRule, look};
use downbeat_core::{Timestamp, level};
use downbeat_store::{self as store, Hint, ServerRecord};
use jiff::SignedDuration;
use tokio::sync::broadcast;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::dispatch::Share;
use crate::parts::Parts;
use crate::runs::take_over;
use crate::settings::Settings;
use crate::signal::heard;

/// `server_stale_after` is divided into this many parts. A server sends two heartbeats in each, and counts
/// as gone after all but one have passed in silence, so that its runs continue elsewhere within that time.
const PARTS: u32 = 5;

/// Returns how often a server sends a heartbeat.
pub(crate) fn heartbeat_pause(settings: &Settings) -> Duration {
    settings.server_stale_after.0 / PARTS / 2
}

/// When this server's last heartbeat reached the store, unless one failed since. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastSign(Arc<Mutex<Option<Instant>>>);

impl LastSign {
    /// Returns whether the other servers see this one alive.
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

/// This server's membership in the set of servers that share the store.
pub(crate) struct Membership {
    parts: Parts,
    history: Mutex<History>,
}

/// The history of this server's own heartbeats.
#[derive(Clone, Copy, Debug)]
struct History {
    /// Since when they were sent without a break. Silence of others before that does not count: the store
    /// may have been unavailable.
    since: Timestamp,
    last: Timestamp,
    /// Another server started later under the same name.
    replaced: bool,
}

impl Membership {
    /// Registers this server.
    pub(crate) async fn join(parts: Parts) -> Result<Self, store::Error> {
        let now = parts.clock.now();
        let history = Mutex::new(History { since: now, last: now, replaced: false });
        let member = Self { parts, history };
        member.sign().await?;
        if !member.parts.store.is_shared() {
            // An embedded store has one server: all others are earlier sessions of it.
            for other in member.parts.store.servers().await? {
                if other.id != member.parts.server {
                    member.parts.store.remove_server(other.id).await?;
                }
            }
        }
        Ok(member)
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pause(&self) -> Duration {
        heartbeat_pause(&self.parts.settings)
    }

    /// Sends heartbeats until `stop`, in its own task: a busy server is not gone.
    pub(crate) async fn send_heartbeats(self: Arc<Self>, stop: CancellationToken) {
        let mut quiet = false;
        while stop.run_until_cancelled(tokio::time::sleep(self.pause())).await.is_some() {
            if self.history().replaced {
                continue;
            }
            let signed = async {
                self.parts.clock.set_by(self.parts.store.as_ref()).await?;
                self.sign().await
            };
            match signed.await {
                Ok(()) if quiet => {
                    quiet = false;
                    info!("the store accepts heartbeats again");
                }
                Ok(()) => {}
                Err(error) => {
                    self.parts.last_sign.set(None);
                    // The next heartbeat starts a new history.
                    self.history().last = Timestamp::MIN;
                    if !std::mem::replace(&mut quiet, true) {
                        warn!(%error, "cannot send a heartbeat; trying again");
                    }
                }
            }
        }
    }

    /// Takes over the runs of servers that are gone, until `stop`.
    pub(crate) async fn watch(self: Arc<Self>, stop: CancellationToken) {
        let mut hints = self.parts.store.hints();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = another_left(&mut hints) => {}
                // Another rhythm than that of heartbeats: some looks come right after the heartbeat of another server,
                // and only a new one shows its time exactly.
                () = tokio::time::sleep(self.pause() * 5 / 8) => {}
            }
            // If the store is unavailable, the task that sends heartbeats logs it.
            if self.parts.last_sign.is_fresh(self.parts.settings.server_stale_after.0) {
                self.take_over_ownerless().await;
            }
        }
    }

    async fn sign(&self) -> Result<(), store::Error> {
        let parts = &self.parts;
        let record = ServerRecord { seen_at: parts.clock.now(), ..(*parts.itself).clone() };
        parts.store.put_server(&record).await?;
        parts.last_sign.set(Some(Instant::now()));
        let (now, break_after) = (parts.clock.now(), self.gone_after() / 2);
        let mut history = self.history();
        if history.last == Timestamp::MIN || now.duration_since(history.last) > break_after {
            history.since = now;
        }
        history.last = now;
        Ok(())
    }

    /// Checks all servers' heartbeats and acts on them. If that fails, the next check is soon.
    pub(crate) async fn take_over_ownerless(&self) {
        let looked = async {
            // Read before the servers: the owner of a run has registered before it owns the run.
            let open = self.parts.store.open_run_owners().await?;
            let servers = self.parts.store.servers().await?;
            if self.parts.clock.follow(&servers) {
                let now = self.parts.clock.now();
                self.parts.serving.begin(now);
                self.history().since = now;
            }
            self.act(self.look(&servers, open), &servers).await
        };
        if let Err(error) = looked.await {
            warn!(%error, "cannot check for runs without an owner");
        }
    }

    fn look(&self, servers: &[ServerRecord], open: Vec<(RunId, ServerId)>) -> Look {
        let parts = &self.parts;
        let now = parts.clock.now();
        let own = Sign { seen_at: now, ..sign_of(&parts.itself) };
        let signs: Vec<Sign<'_>> = servers.iter().map(sign_of).collect();
        let silence = SilenceRule { since: self.history().since, gone_after: self.gone_after() };
        look(
            &own,
            &signs,
            open,
            |run| parts.runs.owns(run) || parts.standing.owns(run, parts.server),
            silence,
            now,
        )
    }

    async fn act(&self, look: Look, servers: &[ServerRecord]) -> Result<(), store::Error> {
        let parts = &self.parts;
        let index = look.alive.iter().position(|server| *server == parts.server).unwrap_or(0);
        parts.dispatcher.board().share(Share { index: index as u64, servers: look.alive.len() as u64 });
        parts.level.update(look.level);
        if parts.level.reaches(level::CONTENTS) {
            parts.store.share_contents().await?;
        }
        for server in servers {
            if look.replaced_by == Some(server.id) && !std::mem::replace(&mut self.history().replaced, true) {
                parts.last_sign.set(None);
                error!(
                    name = parts.itself.name,
                    other = %server.http,
                    "another server was started with this server's name, and other servers take over its runs; start each \
                     server with its own --name"
                );
            }
            if look.forgotten.contains(&server.id) {
                parts.store.remove_server(server.id).await?;
                info!(server = server.name, "removed a server that has been gone for a day");
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

/// Waits until a server announces that it stops: its runs need not wait until it counts as gone.
async fn another_left(hints: &mut broadcast::Receiver<Hint>) {
    while !matches!(heard(hints).await, Some(Hint::Servers)) {}
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use async_trait::async_trait;
    use downbeat_core::Span;
    use downbeat_store::{DirectWrites, Error, MemoryStore, Store, Wrapped, Wrapper};
    use uuid::Uuid;

    use super::*;
    use crate::{Surroundings, start_within};

    /// A store that several servers share, and that remembers whether contents are shared.
    #[derive(Debug, Default)]
    struct Shared {
        memory: MemoryStore,
        is_sharing: Arc<AtomicBool>,
    }

    #[async_trait]
    impl Wrapper for Shared {
        fn store(&self) -> &dyn Store {
            &self.memory
        }

        fn is_shared(&self) -> bool {
            true
        }

        async fn share_contents(&self) -> Result<(), Error> {
            self.is_sharing.store(true, Ordering::SeqCst);
            Ok(())
        }
    }

    #[tokio::test]
    async fn contents_are_shared_unless_an_older_server_is_live() {
        for (older, is_sharing) in [(None, true), (Some(5), false), (Some(6), true)] {
            let store = Shared::default();
            let shared = Arc::clone(&store.is_sharing);
            if let Some(level) = older {
                let record = ServerRecord {
                    id: ServerId(Uuid::from_u128(1)),
                    name: "older".to_owned(),
                    http: String::new(),
                    grpc: String::new(),
                    version: String::new(),
                    started_at: Timestamp::now(),
                    seen_at: Timestamp::now(),
                    level,
                };
                store.memory.put_server(&record).await.unwrap();
            }
            let server_stale_after = Span(Duration::from_secs(600));
            let settings = Settings { server_stale_after, ..Settings::default() };
            let server =
                start_within(settings, Arc::new(Wrapped(store)), Surroundings::default()).await.unwrap();
            assert_eq!(shared.load(Ordering::SeqCst), is_sharing, "{older:?}");
            drop(server);
        }
    }
}
