//! A proxy to PostgreSQL that can cut the connection at a chosen point of a commit, and records every statement.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// When to cut the connection, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// PostgreSQL never receives COMMIT.
    BeforeCommit = 1,
    /// PostgreSQL has committed, but the response is lost.
    AfterCommit = 2,
}

pub(crate) struct Proxy {
    pub(crate) port: u16,
    armed: Arc<AtomicU8>,
    statements: Statements,
}

type Statements = Arc<Mutex<BTreeSet<String>>>;

impl Proxy {
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let armed = Arc::new(AtomicU8::new(0));
        let statements = Statements::default();
        let port_here = listener.local_addr().unwrap().port();
        let proxy = Self { port: port_here, armed: Arc::clone(&armed), statements: Arc::clone(&statements) };
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, port, Arc::clone(&armed), Arc::clone(&statements)));
            }
        });
        proxy
    }

    pub(crate) fn cut(&self, when: Cut) {
        self.armed.store(when as u8, Ordering::SeqCst);
    }

    /// Returns every statement that was sent.
    #[allow(dead_code, reason = "not every test file needs it")]
    pub(crate) fn statements(&self) -> BTreeSet<String> {
        self.statements.lock().unwrap().clone()
    }
}

/// Extracts the statements from a client's messages.
#[derive(Default)]
struct StatementParser {
    pending: Vec<u8>,
    begun: bool,
}

impl StatementParser {
    fn read(&mut self, bytes: &[u8], statements: &Statements) {
        self.pending.extend_from_slice(bytes);
        loop {
            // The first message has no kind.
            let kind_bytes = usize::from(self.begun);
            let Some(length) = self.pending.get(kind_bytes..kind_bytes + 4) else { return };
            let length = u32::from_be_bytes(length.try_into().unwrap()) as usize;
            let Some(message) = self.pending.get(..kind_bytes + length) else { return };
            let mut texts = message[kind_bytes + 4..].split(|byte| *byte == 0);
            let statement = match (self.begun, message[0]) {
                (true, b'Q') => texts.next(),
                // The statement's name comes first.
                (true, b'P') => texts.nth(1),
                _ => None,
            };
            statements.lock().unwrap().extend(statement.map(|sql| String::from_utf8_lossy(sql).into_owned()));
            self.pending.drain(..kind_bytes + length);
            self.begun = true;
        }
    }
}

fn holds(bytes: &[u8], what: &[u8]) -> bool {
    bytes.windows(what.len()).any(|window| window == what)
}

async fn carry(mut client: TcpStream, port: u16, armed: Arc<AtomicU8>, statements: Statements) {
    let mut parser = StatementParser::default();
    let mut server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    server.set_nodelay(true).unwrap();
    client.set_nodelay(true).unwrap();
    let (mut up, mut down) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    loop {
        tokio::select! {
            read = client.read(&mut up) => match read {
                Ok(n) if n > 0 => {
                    parser.read(&up[..n], &statements);
                    // COMMIT is short and sent with the preceding statements, so it is not split over two reads here.
                    let cut = if holds(&up[..n], b"COMMIT\0") { armed.swap(0, Ordering::SeqCst) } else { 0 };
                    if cut == Cut::BeforeCommit as u8 {
                        return;
                    }
                    server.write_all(&up[..n]).await.unwrap();
                    if cut == Cut::AfterCommit as u8 {
                        let mut answers = Vec::new();
                        while !holds(&answers, b"COMMIT\0") {
                            let n = server.read(&mut down).await.unwrap();
                            assert!(n > 0, "PostgreSQL responds to the commit");
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
