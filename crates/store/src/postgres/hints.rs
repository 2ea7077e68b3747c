//! Owns notifications between servers: one NOTIFY per batch, and one connection that listens. A notification only shows
//! that something changed; readers then read the tables.
//!
//! Output is announced by the listening connection, several executions at a time: PostgreSQL holds one lock of the whole
//! database from a NOTIFY to the end of its transaction, so that output would otherwise delay all commits.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use downbeat_core::ids::ExecutionId;
use futures_util::StreamExt as _;
use tokio::sync::{Notify, broadcast};
use tokio_postgres::{AsyncMessage, Client, Error};
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

use super::connect::{Purpose, Target};
use crate::port::Hint;

/// The capacity of a reader's queue. A reader that falls further behind reads everything.
const QUEUE: usize = 1_024;
/// The delay before listening again after the connection broke.
const LISTEN_AGAIN: Duration = Duration::from_millis(250);
/// Ids per notification: PostgreSQL accepts less than 8,000 bytes.
const MOST_IDS: usize = 200;
/// The interval of announcements of output.
const ANNOUNCE_EVERY: Duration = Duration::from_millis(100);

/// The statement that a commit sends in the same transaction: `$1` is the payload.
pub(super) const NOTIFY: &str = "SELECT pg_notify('downbeat', $1)";

/// The listener, which ignores this store's own notifications.
pub(super) struct Listener {
    /// Identifies this store in all its notifications.
    own: String,
    hints: broadcast::Sender<Hint>,
    grown: Arc<Grown>,
    _listening: DropGuard,
}

/// The executions whose output is to be announced.
#[derive(Default)]
struct Grown {
    executions: Mutex<BTreeSet<ExecutionId>>,
    added: Notify,
}

impl Grown {
    fn add(&self, executions: Vec<ExecutionId>) {
        let mut known = self.executions.lock().unwrap_or_else(PoisonError::into_inner);
        // One more than a notification can name: it then names none.
        let room = (MOST_IDS + 1).saturating_sub(known.len());
        known.extend(executions.into_iter().take(room));
        self.added.notify_one();
    }

    async fn take(&self) -> Hint {
        loop {
            let added = self.added.notified();
            let taken = std::mem::take(&mut *self.executions.lock().unwrap_or_else(PoisonError::into_inner));
            if !taken.is_empty() {
                return Hint::Output(taken.into_iter().collect());
            }
            added.await;
        }
    }
}

impl Listener {
    /// Listens until it is dropped, and reconnects as often as necessary.
    pub(super) fn start(target: Target) -> Self {
        let (own, hints) = (Uuid::new_v4().simple().to_string(), broadcast::channel(QUEUE).0);
        let (stop, grown) = (CancellationToken::new(), Arc::<Grown>::default());
        let (announce, name, stopped, to_send) = (hints.clone(), own.clone(), stop.clone(), grown.clone());
        tokio::spawn(async move {
            let listening = async {
                loop {
                    if let Err(error) = listen(&target, &name, &announce, &to_send).await {
                        tracing::debug!(%error, "the connection for notifications broke");
                    }
                    tokio::time::sleep(LISTEN_AGAIN).await;
                }
            };
            tokio::select! {
                () = listening => {}
                () = stopped.cancelled() => {}
            }
        });
        Self { own, hints, grown, _listening: stop.drop_guard() }
    }

    pub(super) fn subscribe(&self) -> broadcast::Receiver<Hint> {
        self.hints.subscribe()
    }

    /// Announces output to the other servers, soon.
    pub(super) fn announce_output(&self, executions: Vec<ExecutionId>) {
        if !executions.is_empty() {
            self.grown.add(executions);
        }
    }

    pub(super) fn payload(&self, hint: &Hint) -> String {
        payload(&self.own, hint)
    }
}

fn payload(own: &str, hint: &Hint) -> String {
    match hint {
        Hint::Events => format!("{own} events"),
        Hint::Servers => format!("{own} servers"),
        Hint::Output(ids) if ids.len() <= MOST_IDS => {
            let ids: Vec<String> = ids.iter().map(|id| id.0.simple().to_string()).collect();
            format!("{own} output {}", ids.join(","))
        }
        Hint::Output(_) | Hint::Anything => format!("{own} anything"),
    }
}

async fn listen(
    target: &Target,
    own: &str,
    hints: &broadcast::Sender<Hint>,
    grown: &Grown,
) -> Result<(), Error> {
    let config = target.config_for(Purpose::Hints);
    let (client, mut connection) = config.connect(target.tls.clone()).await?;
    let messages = futures_util::stream::poll_fn(move |context| connection.poll_message(context));
    let mut messages = std::pin::pin!(messages);
    let mut sending = std::pin::pin!(send(&client, own, hints, grown));
    loop {
        tokio::select! {
            Err(error) = &mut sending => return Err(error),
            message = messages.next() => match message {
                None => return Ok(()),
                Some(Ok(AsyncMessage::Notification(notification))) => {
                    if let Some(received) = parse(own, notification.payload()) {
                        // An error means that there is no receiver.
                        let _ = hints.send(received);
                    }
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error),
            },
        }
    }
}

/// Subscribes, then announces output.
async fn send(
    client: &Client,
    own: &str,
    hints: &broadcast::Sender<Hint>,
    grown: &Grown,
) -> Result<Infallible, Error> {
    client.batch_execute("LISTEN downbeat").await?;
    // Notifications before this were missed.
    let _ = hints.send(Hint::Anything);
    let notify = client.prepare(NOTIFY).await?;
    loop {
        let payload = payload(own, &grown.take().await);
        client.execute(&notify, &[&payload]).await?;
        tokio::time::sleep(ANNOUNCE_EVERY).await;
    }
}

/// Returns nothing for this store's own notification.
fn parse(own: &str, payload: &str) -> Option<Hint> {
    let mut words = payload.split(' ');
    if words.next() == Some(own) {
        return None;
    }
    Some(match (words.next(), words.next()) {
        (Some("events"), None) => Hint::Events,
        (Some("servers"), None) => Hint::Servers,
        (Some("output"), Some(ids)) => {
            let ids: Result<Arc<[ExecutionId]>, _> =
                ids.split(',').map(|id| id.parse().map(ExecutionId)).collect();
            ids.map_or(Hint::Anything, Hint::Output)
        }
        // A newer server may send other kinds.
        _ => Hint::Anything,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener(own: &str) -> Listener {
        Listener {
            own: own.to_owned(),
            hints: broadcast::channel(1).0,
            grown: Arc::default(),
            _listening: CancellationToken::new().drop_guard(),
        }
    }

    #[test]
    fn what_one_says_another_understands_and_itself_ignores() {
        let listener = listener("me");
        let ids: Arc<[ExecutionId]> = (0..3).map(|id| ExecutionId(Uuid::from_u128(id))).collect();
        for hint in [Hint::Events, Hint::Servers, Hint::Output(ids), Hint::Anything] {
            let payload = listener.payload(&hint);
            assert_eq!(parse("you", &payload), Some(hint));
            assert_eq!(parse("me", &payload), None);
        }
    }

    #[test]
    fn a_payload_is_never_longer_than_postgresql_takes() {
        for count in [MOST_IDS, MOST_IDS + 1, 100_000] {
            let ids = (0..count).map(|id| ExecutionId(Uuid::from_u128(id as u128))).collect();
            let name = Uuid::nil().simple().to_string();
            assert!(listener(&name).payload(&Hint::Output(ids)).len() < 8_000);
        }
    }

    #[test]
    fn what_is_not_understood_may_be_anything() {
        for payload in ["x", "", "x what", "x output", "x output 1,2", "x events more"] {
            assert_eq!(parse("me", payload), Some(Hint::Anything), "{payload}");
        }
    }
}
