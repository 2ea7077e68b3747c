//! The built-in backends. Their schemas are in core's catalogue: one table for checking and running.

mod apt;
mod docker;
mod exec;
mod file;
mod http;
pub(crate) mod params;
mod ping;
mod rke2;
mod settings;
mod systemd;
mod test;
mod tools;

use std::path::Path;
use std::sync::Arc;

use downbeat_core::backend::{BackendSchema, Catalogue};

use crate::backend::Backend;
use crate::process::Ledger;

pub use apt::Apt;
pub(crate) use docker::end_container;
pub use docker::{Docker, Engine};
pub use exec::Exec;
pub use file::File;
pub use http::Http;
pub use ping::Ping;
pub use rke2::Rke2;
pub use settings::BackendSettings;
pub use systemd::Systemd;
pub use test::Test;
pub use tools::Tools;

/// Returns all built-in backends that this host has the tools for. The agent decides which of them its node offers.
/// `data` is the agent's data directory.
pub fn builtin(
    ledger: &Arc<Ledger>,
    tools: &Tools,
    settings: &BackendSettings,
    data: &Path,
) -> Vec<Arc<dyn Backend>> {
    let ledger = || ledger.clone();
    let mut all: Vec<Arc<dyn Backend>> = vec![
        Arc::new(Test),
        Arc::new(Ping),
        Arc::new(Exec { ledger: ledger() }),
        Arc::new(File),
        Arc::new(Http::default()),
    ];
    if let Some(apt_get) = &tools.apt_get {
        all.push(Arc::new(Apt { ledger: ledger(), program: apt_get.clone() }));
    }
    if let Some(systemctl) = &tools.systemctl {
        all.push(Arc::new(Systemd { ledger: ledger(), program: systemctl.clone() }));
        if tools.rke2.is_some() || tools.rke2_installer.is_some() {
            all.push(Arc::new(Rke2 {
                ledger: ledger(),
                systemctl: systemctl.clone(),
                installer: tools.rke2_installer.clone(),
            }));
        }
    }
    if let Some(engine) = settings.docker.as_ref().or(tools.engine.as_ref()) {
        all.push(Arc::new(Docker::new(engine.clone(), data)));
    }
    all
}

fn schema(name: &str) -> BackendSchema {
    Catalogue::builtin().backend(name).expect("the catalogue lists every built-in backend").clone()
}
