//! `job import crontab`: turns the lines of a crontab into job files. Needs no server.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use clap::{Args, Subcommand};
use downbeat_core::schedule::{ImportOptions, Imported, Remark, Zone, import_crontab};
use serde_json::{Value, json};

use super::file::JobFile;
use crate::exit::{Code, Failure, Result};
use crate::out::{Format, Out, yaml_document};
use crate::render::plural;

#[derive(Debug, Subcommand)]
pub(crate) enum From {
    /// Turn each line of a crontab into a job file, and name what a job cannot express
    Crontab(CrontabArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
        crontab -l | downbeat job import crontab - --timezone Europe/Berlin --target node:web-01\n  \
        downbeat job import crontab /etc/crontab --system --out jobs")]
pub(crate) struct CrontabArgs {
    /// The crontab; `-` reads standard input
    #[arg(value_name = "FILE")]
    file: String,
    /// Write each job to a file of its own in this directory, instead of to standard output
    #[arg(long, value_name = "DIR")]
    out: Option<String>,
    /// The time zone of the crontab's machine, such as Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,
    /// Where the jobs run: all, group:web, node:web-01, or a selector
    #[arg(long, value_name = "TARGET")]
    target: Option<String>,
    /// The lines have a user before the command, as in /etc/crontab
    #[arg(long)]
    system: bool,
}

pub(super) fn run(from: From, out: Out) -> Result {
    let From::Crontab(args) = from;
    if let Some(zone) = &args.timezone {
        Zone::named(zone).map_err(|error| Failure::bad_input(format!("--timezone: {error}")))?;
    }
    let (text, name) = JobFile::read(&args.file)?.text()?;
    let options = ImportOptions { timezone: args.timezone, target: args.target, has_users: args.system };
    let imported = import_crontab(&text, &options);
    let lines = |remarks: &[Remark]| -> Vec<String> {
        remarks.iter().map(|remark| format!("{name}:{}: {}", remark.line, remark.message)).collect()
    };
    match &args.out {
        Some(directory) => write_files(&imported, Path::new(directory), &name, out)?,
        None => print(&imported, &name, out)?,
    }
    lines(&imported.notes).iter().for_each(|note| out.note(note));
    if imported.left_out.is_empty() {
        return Ok(());
    }
    let count = plural(u32::try_from(imported.left_out.len()).unwrap_or(u32::MAX), "line");
    Err(Failure::bad_input(format!("{count} of {name} did not become a job"))
        .with_details(lines(&imported.left_out)))
}

fn print(imported: &Imported, crontab: &str, out: Out) -> Result {
    if out.format() == Format::Json {
        let jobs: Vec<&Value> = imported.jobs.iter().map(|job| &job.definition).collect();
        return out.result(&json!({ "data": jobs }), String::new);
    }
    let documents = imported.jobs.iter().map(|job| text_of(&job.definition, crontab, job.line));
    out.text(&documents.collect::<Vec<_>>().join("---\n"))
}

fn text_of(definition: &Value, crontab: &str, line: usize) -> String {
    // A name may contain a line end.
    let crontab = downbeat_core::shown::shown(crontab);
    format!("# from line {line} of {crontab}\n{}", yaml_document(definition))
}

/// Writes all files, or none if one of them exists.
fn write_files(imported: &Imported, directory: &Path, crontab: &str, out: Out) -> Result {
    let failed = |path: &Path, error: &std::io::Error| {
        Failure::new(Code::TemporaryFailure, format!("cannot write {}: {error}", path.display()))
    };
    fs::create_dir_all(directory).map_err(|error| failed(directory, &error))?;
    let path_of = |name: &str| directory.join(format!("{name}.yaml"));
    if let Some(job) = imported.jobs.iter().find(|job| path_of(&job.name).exists()) {
        let path = path_of(&job.name);
        return Err(Failure::new(
            Code::Refused,
            format!("{} exists already; nothing was written", path.display()),
        ));
    }
    let mut written = Vec::new();
    for job in &imported.jobs {
        let path = path_of(&job.name);
        let text = text_of(&job.definition, crontab, job.line);
        File::create_new(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|error| failed(&path, &error))?;
        written.push(path.display().to_string());
    }
    out.result(&json!({ "files": written }), || written.join("\n"))
}
