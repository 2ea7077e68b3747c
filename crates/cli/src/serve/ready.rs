//! Owns what is said when everything is up: for people on standard output, for scripts as a document or in a file.

use std::net::SocketAddr;
use std::path::Path;

use downbeat_server::Server;
use serde::Serialize;

use crate::exit::Failure;
use crate::out::Out;
use crate::settings::without_password;

/// Where everything listens.
#[derive(Debug, Serialize)]
pub(super) struct Ready {
    pub(super) http: SocketAddr,
    pub(super) grpc: SocketAddr,
    pub(super) url: String,
    pub(super) nodes: Vec<String>,
    pub(super) pid: u32,
}

impl Ready {
    pub(super) fn of(server: &Server, nodes: Vec<String>) -> Self {
        let http = server.http_addr();
        Self { http, grpc: server.grpc_addr(), url: format!("http://{http}"), nodes, pid: std::process::id() }
    }

    pub(super) fn server_line(&self, store: &str, replica_of: &[String]) -> String {
        if !replica_of.is_empty() {
            let (url, of) = (&self.url, replica_of.join(", "));
            return format!("downbeat read replica is up: REST at {url}, primary {of}, copy in {store}");
        }
        format!(
            "downbeat server is up: REST at {}, agents at {}, store {}",
            self.url,
            self.grpc,
            without_password(store)
        )
    }
}

/// Says that everything is up. The file appears whole or not at all.
pub(super) fn announce(
    ready: &Ready,
    file: Option<&Path>,
    out: Out,
    told: impl FnOnce() -> String,
) -> Result<(), Failure> {
    if let Some(path) = file {
        let text = serde_json::to_string(ready)
            .map_err(|error| Failure::bug(format!("cannot write the addresses: {error}")))?;
        let part = path.with_extension("part");
        std::fs::write(&part, text)
            .and_then(|()| std::fs::rename(&part, path))
            .map_err(|error| Failure::bad_input(format!("cannot write {}: {error}", path.display())))?;
    }
    out.result(ready, told)
}
