//! The backend `rke2`: RKE2's service, with systemctl, and its installation by an installer that is already on the
//! host. It does not download a script, and no job names the installer: either would be another `exec`.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use downbeat_core::backend::BackendSchema;

use super::params::text;
use super::systemd::systemctl;
use crate::backend::{Backend, Call, Finish};
use crate::process::{self, Ledger, Program};

#[derive(Debug)]
pub struct Rke2 {
    pub ledger: Arc<Ledger>,
    pub systemctl: PathBuf,
    pub installer: Option<PathBuf>,
}

impl Rke2 {
    /// The paths where RKE2's `install.sh` is searched, under a name that shows what it installs.
    pub const INSTALLERS: [&str; 2] = ["/usr/local/bin/rke2-install.sh", "/opt/rke2/install.sh"];

    fn install(&self, call: &Call, mode: &str) -> Result<Program, String> {
        let installer = self.installer.as_ref().ok_or_else(|| {
            format!("this host has no installer of RKE2; put RKE2's install.sh at {}", Self::INSTALLERS[0])
        })?;
        let mut env = vec![("INSTALL_RKE2_TYPE".to_owned(), mode.to_owned())];
        for (param, variable) in [
            ("version", "INSTALL_RKE2_VERSION"),
            ("channel", "INSTALL_RKE2_CHANNEL"),
            ("artifact_path", "INSTALL_RKE2_ARTIFACT_PATH"),
        ] {
            if let Some(value) = text(&call.params, param) {
                env.push((variable.to_owned(), value.to_owned()));
            }
        }
        let name = installer.to_string_lossy().into_owned();
        Ok(Program { name, env, ..Program::default() })
    }
}

#[async_trait]
impl Backend for Rke2 {
    fn schema(&self) -> BackendSchema {
        super::schema("rke2")
    }

    async fn run(&self, call: Call) -> Finish {
        let mode = text(&call.params, "mode").unwrap_or("server");
        let program = match call.action.as_str() {
            "install" => self.install(&call, mode),
            verb @ ("start" | "stop" | "status") => {
                Ok(systemctl(&self.systemctl, verb, &format!("rke2-{mode}.service")))
            }
            other => Err(format!("backend `rke2` has no action `{other}`")),
        };
        match program {
            Ok(program) => process::run(program, &call, &self.ledger).await,
            Err(error) => Finish::failed(None, error),
        }
    }
}
