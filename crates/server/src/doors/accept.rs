//! Accepts connections while there is room for them.

use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{Bounds, Permit, Room};

/// The pause after a failed accept (too many open files): some may close in this time.
const PAUSE: Duration = Duration::from_millis(100);
/// The minimum time between two log lines about refused connections: a flood of connections must not become
/// a flood of lines.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// A door is a port that accepts a limited number of connections.
#[derive(Debug)]
pub(crate) struct Door {
    listener: TcpListener,
    room: Room,
    /// The setting that names the port, for log lines.
    key: &'static str,
    refused: u64,
    logged_at: Option<Instant>,
}

impl Door {
    pub(crate) fn new(listener: TcpListener, key: &'static str, bounds: Bounds) -> Self {
        Self { listener, room: Room::new(bounds), key, refused: 0, logged_at: None }
    }

    /// Returns the next connection, or `None` when the server closes. A connection without room is closed at once.
    pub(crate) async fn accept(&mut self, closing: &CancellationToken) -> Option<(TcpStream, Permit)> {
        loop {
            let accepted = tokio::select! {
                biased;
                () = closing.cancelled() => return None,
                accepted = self.listener.accept() => accepted,
            };
            // Messages are small and written one by one; waiting to fill a packet would delay each.
            let accepted =
                accepted.and_then(|(stream, from)| stream.set_nodelay(true).map(|()| (stream, from)));
            match accepted {
                Ok((stream, from)) => match self.room.enter(from.ip()) {
                    Ok(permit) => return Some((stream, permit)),
                    Err(why) => self.log_refused(&why),
                },
                Err(error) => {
                    warn!(port = self.key, %error, "cannot accept a connection");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    fn log_refused(&mut self, why: &dyn std::error::Error) {
        self.refused += 1;
        let now = Instant::now();
        if self.logged_at.is_none_or(|at| now.duration_since(at) >= LOG_EVERY) {
            warn!(port = self.key, refused = self.refused, %why, "refusing connections");
            self.logged_at = Some(now);
        }
    }
}
