//! The backend `apt`: Debian packages, by apt-get. It asks nobody and keeps configuration files that were changed.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use downbeat_core::backend::BackendSchema;

use super::params::{is_on, texts};
use crate::backend::{Backend, Call, Finish};
use crate::process::{self, Ledger, Program};

/// Nobody is there to answer.
const ENVIRONMENT: [(&str, &str); 2] =
    [("DEBIAN_FRONTEND", "noninteractive"), ("APT_LISTCHANGES_FRONTEND", "none")];

const OPTIONS: [&str; 10] = [
    "-q",
    "-y",
    // A configuration file that was changed on the host stays as it is.
    "-o",
    "Dpkg::Options::=--force-confold",
    // Another apt may be at work; it is waited for this many seconds.
    "-o",
    "DPkg::Lock::Timeout=600",
    // A name that no package has is an error; without this `python3.1` would be taken for a regular expression.
    "-o",
    "APT::Cmd::Pattern-Only=true",
    // A source that cannot be read fails `update`; without this it would be a warning.
    "-o",
    "APT::Update::Error-Mode=any",
];

#[derive(Debug)]
pub struct Apt {
    ledger: Arc<Ledger>,
    program: PathBuf,
}

impl Apt {
    /// `program` is apt-get.
    pub fn new(ledger: Arc<Ledger>, program: PathBuf) -> Self {
        Self { ledger, program }
    }
}

#[async_trait]
impl Backend for Apt {
    fn schema(&self) -> BackendSchema {
        super::schema("apt")
    }

    async fn run(&self, call: Call) -> Finish {
        let command = match call.action.as_str() {
            "install" | "update" | "upgrade" => call.action.as_str(),
            "remove" if is_on(&call.params, "purge") => "purge",
            "remove" => "remove",
            other => return Finish::failed(None, format!("backend `apt` has no action `{other}`")),
        };
        let packages = texts(&call.params, "package");
        let mut args: Vec<String> = OPTIONS.iter().chain([&command]).map(|word| (*word).to_owned()).collect();
        if !packages.is_empty() {
            args.push("--".to_owned());
            args.extend(packages);
        }
        let program = Program {
            name: self.program.to_string_lossy().into_owned(),
            args,
            env: ENVIRONMENT.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            working_dir: None,
            stdin: None,
        };
        process::run(program, &call, &self.ledger).await
    }
}
