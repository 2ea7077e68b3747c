//! Owns which servers the commands connect to, and how a client error becomes a failure: the detail is its line,
//! mistakes and nodes are its list.

use downbeat_api::{FieldError, Problem, code};
use downbeat_client::{Client, Error};

use crate::args::Global;
use crate::exit::{Code, Failure, Result};

/// The prefix of the server's error about a query parameter; most parameters have the name of the flag that sets them.
const QUERY_ERROR: &str = "the query is wrong: ";

/// Nodes that are listed one by one; the others are only counted.
const MOST_NODES: usize = 20;

/// Returns a client of the servers that flags or the environment name.
pub(crate) fn connect(global: &Global) -> Result<Client> {
    let Global { server, cluster, .. } = global.clone().or_environment();
    Ok(Client::new(&server, cluster)?)
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        failure_in(error, None)
    }
}

/// Returns the failure of a request. `file` names the file that was sent, if one was.
pub(crate) fn failure_in(error: Error, file: Option<&str>) -> Failure {
    let code = match (&error, error.status()) {
        (_, Some(status)) => Code::of_status(status),
        (Error::BadAddress { .. }, _) => Code::BadInput,
        (Error::Unreachable { .. } | Error::OtherProtocol { .. }, _) => Code::Unreachable,
        _ => Code::Bug,
    };
    match error {
        Error::Problem(problem) => refused(code, *problem, file),
        error => Failure::new(code, error.to_string()),
    }
}

/// Returns the failure of a run whose params are wrong, found by the server or by the CLI.
pub(crate) fn params_failure(code: Code, problems: Vec<String>) -> Failure {
    Failure::new(code, "the params of the run are not valid; set them with --param NAME=VALUE")
        .with_details(problems)
}

fn refused(code: Code, problem: Problem, file: Option<&str>) -> Failure {
    if let Some(primary) = &problem.primary {
        let hint = format!("send this to the primary: --server {primary}");
        return Failure::new(code, problem.detail).with_details(vec![hint]);
    }
    if problem.code == code::INVALID_PARAMS {
        let param = |error: &FieldError| {
            format!("{}: {}", error.path.strip_prefix("params.").unwrap_or(&error.path), error.message)
        };
        return params_failure(code, problem.errors.iter().map(param).collect());
    }
    // Users write flags, not query parameters.
    if let Some(parameter) = problem.detail.strip_prefix(QUERY_ERROR) {
        return Failure::new(code, format!("--{parameter}"));
    }
    let mistakes: Vec<String> = problem.errors.iter().map(|error| mistake(error, file)).collect();
    match (mistakes.as_slice(), file) {
        ([], _) => {
            let mut nodes: Vec<String> =
                problem.unmentioned_nodes().map(|node| format!("{}: {}", node.node, node.reason)).collect();
            let more = nodes.len().saturating_sub(MOST_NODES);
            nodes.truncate(MOST_NODES);
            nodes.extend((more > 0).then(|| format!("and {more} more")));
            Failure::new(code, problem.message()).with_details(nodes)
        }
        ([only], None) => Failure::new(code, format!("the task is not valid: {only}")),
        (_, None) => Failure::new(code, "the task is not valid").with_details(mistakes),
        (_, Some(file)) => Failure::new(code, format!("{file} is not valid")).with_details(mistakes),
    }
}

/// Renders `file:line:column: path: message`. Positions in a generated text are left out.
fn mistake(error: &FieldError, file: Option<&str>) -> String {
    let position = match (file, error.line, error.column) {
        (Some(file), Some(line), Some(column)) => format!("{file}:{line}:{column}: "),
        (Some(file), _, _) => format!("{file}: "),
        (None, _, _) => String::new(),
    };
    // The only task of a command line needs no index.
    let path = if file.is_none() { error.path.trim_start_matches("tasks[0].") } else { &error.path };
    let path = if path.is_empty() { String::new() } else { format!("{path}: ") };
    format!("{position}{path}{}", error.message)
}
