//! `job validate` and `job schema`: job files without a server.

use clap::Args;
use downbeat_api::{FieldError, Valid};
use downbeat_core::backend::Catalogue;
use downbeat_core::spec::{self, Noted};
use serde_json::json;

use super::file::JobFile;
use super::params;
use crate::connect::params_failure;
use crate::exit::{Code, Failure, Result};
use crate::out::{Format, Out};
use crate::render::plural;

#[derive(Debug, Args)]
pub(crate) struct ValidateArgs {
    /// Job file, YAML or JSON; `-` reads standard input
    #[arg(short, long, value_name = "FILE")]
    file: String,
    /// A param of the job, repeatable; if any is set, all required params are checked
    #[arg(long, value_name = "NAME=VALUE")]
    param: Vec<String>,
}

pub(super) fn run(args: &ValidateArgs, out: Out) -> Result {
    let params = params::read(&args.param)?;
    let file = JobFile::read(&args.file)?;
    match spec::parse_bytes_noting(&file.bytes, &file.name, &Catalogue::builtin()) {
        Ok(Noted { definition, notes }) => {
            notes.iter().for_each(|note| out.note(&note.render(&file.name)));
            if !params.is_empty()
                && let Err(problems) = spec::resolve_params(&definition, &params)
            {
                if out.format() != Format::Table {
                    let errors: Vec<_> = problems
                        .iter()
                        .map(|problem| json!({"path": format!("params.{}", problem.param), "message": problem.message}))
                        .collect();
                    out.result(&json!({"valid": false, "errors": errors}), String::new)?;
                }
                let problems = problems.iter().map(ToString::to_string).collect();
                return Err(params_failure(Code::BadInput, problems));
            }
            let steps = u32::try_from(definition.steps().count()).unwrap_or(u32::MAX);
            let valid = Valid { valid: true, job: definition.name, steps };
            out.result(&valid, || format!("{}: valid, {}", file.name, plural(steps, "step")))
        }
        Err(problems) => {
            if out.format() != Format::Table {
                let errors: Vec<FieldError> = problems.iter().cloned().map(FieldError::from).collect();
                out.result(&json!({"valid": false, "errors": errors}), String::new)?;
            }
            Err(Failure::bad_input(format!("{} is not valid", file.name))
                .with_details(problems.iter().map(|problem| problem.render(&file.name)).collect()))
        }
    }
}

/// Prints the schema of job files. It has no table form: it is JSON unless YAML is requested.
pub(super) fn schema(out: Out) -> Result {
    let out = if out.format() == Format::Table { out.with_format(Format::Json) } else { out };
    out.result(&spec::schema(), String::new)
}
