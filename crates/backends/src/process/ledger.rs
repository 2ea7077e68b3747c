//! Owns the record of what runs on behalf of an agent, in files that outlive it: a restarted agent ends what its
//! former life left running. Several agents may share a host, so only what is recorded here is touched.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::tree::{Leader, Tree, terminate};
use crate::backend::Identity;

/// One file per running execution, named after it. Not synced: what a crash of the machine loses, it also ended.
#[derive(Debug)]
pub struct Ledger {
    dir: PathBuf,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot keep the record of running work in `{dir}`: {error}")]
pub struct Error {
    dir: PathBuf,
    error: io::Error,
}

impl Ledger {
    pub fn open(dir: &Path) -> Result<Self, Error> {
        fs::create_dir_all(dir).map_err(|error| Error { dir: dir.to_owned(), error })?;
        Ok(Self { dir: dir.to_owned() })
    }

    /// Before the start: a process that nobody recorded could not be found again.
    pub(super) fn begin(&self, identity: Identity) -> io::Result<()> {
        fs::write(self.file(identity), "")
    }

    pub(super) fn started(&self, identity: Identity, leader: Leader) -> io::Result<()> {
        fs::write(self.file(identity), format!("{} {}", leader.pid, leader.started))
    }

    pub(super) fn end(&self, identity: Identity) {
        let _ = fs::remove_file(self.file(identity));
    }

    /// Ends everything that is recorded; to be called before anything is started. Answers what was still running.
    pub async fn sweep(&self, grace: Duration) -> Vec<Identity> {
        let mut found = Vec::new();
        for identity in self.recorded() {
            let leader = fs::read_to_string(self.file(identity)).ok().and_then(|text| parse_leader(&text));
            let tree = Arc::new(Tree::former(identity, leader));
            if !tree.members().is_empty() {
                found.push(identity);
                let left = terminate(&tree, grace).await;
                if left > 0 {
                    tracing::error!(execution = %identity, left, "processes of a former life do not end");
                }
            } else {
                tree.remove_cgroup();
            }
            self.end(identity);
        }
        found
    }

    fn recorded(&self) -> Vec<Identity> {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    }

    fn file(&self, identity: Identity) -> PathBuf {
        self.dir.join(identity.to_string())
    }
}

fn parse_leader(text: &str) -> Option<Leader> {
    let (pid, started) = text.split_once(' ')?;
    Some(Leader { pid: pid.parse().ok()?, started: started.parse().ok()? })
}
