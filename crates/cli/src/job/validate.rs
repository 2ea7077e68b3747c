//! `job validate`: checks a job file without a server.

use clap::Args;
use downbeat_api::FieldError;
use downbeat_api::Valid;
use downbeat_core::backend::Catalogue;
use downbeat_core::expr;
use downbeat_core::spec::{self, Noted};
use serde_json::json;

use super::file::JobFile;
use super::params;
use crate::connect::params_failure;
use crate::exit::{Code, Failure};
use crate::out::{Format, Out};

#[derive(Debug, Args)]
pub(crate) struct ValidateArgs {
    /// Job file, YAML or JSON; `-` reads standard input
    #[arg(short, long, value_name = "FILE")]
    file: String,
    /// A param of the job, repeatable; if any is set, all required params are checked
    #[arg(long, value_name = "NAME=VALUE")]
    param: Vec<String>,
}

pub(super) fn run(args: &ValidateArgs, out: Out) -> Result<(), Failure> {
    let params = params::read(&args.param)?;
    let file = JobFile::read(&args.file)?;
    match spec::parse_bytes_noting(&file.bytes, &file.name, &Catalogue::builtin()) {
        Ok(Noted { definition, notes }) => {
            notes.iter().for_each(|note| out.note(&note.render(&file.name)));
            if !params.is_empty()
                && let Err(problems) = expr::resolve_params(&definition, &params)
            {
                if out.format() != Format::Table {
                    let errors = problems.iter().map(|problem| {
                        json!({"path": format!("params.{}", problem.param), "message": problem.message})
                    });
                    let errors: Vec<_> = errors.collect();
                    out.result(&json!({"valid": false, "errors": errors}), String::new)?;
                }
                let problems = problems.iter().map(ToString::to_string).collect();
                return Err(params_failure(Code::BadInput, problems));
            }
            let steps = definition.steps().count();
            let valid =
                Valid { valid: true, job: definition.name, steps: u32::try_from(steps).unwrap_or(u32::MAX) };
            let plural = if valid.steps == 1 { "" } else { "s" };
            out.result(&valid, || format!("{}: valid, {} step{plural}", file.name, valid.steps))
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
