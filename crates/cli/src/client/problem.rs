//! Owns how an error answer becomes a failure: the detail as its line, mistakes and nodes as its list.

use downbeat_server::http::view::{FieldError, Problem};
use reqwest::Response;

use crate::exit::{Code, Failure};

/// What the server said, as a failure of this program. `file` is what was sent, if a file was.
pub(super) async fn failure(response: Response, base: &str, file: Option<&str>) -> Failure {
    let status = response.status();
    let code = Code::of_status(status.as_u16());
    let text = response.text().await.unwrap_or_default();
    match serde_json::from_str::<Problem>(&text) {
        Ok(problem) => {
            let details = problem
                .errors
                .iter()
                .map(|error| mistake(error, file))
                .chain(problem.nodes.iter().map(|node| format!("{}: {}", node.node, node.reason)))
                .collect();
            Failure::new(code, problem.detail).with_details(details)
        }
        // Something else listens there, or a proxy spoke for the server.
        Err(_) => Failure::new(code, format!("{base} answered {status}, which is no answer of a downbeat server")),
    }
}

/// `file:line:column: path: message`. Places in a text that nobody wrote are left out.
fn mistake(error: &FieldError, file: Option<&str>) -> String {
    let place = match (file, error.line, error.column) {
        (Some(file), Some(line), Some(column)) => format!("{file}:{line}:{column}: "),
        (Some(file), _, _) => format!("{file}: "),
        (None, _, _) => String::new(),
    };
    let path = if error.path.is_empty() { String::new() } else { format!("{}: ", error.path) };
    format!("{place}{path}{}", error.message)
}
