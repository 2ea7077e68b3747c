//! Owns the read replica of a cluster: it follows one server after the other over connections that break, and is
//! restarted now and then. Its copy survives restarts, as a file does.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use downbeat_server::{Lost, Pieces, Since, Surroundings, Upstream, start_replica_within};
use downbeat_store::MemoryStore;
use futures_util::stream::{self, StreamExt};

use crate::cluster::Cluster;
use crate::seed::Broken;
use crate::world::HostId;

/// The share of lines before which a connection breaks, in a thousand, while there are faults.
const BREAKS_PERMILLE: u64 = 5;

/// The connections of a replica.
#[derive(Debug)]
struct Wire {
    cluster: Arc<Cluster>,
}

fn broken_off() -> Lost {
    Lost::Unreachable("the connection broke".to_owned())
}

#[async_trait]
impl Upstream for Wire {
    async fn open(&self, server: &str, since: Since) -> Result<Pieces, Lost> {
        let cluster = self.cluster.clone();
        let number = server.trim_start_matches('s').parse().expect("servers are named s0, s1, …");
        let (service, gate) = cluster.service(number).ok_or_else(broken_off)?;
        let lines = service.replicate(since);
        let pieces = stream::unfold((lines, false), move |(mut lines, is_over)| {
            let (cluster, gate) = (cluster.clone(), gate.clone());
            async move {
                if is_over {
                    return None;
                }
                let line = gate.run(lines.recv()).await;
                let breaks = !cluster.is_healed() && cluster.world.happens(BREAKS_PERMILLE);
                match line {
                    Some(None) => None,
                    Some(Some(line)) if !breaks => Some((Ok(cluster.passed_on(line)), (lines, false))),
                    Some(Some(_)) | None => Some((Err(broken_off()), (lines, true))),
                }
            }
        });
        Ok(pieces.boxed())
    }
}

impl Cluster {
    /// Returns a line as the replica gets it.
    fn passed_on(&self, line: Bytes) -> Bytes {
        if self.broken != Some(Broken::ForgedCopy) {
            return line;
        }
        let text = String::from_utf8_lossy(&line);
        text.replace(r#""verdict":"failed""#, r#""verdict":"succeeded""#).into()
    }
}

pub(crate) async fn keep(cluster: Arc<Cluster>, copy: Arc<MemoryStore>) {
    let world = cluster.world.clone();
    for session in 0.. {
        let mut settings = cluster.server_settings(0);
        settings.name = "replica".to_owned();
        settings.replica_of =
            (0..cluster.shape.servers).map(|number| HostId::Server(number).to_string()).collect();
        let now = world.clone();
        let surroundings = Surroundings {
            wall: Arc::new(move || now.now()),
            seed: cluster.seed ^ (session << 20) ^ (3 << 60),
            outside: None,
        };
        let wire = Arc::new(Wire { cluster: cluster.clone() });
        let server = start_replica_within(settings, copy.clone(), surroundings, wire).await;
        let server = server.expect("the memory store does not fail");
        world.log(format_args!("the replica is up, session {session}"));
        let end =
            tokio::time::Instant::now() + Duration::from_secs(10) + world.up_to(Duration::from_secs(60));
        tokio::time::sleep_until(end).await;
        while cluster.is_healed() {
            tokio::time::sleep(Duration::from_secs(3600)).await;
        }
        server.stop().await;
        world.log(format_args!("the replica stopped"));
    }
}
