//! Reads a definition from the body of a request: JSON or YAML, 1 MiB at most; alone, or as a field of a
//! JSON object with params.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use downbeat_core::backend::{Catalogue, Params};
use downbeat_core::ids::ClusterId;
use downbeat_core::nearest::advice;
use downbeat_core::select::Selector;
use downbeat_core::shown::shown;
use downbeat_core::spec;
use serde::Deserialize;
use serde_json::Value;
use utoipa::IntoParams;

use super::media::Media;
use super::payload::Payload;
use super::problem::{Failure, HttpResult};
use crate::service::{Service, Submit};

/// Larger bodies are parsed on a thread that blocks no other request; for smaller ones, the hand-over would cost more.
const LARGE_BYTES: usize = 32 * 1024;

#[derive(Debug)]
pub(super) struct Body {
    bytes: Bytes,
    format: Media,
}

/// A submission, with notes on parts of its definition that are valid but probably not intended.
type Noted = (Submit, Vec<spec::Problem>);

/// Where to run it, if the query says so.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct TargetQuery {
    /// Replaces the definition's target: `all`, `group:web`, `node:web-01`, or a selector.
    target: Option<String>,
    /// The cluster, by name or id, if the definition names none; default `default`.
    cluster: Option<String>,
}

impl TargetQuery {
    /// Returns the query of a request that names only a cluster.
    pub(super) fn of_cluster(cluster: Option<String>) -> Self {
        Self { target: None, cluster }
    }

    pub(super) fn target(&self) -> Option<&[u8]> {
        self.target.as_deref().map(str::as_bytes)
    }

    pub(super) fn cluster(&self) -> Option<&[u8]> {
        self.cluster.as_deref().map(str::as_bytes)
    }
}

/// A body with this field is not the definition itself. No job file has it.
const DEFINITION: &str = "definition";
const PARAMS: &str = "params";
const NO_CACHE: &str = "no_cache";
const FIELDS: [&str; 3] = [DEFINITION, PARAMS, NO_CACHE];

impl<S: Send + Sync> FromRequest<S> for Body {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failure> {
        let format = Media::required(request.headers())?;
        let Payload(bytes) = Payload::from_request(request, state).await?;
        Ok(Self { bytes, format })
    }
}

impl Body {
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Parses the definition and checks it against the known backends. Applies the target and the cluster of the query.
    pub(super) async fn read(self, service: &Service, query: &TargetQuery) -> HttpResult<Noted> {
        let target = match &query.target {
            Some(text) => Some(
                Selector::parse(text)
                    .map_err(|error| Failure::bad_query(format!("the query is wrong: target: {error}")))?,
            ),
            None => None,
        };
        let cluster = query.cluster.clone().or_else(|| self.cluster());
        // A cluster that does not exist is refused later.
        let cluster = cluster.and_then(|cluster| service.parts.standing.cluster(&cluster));
        let catalogue = service.catalogue(cluster.map_or(ClusterId::DEFAULT, |cluster| cluster.id));
        let parsed = if self.bytes.len() > LARGE_BYTES {
            service.parts.heavy.run(move || self.parse(&catalogue)).await?
        } else {
            self.parse(&catalogue)
        };
        let (mut submit, notes) = parsed?;
        if target.is_some() {
            submit.definition.target = target;
            submit.definition.placement = None;
        }
        if let Some(cluster) = &query.cluster {
            let own = submit.definition.cluster.get_or_insert_with(|| cluster.clone());
            // A cluster has a name and an id; a request may use either.
            let store = service.views();
            let is_other = own != cluster && {
                let found = store.cluster(own).await?;
                found.is_none() || found != store.cluster(cluster).await?
            };
            if is_other {
                let detail = format!(
                    "the job names cluster `{}`, but the request names cluster `{}`; remove one of them",
                    shown(own),
                    shown(cluster)
                );
                return Err(Failure::bad_query(detail));
            }
        }
        Ok((submit, notes))
    }

    /// Returns the cluster that the definition names, if it can be read so far.
    fn cluster(&self) -> Option<String> {
        let text = std::str::from_utf8(&self.bytes).ok().filter(|text| text.contains("cluster"))?;
        match self.format {
            Media::Yaml => spec::named_cluster(text),
            Media::Json => match serde_json::from_str::<Value>(text).ok()?.get(DEFINITION) {
                Some(Value::String(text)) => spec::named_cluster(text),
                Some(value) => spec::named_cluster_of_json(value),
                None => spec::named_cluster(text),
            },
        }
    }

    fn parse(&self, catalogue: &Catalogue) -> HttpResult<Noted> {
        // Without a file extension the parser accepts both syntaxes; with `.json` it accepts only JSON.
        let again = |origin| spec::parse_bytes_noting(&self.bytes, origin, catalogue);
        match self.format {
            Media::Yaml => again("body").map(alone).map_err(Failure::invalid),
            Media::Json => match serde_json::from_slice(&self.bytes) {
                Ok(Value::Object(fields)) if fields.contains_key(DEFINITION) => {
                    with_params(&fields, catalogue).map_err(Failure::invalid)
                }
                Ok(value) => {
                    spec::from_json_noting(&value, catalogue).map(alone).map_err(|problems| {
                        // This parser is slower, but it reports lines and columns.
                        Failure::invalid(again("body.json").err().unwrap_or(problems))
                    })
                }
                Err(error) => Err(Failure::malformed(again("body.json").err().unwrap_or_else(|| {
                    vec![spec::Problem {
                        path: String::new(),
                        at: Some(spec::At::of_json(&error)),
                        message: error.to_string(),
                    }]
                }))),
            },
        }
    }
}

/// Creates the submission of a definition without params.
fn alone(spec::Noted { definition, notes }: spec::Noted) -> Noted {
    (Submit { definition, params: None, no_cache: false, idempotency_key: None }, notes)
}

/// Parses `{"definition": …, "params": {…}, "no_cache": true}`. The definition is an object or the text of a job file.
fn with_params(
    fields: &serde_json::Map<String, Value>,
    catalogue: &Catalogue,
) -> Result<Noted, Vec<spec::Problem>> {
    let wrong =
        |path: &str, message: String| vec![spec::Problem { path: path.to_owned(), at: None, message }];
    if let Some(unknown) = fields.keys().find(|name| !FIELDS.contains(&name.as_str())) {
        let advice = advice(unknown, &FIELDS, "fields");
        return Err(wrong(unknown, format!("unknown field; {advice}")));
    }
    let params = match fields.get(PARAMS) {
        None | Some(Value::Null) => Params::new(),
        Some(Value::Object(params)) => params.clone().into_iter().collect(),
        Some(_) => return Err(wrong(PARAMS, "must be an object of names and values".to_owned())),
    };
    let no_cache = match fields.get(NO_CACHE) {
        None | Some(Value::Null) => false,
        Some(Value::Bool(no_cache)) => *no_cache,
        Some(_) => return Err(wrong(NO_CACHE, "must be true or false".to_owned())),
    };
    let spec::Noted { definition, notes } = match &fields[DEFINITION] {
        Value::String(text) => spec::parse_noting(text, "body", catalogue)?,
        value => spec::from_json_noting(value, catalogue)?,
    };
    Ok((Submit { definition, params: Some(params), no_cache, idempotency_key: None }, notes))
}
