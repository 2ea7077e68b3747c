//! Owns how an error answer becomes a failure: the detail as its line, mistakes and nodes as its list.

use downbeat_server::http::view::{FieldError, Problem};
use reqwest::Response;

use crate::exit::{Code, Failure};

/// The server's code for params of a run that are wrong.
const INVALID_PARAMS: &str = "invalid_params";

/// What the server said, as a failure of this program. `file` is what was sent, if a file was.
pub(super) async fn failure(response: Response, base: &str, file: Option<&str>) -> Failure {
    let status = response.status();
    let code = Code::of_status(status.as_u16());
    let text = response.text().await.unwrap_or_default();
    match serde_json::from_str::<Problem>(&text) {
        Ok(problem) => told(code, problem, file),
        // Something else listens there, or a proxy spoke for the server.
        Err(_) => {
            Failure::new(code, format!("{base} answered {status}, which is no answer of a downbeat server"))
        }
    }
}

/// The params of a run are wrong, whoever found out.
pub(crate) fn params_failure(code: Code, problems: Vec<String>) -> Failure {
    Failure::new(code, "the params of the run are not valid; --param NAME=VALUE gives one")
        .with_details(problems)
}

fn told(code: Code, problem: Problem, file: Option<&str>) -> Failure {
    if let Some(primary) = &problem.primary {
        let hint = format!("say it to the primary: --server {primary}");
        return Failure::new(code, problem.detail).with_details(vec![hint]);
    }
    if problem.code == INVALID_PARAMS {
        let param = |error: &FieldError| {
            format!("{}: {}", error.path.strip_prefix("params.").unwrap_or(&error.path), error.message)
        };
        return params_failure(code, problem.errors.iter().map(param).collect());
    }
    match (problem.errors.as_slice(), file) {
        ([], _) => {
            let nodes = problem.nodes.iter().map(|node| format!("{}: {}", node.node, node.reason)).collect();
            Failure::new(code, problem.detail).with_details(nodes)
        }
        ([only], None) => Failure::new(code, format!("the task is not valid: {}", mistake(only, None))),
        (errors, None) => {
            let mistakes = errors.iter().map(|error| mistake(error, None)).collect();
            Failure::new(code, "the task is not valid").with_details(mistakes)
        }
        (errors, Some(file)) => {
            let mistakes = errors.iter().map(|error| mistake(error, Some(file))).collect();
            Failure::new(code, format!("{file} is not valid")).with_details(mistakes)
        }
    }
}

/// `file:line:column: path: message`. Places in a text that nobody wrote are left out.
fn mistake(error: &FieldError, file: Option<&str>) -> String {
    let place = match (file, error.line, error.column) {
        (Some(file), Some(line), Some(column)) => format!("{file}:{line}:{column}: "),
        (Some(file), _, _) => format!("{file}: "),
        (None, _, _) => String::new(),
    };
    // The one task of a command line has no place in a list.
    let path = if file.is_none() { error.path.trim_start_matches("tasks[0].") } else { &error.path };
    let path = if path.is_empty() { String::new() } else { format!("{path}: ") };
    format!("{place}{path}{}", error.message)
}
