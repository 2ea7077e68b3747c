//! Clients whose connections break at any point of a command.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;

use downbeat_testbed::Dev;

/// How many connections break right after they were accepted, once a response was cut.
const REFUSED: i64 = 2;

/// A proxy before a server. It cuts the response that the server sends when `left` is zero, and the next connections.
struct Proxy {
    address: SocketAddr,
    /// How many pieces of responses may pass.
    left: Arc<AtomicI64>,
}

impl Proxy {
    fn start(server: &str) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let left = Arc::new(AtomicI64::new(i64::MAX));
        let (server, passes) = (server.to_owned(), Arc::clone(&left));
        thread::spawn(move || {
            for client in listener.incoming() {
                let refuses = |left| (-REFUSED..0).contains(&left).then_some(left - 1);
                if passes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, refuses).is_err() {
                    pass(client.unwrap(), TcpStream::connect(&server).unwrap(), &passes);
                }
            }
        });
        Self { address, left }
    }

    /// Lets so many pieces pass before one is cut.
    fn cut_after(&self, pieces: i64) {
        self.left.store(pieces, Ordering::SeqCst);
    }

    fn has_cut(&self) -> bool {
        self.left.load(Ordering::SeqCst) < 0
    }
}

fn pass(client: TcpStream, server: TcpStream, left: &Arc<AtomicI64>) {
    let (to_server, from_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    thread::spawn(move || pump(from_client, to_server, || true));
    let left = Arc::clone(left);
    thread::spawn(move || pump(server, client, || left.fetch_sub(1, Ordering::SeqCst) != 0));
}

/// Copies until one side ends or a piece may not pass, then closes both.
fn pump(mut from: TcpStream, mut to: TcpStream, passes: impl Fn() -> bool) {
    let mut piece = [0; 64 * 1024];
    while let Ok(size) = from.read(&mut piece) {
        if size == 0 || !passes() || to.write_all(&piece[..size]).is_err() {
            break;
        }
    }
    _ = from.shutdown(Shutdown::Both);
    _ = to.shutdown(Shutdown::Both);
}

/// Cuts each piece of the responses in turn, until none is left to cut. Each time the command succeeds, and creates one
/// run.
fn survives_every_cut(flag: &str) {
    let dev = Dev::start();
    let proxy = Proxy::start(dev.http());
    let url = format!("http://{}", proxy.address);
    let mut runs = 0;
    loop {
        proxy.cut_after(runs);
        let done = dev.run(&["--server", &url, "job", "run", flag, "--target", "all", "test", "noop"]);
        assert_eq!(done.code, 0, "cut after {runs} pieces: {done:?}");
        runs += 1;
        assert_eq!(dev.json(&["run", "list"])["pagination"]["total"], runs, "{done:?}");
        if !proxy.has_cut() {
            break;
        }
    }
    assert!(runs > 5, "only {runs} pieces were cut");
}

#[test]
fn watching_survives_a_connection_that_breaks_at_any_point() {
    survives_every_cut("--watch");
}

#[test]
fn waiting_survives_a_connection_that_breaks_at_any_point() {
    survives_every_cut("--wait");
}
