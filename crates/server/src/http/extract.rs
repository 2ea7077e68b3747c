//! Reads the parts of a request. An invalid part becomes a problem that names it.

use std::ops::Deref;

use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequestParts, Path, Query as AxumQuery};
use axum::http::StatusCode;
use axum::http::request::Parts;
use downbeat_api::code;
use downbeat_core::ids::RunId;
use downbeat_core::shown::shown;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use super::paging::LIMITS;
use super::problem::{Failure, HttpResult};
use crate::caller::Caller;
use crate::service::Service;

/// Query parameters; unknown ones are refused by name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Query<T>(pub(super) T);

impl<T> Deref for Query<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        match AxumQuery::<T>::from_request_parts(parts, state).await {
            Ok(AxumQuery(query)) => Ok(Self(query)),
            Err(rejection) => {
                let given = AxumQuery::<Vec<(String, String)>>::try_from_uri(&parts.uri);
                let given = given.map(|AxumQuery(given)| given).unwrap_or_default();
                Err(Failure::bad_query(wrong_query(&rejection, &given)))
            }
        }
    }
}

fn wrong_query(rejection: &QueryRejection, given: &[(String, String)]) -> String {
    let text = rejection.body_text();
    let text = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(&text);
    if let Some((name, why)) = text.split_once(": ")
        && let Some(number) = not_a_number(name, why)
    {
        let value = given.iter().rfind(|(key, _)| key == name).map(|(_, value)| shown(value));
        return format!("the query is wrong: {name}: `{}` {number}", value.unwrap_or_default());
    }
    // The path of an unknown field is its name, which the message already holds.
    let text = text.find("unknown field").map_or(text, |at| &text[at..]);
    format!("the query is wrong: {}", text.replace("unknown field", "unknown parameter"))
}

/// Describes a value that is not a number, from the error texts of Rust's standard library.
fn not_a_number(name: &str, why: &str) -> Option<String> {
    let too_large = match why {
        "invalid digit found in string" | "cannot parse integer from empty string" => false,
        "number too large to fit in target type" => true,
        _ => return None,
    };
    Some(match (name, too_large) {
        ("limit", _) => format!("is not {LIMITS}"),
        (_, true) => "is too large".to_owned(),
        (_, false) => "is not a whole number of 0 or more".to_owned(),
    })
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Nothing {}

/// The only variable segment of a path.
#[derive(Clone, Debug)]
pub(super) struct Id(pub(super) String);

impl Deref for Id {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Id {
    pub(super) fn run(&self) -> RunId {
        RunId::from(self.0.as_str())
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let id = Path::<String>::from_request_parts(parts, state).await;
        id.map(|Path(id)| Self(id))
            .map_err(|rejection| Failure::new(StatusCode::BAD_REQUEST, code::BAD_PATH, rejection.body_text()))
    }
}

/// The service, and who calls it.
#[derive(Clone, Debug)]
pub(super) struct Api(pub(super) Service, pub(super) Caller);

impl FromRequestParts<Service> for Api {
    type Rejection = Failure;

    /// Returns the same caller for all requests: there is no authentication yet.
    async fn from_request_parts(_parts: &mut Parts, service: &Service) -> Result<Self, Failure> {
        Ok(Self(service.clone(), Caller::API))
    }
}

/// `1`, `true`, `0` or `false`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) enum Flag {
    On,
    #[default]
    Off,
}

impl Flag {
    pub(super) fn is_on(self) -> bool {
        self == Flag::On
    }
}

impl PartialSchema for Flag {
    fn schema() -> RefOr<Schema> {
        let words = ["1", "true", "0", "false"];
        ObjectBuilder::new().schema_type(Type::String).enum_values(Some(words)).into()
    }
}

impl ToSchema for Flag {}

impl TryFrom<String> for Flag {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "1" | "true" => Ok(Flag::On),
            "0" | "false" => Ok(Flag::Off),
            other => Err(format!("invalid value: string {other:?}, expected 1, true, 0 or false")),
        }
    }
}

/// Parses a comma-separated parameter. The error names the first invalid word and the known ones.
pub(super) fn words<T>(
    name: &str,
    text: Option<&str>,
    known: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> HttpResult<Vec<T>> {
    let words = text.unwrap_or_default().split(',').map(str::trim).filter(|word| !word.is_empty());
    words
        .map(|word| {
            parse(word).ok_or_else(|| {
                Failure::bad_query(format!("the query is wrong: {name}: `{word}` is not one of {known}"))
            })
        })
        .collect()
}
