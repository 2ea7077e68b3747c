//! Owns a wire with faults: slow, silent in one direction or both, reset, refused, half open.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::Instant;

/// The current mode of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Pass,
    Delay(Duration),
    /// So many bytes a second in each direction, for all connections together.
    Slow(u32),
    /// Nothing gets through; connections stay.
    Stall,
    /// Requests do not arrive.
    StallUp,
    /// Responses do not arrive.
    StallDown,
    /// New connections are refused; the old ones stay.
    Refuse,
    /// New connections are accepted but carry nothing; the old ones stay silent.
    HalfOpen,
}

#[derive(Clone, Copy, Debug)]
struct Wire {
    mode: Mode,
    /// Raised to reset all connections that there are.
    cuts: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

impl Mode {
    fn holds(self, direction: Direction) -> bool {
        match self {
            Mode::Pass | Mode::Delay(_) | Mode::Slow(_) | Mode::Refuse => false,
            Mode::Stall | Mode::HalfOpen => true,
            Mode::StallUp => direction == Direction::Up,
            Mode::StallDown => direction == Direction::Down,
        }
    }
}

/// The bytes that a slow wire carries at once: connections take turns.
const PIECE_BYTES: usize = 2 * 1024;

/// One direction of all connections: when it is free again.
#[derive(Debug, Default)]
struct Line(Mutex<Option<Instant>>);

impl Line {
    /// Waits until so many bytes have passed at this speed, after all that came before them.
    async fn pass(&self, bytes: usize, bytes_per_second: u32) {
        let free = {
            let mut free = self.0.lock().unwrap();
            let now = Instant::now();
            #[allow(clippy::cast_precision_loss, reason = "a few kilobytes")]
            let took = Duration::from_secs_f64(bytes as f64 / f64::from(bytes_per_second));
            let begins = free.map_or(now, |free| free.max(now));
            *free.insert(begins + took)
        };
        tokio::time::sleep_until(free).await;
    }
}

#[derive(Debug, Default)]
struct Lines {
    up: Line,
    down: Line,
}

#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) port: u16,
    /// Held by a fault for as long as it lasts.
    pub(crate) hurt: tokio::sync::Mutex<()>,
    wire: Arc<watch::Sender<Wire>>,
}

impl Proxy {
    /// Listens on every address: agents may be in networks of their own.
    pub(crate) async fn to(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let wire = Arc::new(watch::Sender::new(Wire { mode: Mode::Pass, cuts: 0 }));
        let (state, lines) = (Arc::clone(&wire), Arc::new(Lines::default()));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let mode = state.borrow().mode;
                if mode == Mode::Refuse {
                    reset(&client);
                    continue;
                }
                tokio::spawn(carry(client, upstream, state.subscribe(), Arc::clone(&lines)));
            }
        });
        Self { port, hurt: tokio::sync::Mutex::default(), wire }
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.wire.send_modify(|wire| wire.mode = mode);
    }

    /// Resets every connection.
    pub(crate) fn cut(&self) {
        self.wire.send_modify(|wire| wire.cuts += 1);
    }
}

fn reset(stream: &TcpStream) {
    let _ = stream.set_zero_linger();
}

async fn carry(client: TcpStream, upstream: SocketAddr, mut wire: watch::Receiver<Wire>, lines: Arc<Lines>) {
    let cuts = wire.borrow_and_update().cuts;
    if wire.wait_for(|wire| wire.mode != Mode::HalfOpen || wire.cuts != cuts).await.is_err() {
        return;
    }
    let Ok(server) = TcpStream::connect(upstream).await else {
        reset(&client);
        return;
    };
    for stream in [&client, &server] {
        let _ = stream.set_nodelay(true);
    }
    let (mut client_reads, mut client_writes) = client.into_split();
    let (mut server_reads, mut server_writes) = server.into_split();
    let mut cut = wire.clone();
    tokio::select! {
        () = pump(&mut client_reads, &mut server_writes, Direction::Up, wire.clone(), &lines.up) => {}
        () = pump(&mut server_reads, &mut client_writes, Direction::Down, wire, &lines.down) => {}
        _ = cut.wait_for(|wire| wire.cuts != cuts) => {
            reset(client_writes.as_ref());
            reset(server_writes.as_ref());
        }
    }
}

async fn pump(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    direction: Direction,
    mut wire: watch::Receiver<Wire>,
    line: &Line,
) {
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let is_slow = matches!(wire.borrow().mode, Mode::Slow(_));
        let most = if is_slow { PIECE_BYTES } else { bytes.len() };
        let Ok(count @ 1..) = from.read(&mut bytes[..most]).await else { return };
        let mode = match wire.wait_for(|wire| !wire.mode.holds(direction)).await {
            Ok(wire) => wire.mode,
            Err(_) => return,
        };
        match mode {
            Mode::Delay(delay) => tokio::time::sleep(delay).await,
            Mode::Slow(bytes_per_second) => line.pass(count, bytes_per_second).await,
            _ => {}
        }
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}
