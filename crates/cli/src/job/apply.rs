//! `job apply`: stores the jobs of files, as new jobs or as new versions.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use clap::Args;
use downbeat_api::{AppliedJob, request};
use downbeat_client::{Body, Client};
use downbeat_core::backend::Params;
use serde_json::json;

use super::file::JobFile;
use crate::connect::failure_in;
use crate::exit::{Failure, Result};
use crate::out::Out;
use crate::render::applied_lines;

/// The files of a directory that are applied.
const ENDINGS: [&str; 3] = ["yaml", "yml", "json"];

#[derive(Debug, Args)]
#[command(
    after_help = "A job with a known name gets a new version, unless nothing differs. Times of its schedules that are \
    due are started before it changes.\n\nExamples:\n  \
    downbeat job apply -f backup.yaml\n  \
    downbeat job apply -f jobs/ --prune --dry-run"
)]
pub(crate) struct ApplyArgs {
    /// Job file, YAML or JSON; a directory with such files; `-` reads standard input
    #[arg(short, long, value_name = "FILE|DIR")]
    file: String,
    /// Only show what would change
    #[arg(long)]
    dry_run: bool,
    /// Delete the jobs of the cluster that the files do not name
    #[arg(long)]
    prune: bool,
}

pub(super) async fn run(args: &ApplyArgs, client: &Client, out: Out) -> Result {
    let mut applied = Vec::new();
    for path in files(&args.file)? {
        applied.push(apply(&path, args.dry_run, client).await?);
    }
    let mut deleted = Vec::new();
    if args.prune {
        deleted = prune(&applied, args.dry_run, client).await?;
    }
    out.result(&json!({"dry_run": args.dry_run, "jobs": applied, "deleted": deleted}), || {
        applied_lines(&applied, &deleted, args.dry_run)
    })
}

/// Returns the files to apply, by name.
fn files(path: &str) -> Result<Vec<String>> {
    if path == "-" || !Path::new(path).is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let unreadable = |error: std::io::Error| Failure::bad_input(format!("cannot read {path}: {error}"));
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(unreadable)? {
        let file = entry.map_err(unreadable)?.path();
        let is_job = file.extension().is_some_and(|ending| ENDINGS.iter().any(|known| ending == *known));
        if is_job && file.is_file() {
            files.push(file.to_string_lossy().into_owned());
        }
    }
    if files.is_empty() {
        return Err(Failure::bad_input(format!("{path} has no files that end with .yaml, .yml or .json")));
    }
    files.sort();
    Ok(files)
}

async fn apply(path: &str, dry_run: bool, client: &Client) -> Result<AppliedJob> {
    let (text, name) = JobFile::read(path)?.text()?;
    let request =
        request::apply_job().with_any("cluster", client.cluster()).with_any("dry_run", dry_run.then_some(1));
    let body = Body::Definition { text, params: Params::new(), no_cache: false };
    client.send(request, body, None).await.map_err(|error| failure_in(error, Some(&name)))
}

/// Deletes the jobs that were not applied, of the clusters of those that were. Returns their names.
async fn prune(applied: &[AppliedJob], dry_run: bool, client: &Client) -> Result<Vec<String>> {
    let clusters: BTreeSet<_> = applied.iter().map(|applied| applied.job.cluster).collect();
    let mut deleted = Vec::new();
    for cluster in clusters {
        let is_named = |name: &str| {
            applied.iter().any(|applied| applied.job.cluster == cluster && applied.job.name == name)
        };
        for job in client.all_pages(request::jobs().with("cluster", cluster)).await? {
            if is_named(&job.name) {
                continue;
            }
            if !dry_run {
                client.ask(request::delete_job(&job.name).with("cluster", cluster)).await?;
            }
            deleted.push(job.name);
        }
    }
    Ok(deleted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_its_job_files_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in ["b.yaml", "a.json", "c.yml", "notes.txt"] {
            fs::write(path(name), "").unwrap();
        }
        fs::create_dir(path("d.yaml")).unwrap();
        let found = files(&dir.path().to_string_lossy()).unwrap();
        assert_eq!(
            found,
            ["a.json", "b.yaml", "c.yml"].map(|name| path(name).to_string_lossy().into_owned())
        );
        assert_eq!(files("-").unwrap(), ["-"]);
        let empty = tempfile::tempdir().unwrap();
        let failure = files(&empty.path().to_string_lossy()).unwrap_err();
        assert!(failure.message.contains("has no files"), "{}", failure.message);
    }
}
