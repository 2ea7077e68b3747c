//! Turns errors into responses: the only place that maps an error's class to an HTTP status.

use std::fmt;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use downbeat_api::{FieldError, NAMED, NodeReason, Problem, code, named_of, with_nodes};
use downbeat_core::backend::{Element, ParamProblem};
use downbeat_core::plan::Unfit;
use downbeat_core::spec;
use downbeat_store as store;

use crate::error::{Class, Error};

/// When a client may retry an unavailable operation.
const RETRY_AFTER_S: HeaderValue = HeaderValue::from_static("1");

/// When there may be room for another run: runs take a while.
const ROOM_AFTER_S: HeaderValue = HeaderValue::from_static("5");

/// How a client may prove who it is. A response with 401 must name a way.
const SCHEME: HeaderValue = HeaderValue::from_static("Bearer");

pub(super) type HttpResult<T> = Result<T, Failure>;
pub(super) type Reply<T> = HttpResult<Json<T>>;

#[derive(Debug)]
pub(super) struct Failure(Box<Problem>);

impl Failure {
    pub(super) fn new(status: StatusCode, code: &str, detail: impl Into<String>) -> Self {
        Self(Box::new(Problem {
            kind: "about:blank".to_owned(),
            title: status.canonical_reason().unwrap_or("Error").to_owned(),
            status: status.as_u16(),
            detail: detail.into(),
            code: code.to_owned(),
            errors: Vec::new(),
            nodes: Vec::new(),
            primary: None,
            first: None,
        }))
    }

    /// Refuses a request that only the primary can handle.
    pub(super) fn read_only(primary: String) -> Self {
        let detail = format!("this is a read replica; send changes to its primary, {primary}");
        let mut failure = Self::new(StatusCode::CONFLICT, code::READ_ONLY_REPLICA, detail);
        failure.0.primary = Some(primary);
        failure
    }

    /// Refuses a request for events that are no longer kept.
    pub(super) fn events_gone(first: u64) -> Self {
        let detail = format!("events before {first} are no longer kept; continue with since={}", first - 1);
        let mut failure = Self::new(StatusCode::GONE, code::EVENTS_GONE, detail);
        failure.0.first = Some(first);
        failure
    }

    pub(super) fn bad_query(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code::BAD_QUERY, detail)
    }

    pub(super) fn invalid(problems: Vec<spec::Problem>) -> Self {
        let (what, errors) = ("the definition is not valid", problems.into_iter().map(FieldError::from));
        Self::with_errors(StatusCode::UNPROCESSABLE_ENTITY, code::INVALID_DEFINITION, what, errors.collect())
    }

    pub(super) fn invalid_task(problems: Vec<spec::Problem>) -> Self {
        let (what, errors) = ("the task is not valid", problems.into_iter().map(FieldError::from));
        Self::with_errors(StatusCode::UNPROCESSABLE_ENTITY, code::INVALID_TASK, what, errors.collect())
    }

    /// A body that does not match its content type.
    pub(super) fn malformed(problems: Vec<spec::Problem>) -> Self {
        let (what, errors) = ("the body cannot be read", problems.into_iter().map(FieldError::from));
        Self::with_errors(StatusCode::BAD_REQUEST, code::MALFORMED, what, errors.collect())
    }

    fn with_errors(status: StatusCode, code: &str, what: &str, errors: Vec<FieldError>) -> Self {
        let named = errors.iter().take(NAMED).map(|error| {
            if error.path.is_empty() {
                error.message.clone()
            } else {
                format!("{}: {}", error.path, error.message)
            }
        });
        let mut failure = Self::new(status, code, format!("{what}: {}", named_of(named, errors.len())));
        failure.0.errors = errors;
        failure
    }

    fn refused(unfit: Unfit) -> Self {
        let nodes = unfit.nodes.into_iter().map(|(node, reason)| NodeReason { node, reason });
        let nodes: Vec<NodeReason> = nodes.collect();
        let mut failure = Self::new(StatusCode::CONFLICT, code::REFUSED, with_nodes(&unfit.message, &nodes));
        failure.0.nodes = nodes;
        failure
    }
}

fn of_param(problem: ParamProblem) -> FieldError {
    let part = match &problem.element {
        None => String::new(),
        Some(Element::Index(index)) => format!("[{index}]"),
        Some(Element::Key(key)) => format!(".{key}"),
    };
    let path = format!("params.{}{part}", problem.param);
    FieldError { path, line: None, column: None, message: problem.message }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let class = error.class();
        match error {
            Error::Invalid(problems) => Self::invalid(problems),
            Error::InvalidTask(problems) => Self::invalid_task(problems),
            Error::Params(problems) => Self::with_errors(
                StatusCode::UNPROCESSABLE_ENTITY,
                code::INVALID_PARAMS,
                "the run's params are not valid",
                problems.into_iter().map(of_param).collect(),
            ),
            Error::Refused(unfit) => Self::refused(unfit),
            Error::KeyReused(_) => {
                let status = StatusCode::UNPROCESSABLE_ENTITY;
                Self::new(status, code::IDEMPOTENCY_KEY_REUSED, error.to_string())
            }
            Error::TooManyRequests { .. } => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, code::TOO_MANY_REQUESTS, error.to_string())
            }
            error => {
                let (status, code) = match class {
                    Class::Unproven => (StatusCode::UNAUTHORIZED, code::UNPROVEN),
                    Class::Rejected => (StatusCode::UNPROCESSABLE_ENTITY, code::REJECTED),
                    Class::NotFound => (StatusCode::NOT_FOUND, code::NOT_FOUND),
                    Class::Conflict => (StatusCode::CONFLICT, code::CONFLICT),
                    Class::TooMany => (StatusCode::TOO_MANY_REQUESTS, code::TOO_MANY_RUNS),
                    Class::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, code::UNAVAILABLE),
                    Class::Busy => (StatusCode::SERVICE_UNAVAILABLE, code::BUSY),
                    Class::Bug => (StatusCode::INTERNAL_SERVER_ERROR, code::BUG),
                };
                // Being busy is not an error, and a flood of requests must not become a flood of log lines.
                if status.is_server_error() && class != Class::Busy {
                    tracing::error!(%error, "request failed");
                }
                Self::new(status, code, error.to_string())
            }
        }
    }
}

impl From<store::Error> for Failure {
    fn from(error: store::Error) -> Self {
        Self::from(Error::from(error))
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self.0).expect("a problem is plain data");
        let mut response =
            (status, [(header::CONTENT_TYPE, "application/problem+json")], body).into_response();
        let retry_after = match status {
            StatusCode::SERVICE_UNAVAILABLE => Some(RETRY_AFTER_S),
            StatusCode::TOO_MANY_REQUESTS if self.0.code == code::TOO_MANY_REQUESTS => Some(RETRY_AFTER_S),
            StatusCode::TOO_MANY_REQUESTS => Some(ROOM_AFTER_S),
            _ => None,
        };
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, SCHEME);
        }
        if let Some(seconds) = retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        response
    }
}
