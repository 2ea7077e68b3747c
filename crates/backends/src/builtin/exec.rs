//! The backend `exec`: programs, and scripts for bash. `process` starts and ends processes.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use downbeat_core::backend::BackendSchema;

use super::params::{map, text, texts};
use crate::backend::{Backend, Call, Finish};
use crate::process::{self, Ledger, Program};

/// Can run any command, so an agent offers it only if allowed.
#[derive(Debug)]
pub struct Exec {
    pub ledger: Arc<Ledger>,
}

#[async_trait]
impl Backend for Exec {
    fn schema(&self) -> BackendSchema {
        super::schema("exec")
    }

    async fn run(&self, call: Call) -> Finish {
        let params = &call.params;
        let argv = match call.action.as_str() {
            "run" => [texts(params, "command"), texts(params, "args")].concat(),
            "shell" => {
                ["bash", "-c", text(params, "command").unwrap_or_default()].map(str::to_owned).to_vec()
            }
            other => return Finish::failed(None, format!("backend `exec` has no action `{other}`")),
        };
        let mut argv = argv.into_iter();
        let Some(name) = argv.next() else { return Finish::failed(None, "param `command` is empty") };
        let program = Program {
            name,
            args: argv.collect(),
            env: map(params, "env"),
            working_dir: text(params, "working_dir").map(PathBuf::from),
            stdin: text(params, "stdin").map(str::to_owned),
        };
        process::run(program, &call, &self.ledger).await
    }
}
