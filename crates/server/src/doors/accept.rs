//! Accepts connections while there is room for them.

use std::io::ErrorKind;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

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

/// Why a door accepts no more connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shut {
    /// The server closes.
    Closing,
    /// The socket no longer listens, and never will again.
    Broken,
}

impl Door {
    pub(crate) fn new(listener: TcpListener, key: &'static str, bounds: Bounds) -> Self {
        Self { listener, room: Room::new(bounds), key, refused: 0, logged_at: None }
    }

    /// Returns the next connection. A connection without room is closed at once.
    pub(crate) async fn accept(&mut self, closing: &CancellationToken) -> Result<(TcpStream, Permit), Shut> {
        loop {
            let accepted = tokio::select! {
                biased;
                () = closing.cancelled() => return Err(Shut::Closing),
                accepted = self.listener.accept() => accepted,
            };
            if let Err(error) = &accepted
                && error.kind() == ErrorKind::InvalidInput
            {
                error!(port = self.key, %error, "the port no longer accepts connections");
                return Err(Shut::Broken);
            }
            // Messages are small and written one by one; waiting to fill a packet would delay each.
            let accepted =
                accepted.and_then(|(stream, from)| stream.set_nodelay(true).map(|()| (stream, from)));
            match accepted {
                Ok((stream, from)) => match self.room.enter(from.ip()) {
                    Ok(permit) => return Ok((stream, permit)),
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
