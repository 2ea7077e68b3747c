//! Owns a wire to PostgreSQL that can be cut at a chosen moment of a commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// When the wire is cut, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// PostgreSQL never hears COMMIT.
    BeforeCommit = 1,
    /// PostgreSQL has committed, and nobody hears of it.
    AfterCommit = 2,
}

pub(crate) struct Proxy {
    pub(crate) port: u16,
    armed: Arc<AtomicU8>,
}

impl Proxy {
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let armed = Arc::new(AtomicU8::new(0));
        let proxy = Self { port: listener.local_addr().unwrap().port(), armed: Arc::clone(&armed) };
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, port, Arc::clone(&armed)));
            }
        });
        proxy
    }

    pub(crate) fn cut(&self, when: Cut) {
        self.armed.store(when as u8, Ordering::SeqCst);
    }
}

fn holds(bytes: &[u8], what: &[u8]) -> bool {
    bytes.windows(what.len()).any(|window| window == what)
}

async fn carry(mut client: TcpStream, port: u16, armed: Arc<AtomicU8>) {
    let mut server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let (mut up, mut down) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    loop {
        tokio::select! {
            read = client.read(&mut up) => match read {
                Ok(n) if n > 0 => {
                    // The statement is short and comes with what precedes it: it is not split over two reads here.
                    let cut = if holds(&up[..n], b"COMMIT\0") { armed.swap(0, Ordering::SeqCst) } else { 0 };
                    if cut == Cut::BeforeCommit as u8 {
                        return;
                    }
                    server.write_all(&up[..n]).await.unwrap();
                    if cut == Cut::AfterCommit as u8 {
                        let mut answers = Vec::new();
                        while !holds(&answers, b"COMMIT\0") {
                            let n = server.read(&mut down).await.unwrap();
                            assert!(n > 0, "PostgreSQL answers the commit");
                            answers.extend_from_slice(&down[..n]);
                        }
                        return;
                    }
                }
                _ => return,
            },
            read = server.read(&mut down) => match read {
                Ok(n) if n > 0 => {
                    if client.write_all(&down[..n]).await.is_err() {
                        return;
                    }
                }
                _ => return,
            },
        }
    }
}
