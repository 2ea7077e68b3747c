//! The backend `apt`: Debian packages, with apt-get. It runs without prompts and keeps changed configuration files.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use downbeat_core::backend::BackendSchema;
use downbeat_core::execution::Verdict;

use super::params::{is_on, texts};
use crate::backend::{Backend, Call, Finish};
use crate::output::Stream;
use crate::process::{self, Ledger, Program};

const ENVIRONMENT: [(&str, &str); 2] =
    [("DEBIAN_FRONTEND", "noninteractive"), ("APT_LISTCHANGES_FRONTEND", "none")];

const OPTIONS: [&str; 12] = [
    "-q",
    "-y",
    // On a terminal dpkg would draw its progress hundreds of times over the same line.
    "-o",
    "Dpkg::Use-Pty=0",
    // A configuration file that was changed on the host stays as it is.
    "-o",
    "Dpkg::Options::=--force-confold",
    // How many seconds to wait while another apt holds the lock.
    "-o",
    "DPkg::Lock::Timeout=600",
    // A name without a package is an error; without this `python3.1` would be used as a regular expression.
    "-o",
    "APT::Cmd::Pattern-Only=true",
    // A source that cannot be read fails `update`; without this it would be a warning.
    "-o",
    "APT::Update::Error-Mode=any",
];

/// Changes that dpkg has made and not yet written into its status. While there are any, apt refuses to change packages.
const JOURNAL: &str = "/var/lib/dpkg/updates";

#[derive(Debug)]
pub struct Apt {
    pub ledger: Arc<Ledger>,
    /// apt-get.
    pub program: PathBuf,
}

impl Apt {
    /// Applies the journal that a killed dpkg (a cancel, a timeout, an agent that crashed) left behind. `dpkg
    /// --configure -a`, which apt then asks for, would first configure the package that hung, so that not even its
    /// removal would be possible. Any other write of the status applies the journal too, so this sets an empty
    /// selection.
    ///
    /// A running dpkg has a journal too. This call then fails at the lock, and apt waits for it.
    async fn apply_journal(&self, call: &Call) {
        if !has_entries(JOURNAL).await {
            return;
        }
        let dpkg = Program {
            name: self.program.with_file_name("dpkg").to_string_lossy().into_owned(),
            args: vec!["--set-selections".to_owned()],
            stdin: Some(String::new()),
            ..Program::default()
        };
        if process::run(dpkg, call, &self.ledger).await.verdict == Verdict::Succeeded {
            call.output.write(Stream::Stderr, b"dpkg had been interrupted; it can continue\n");
        }
    }
}

async fn has_entries(directory: &str) -> bool {
    let Ok(mut entries) = tokio::fs::read_dir(directory).await else { return false };
    entries.next_entry().await.is_ok_and(|entry| entry.is_some())
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
        if command != "update" {
            self.apply_journal(&call).await;
        }
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
            ..Program::default()
        };
        process::run(program, &call, &self.ledger).await
    }
}
