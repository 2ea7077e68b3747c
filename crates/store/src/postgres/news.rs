//! Owns notifications between servers: one NOTIFY per batch, one connection that listens. A notification only says that
//! something changed; readers then read the tables.

use std::sync::Arc;
use std::time::Duration;

use downbeat_core::ids::ExecutionId;
use tokio::sync::broadcast;
use tokio_postgres::{AsyncMessage, Notification};
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

use super::connect::Target;
use crate::port::News;

/// The capacity of a reader's queue. A reader that falls further behind reads everything.
const BEHIND: usize = 1_024;
/// The delay before listening again after the connection broke.
const LISTEN_AGAIN: Duration = Duration::from_millis(250);
/// Ids per notification: PostgreSQL accepts less than 8,000 bytes.
const MOST_IDS: usize = 200;

/// The statement that a commit sends in the same transaction: `$1` is the payload.
pub(super) const NOTIFY: &str = "SELECT pg_notify('downbeat', $1)";

/// The listener, which ignores this store's own notifications.
pub(super) struct Listener {
    /// Identifies this store in all its notifications.
    own: String,
    news: broadcast::Sender<News>,
    _listening: DropGuard,
}

impl Listener {
    /// Listens until it is dropped, and reconnects as often as necessary.
    pub(super) fn start(target: Target) -> Self {
        let (own, news) = (Uuid::new_v4().simple().to_string(), broadcast::channel(BEHIND).0);
        let stop = CancellationToken::new();
        let (announce, name, stopped) = (news.clone(), own.clone(), stop.clone());
        tokio::spawn(async move {
            let listening = async {
                loop {
                    if let Err(error) = listen(&target, &name, &announce).await {
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
        Self { own, news, _listening: stop.drop_guard() }
    }

    pub(super) fn subscribe(&self) -> broadcast::Receiver<News> {
        self.news.subscribe()
    }

    /// Returns the payload of a notification.
    pub(super) fn payload(&self, news: &News) -> String {
        let own = &self.own;
        match news {
            News::Events => format!("{own} events"),
            News::Servers => format!("{own} servers"),
            News::Output(ids) if ids.len() <= MOST_IDS => {
                let ids: Vec<String> = ids.iter().map(|id| id.0.simple().to_string()).collect();
                format!("{own} output {}", ids.join(","))
            }
            News::Output(_) | News::Anything => format!("{own} anything"),
        }
    }
}

async fn listen(
    target: &Target,
    own: &str,
    news: &broadcast::Sender<News>,
) -> Result<(), tokio_postgres::Error> {
    let (client, mut connection) = target.config.connect(target.tls.clone()).await?;
    let messages = futures_util::stream::poll_fn(move |context| connection.poll_message(context));
    let mut messages = std::pin::pin!(messages);
    let mut begin = std::pin::pin!(client.batch_execute("LISTEN downbeat"));
    let mut begun = false;
    loop {
        use futures_util::StreamExt;
        tokio::select! {
            listening = &mut begin, if !begun => {
                listening?;
                begun = true;
                // Notifications before this were missed.
                let _ = news.send(News::Anything);
            }
            message = messages.next() => match message {
                None => return Ok(()),
                Some(Ok(AsyncMessage::Notification(notification))) => {
                    if let Some(received) = read(own, &notification) {
                        // An error means that there is no receiver.
                        let _ = news.send(received);
                    }
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error),
            },
        }
    }
}

/// Returns nothing for this store's own notification.
fn read(own: &str, notification: &Notification) -> Option<News> {
    understand(own, notification.payload())
}

fn understand(own: &str, payload: &str) -> Option<News> {
    let mut words = payload.split(' ');
    if words.next() == Some(own) {
        return None;
    }
    Some(match (words.next(), words.next()) {
        (Some("events"), None) => News::Events,
        (Some("servers"), None) => News::Servers,
        (Some("output"), Some(ids)) => {
            let ids: Result<Arc<[ExecutionId]>, _> =
                ids.split(',').map(|id| id.parse().map(ExecutionId)).collect();
            ids.map_or(News::Anything, News::Output)
        }
        // A newer server may send other kinds.
        _ => News::Anything,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener(own: &str) -> Listener {
        Listener {
            own: own.to_owned(),
            news: broadcast::channel(1).0,
            _listening: CancellationToken::new().drop_guard(),
        }
    }

    #[test]
    fn what_one_says_another_understands_and_itself_ignores() {
        let listener = listener("me");
        let ids: Arc<[ExecutionId]> = (0..3).map(|id| ExecutionId(Uuid::from_u128(id))).collect();
        for news in [News::Events, News::Servers, News::Output(ids), News::Anything] {
            let payload = listener.payload(&news);
            assert_eq!(understand("you", &payload), Some(news));
            assert_eq!(understand("me", &payload), None);
        }
    }

    #[test]
    fn a_payload_is_never_longer_than_postgresql_takes() {
        for count in [MOST_IDS, MOST_IDS + 1, 100_000] {
            let ids = (0..count).map(|id| ExecutionId(Uuid::from_u128(id as u128))).collect();
            let name = Uuid::nil().simple().to_string();
            assert!(listener(&name).payload(&News::Output(ids)).len() < 8_000);
        }
    }

    #[test]
    fn what_is_not_understood_may_be_anything() {
        for payload in ["x", "", "x what", "x output", "x output 1,2", "x events more"] {
            assert_eq!(understand("me", payload), Some(News::Anything), "{payload}");
        }
    }
}
