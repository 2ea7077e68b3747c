//! Owns the message that everything is up: for users on standard output, for scripts as a document or in a file.

use std::net::SocketAddr;
use std::path::Path;

use downbeat_server::Server;
use serde::Serialize;

use crate::exit::{Failure, Result};
use crate::out::Out;
use crate::settings::without_password;

/// The addresses of a started server.
#[derive(Debug, Serialize)]
pub(super) struct Ready {
    pub(super) http: SocketAddr,
    pub(super) grpc: SocketAddr,
    pub(super) url: String,
    pub(super) nodes: Vec<String>,
    pub(super) pid: u32,
    /// The store was empty.
    #[serde(skip)]
    pub(super) store_is_new: bool,
}

impl Ready {
    pub(super) fn of(server: &Server, nodes: Vec<String>) -> Self {
        let http = server.http_addr();
        Self {
            http,
            grpc: server.grpc_addr(),
            url: format!("http://{http}"),
            nodes,
            pid: std::process::id(),
            store_is_new: server.found_nothing(),
        }
    }

    pub(super) fn server_line(&self, store: &str, replica_of: &[String]) -> String {
        if !replica_of.is_empty() {
            let (url, of) = (&self.url, replica_of.join(", "));
            let store = shown(store);
            return format!("downbeat read replica is up: REST at {url}, primary {of}, copy in {store}");
        }
        let (url, grpc, store) = (&self.url, self.grpc, shown(store));
        // Helps to notice a server that was started in the wrong directory or with the wrong store.
        let new = if self.store_is_new { " (a new, empty store was created)" } else { "" };
        format!("downbeat server is up: REST at {url}, agents at {grpc}, store {store}{new}")
    }
}

/// Announces that everything is up. The file is renamed into place, so a reader never sees a part of it.
pub(super) fn announce(
    ready: &Ready,
    file: Option<&Path>,
    out: Out,
    text: impl FnOnce() -> String,
) -> Result {
    if let Some(path) = file {
        let text = serde_json::to_string(ready)
            .map_err(|error| Failure::bug(format!("cannot write the addresses: {error}")))?;
        let part = path.with_extension("part");
        std::fs::write(&part, text)
            .and_then(|()| std::fs::rename(&part, path))
            .map_err(|error| Failure::bad_input(format!("cannot write {}: {error}", path.display())))?;
    }
    out.result(ready, text)
}

/// Returns the absolute path, or the path itself if it cannot be resolved.
pub(super) fn absolute(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

/// Returns the location of a store, without its password.
fn shown(location: &str) -> String {
    match location.strip_prefix("sqlite:") {
        Some(path) => format!("sqlite:{}", absolute(Path::new(path))),
        None => without_password(location),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_named_from_the_root_on() {
        let here = std::env::current_dir().unwrap();
        let expected = format!("sqlite:{}", here.join("data/downbeat.db").display());
        assert_eq!(shown("sqlite:./data/downbeat.db"), expected);
        assert_eq!(shown("sqlite:/var/downbeat.db"), "sqlite:/var/downbeat.db");
        assert_eq!(shown("memory:"), "memory:");
    }
}
