//! The backend `systemd`: units of the system's manager, by systemctl.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use downbeat_core::backend::BackendSchema;

use super::params::text;
use crate::backend::{Backend, Call, Finish};
use crate::process::{self, Ledger, Program};

#[derive(Debug)]
pub struct Systemd {
    ledger: Arc<Ledger>,
    program: PathBuf,
}

impl Systemd {
    /// `program` is systemctl.
    pub fn new(ledger: Arc<Ledger>, program: PathBuf) -> Self {
        Self { ledger, program }
    }
}

#[async_trait]
impl Backend for Systemd {
    fn schema(&self) -> BackendSchema {
        super::schema("systemd")
    }

    async fn run(&self, call: Call) -> Finish {
        match call.action.as_str() {
            "start" | "stop" | "restart" | "reload" | "enable" | "disable" | "status" => {}
            other => return Finish::failed(None, format!("backend `systemd` has no action `{other}`")),
        }
        let Some(unit) = text(&call.params, "unit") else {
            return Finish::failed(None, "param `unit` is missing");
        };
        process::run(systemctl(&self.program, &call.action, unit), &call, &self.ledger).await
    }
}

/// Nobody is asked for a password and nothing is cut to the width of a terminal.
pub(super) fn systemctl(program: &Path, verb: &str, unit: &str) -> Program {
    let args = ["--no-pager", "--no-ask-password", "--full", verb, "--", unit];
    Program {
        name: program.to_string_lossy().into_owned(),
        args: args.map(str::to_owned).to_vec(),
        env: Vec::new(),
        working_dir: None,
        stdin: None,
    }
}
