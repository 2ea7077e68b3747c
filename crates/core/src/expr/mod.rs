//! Expressions in params. (Being written.)
use crate::backend::{ParamProblem, Params};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug)]
pub struct Data(serde_json::Value);
impl From<&serde_json::Value> for Data {
    fn from(v: &serde_json::Value) -> Self {
        Self(v.clone())
    }
}
impl From<&Params> for Data {
    fn from(v: &Params) -> Self {
        Self(serde_json::json!(v))
    }
}
impl Data {
    pub fn map(m: impl IntoIterator<Item = (String, Data)>) -> Self {
        Self(m.into_iter().map(|(k, v)| (k, v.0)).collect())
    }
}
#[derive(Clone, Debug)]
pub struct Scope {
    pub run: Data,
    pub params: Data,
    pub node: Option<Data>,
    pub steps: BTreeMap<String, Data>,
}
#[derive(Clone, Debug, Default)]
pub struct Uses {
    pub steps: BTreeSet<String>,
    pub step_nodes: bool,
    pub node: bool,
}
pub fn uses(_: &Params) -> Result<Option<Uses>, ParamProblem> {
    Ok(None)
}
pub fn render(params: &Params, _: &Scope) -> Result<Params, ParamProblem> {
    Ok(params.clone())
}

/// The run's params: what was given, and the defaults of the rest.
pub fn given(definition: &crate::spec::Definition, given: &Params) -> Result<Params, Vec<ParamProblem>> {
    let problem =
        |param: &str, message: String| ParamProblem { param: param.to_owned(), element: None, message };
    let known: Vec<&str> = definition.params.keys().map(String::as_str).collect();
    let unknown = given.keys().filter(|name| !definition.params.contains_key(*name));
    let mut problems: Vec<ParamProblem> = unknown
        .map(|name| {
            problem(name, format!("no such param; {}", crate::nearest::advice(name, &known, "params")))
        })
        .collect();
    let mut params = definition.params.clone();
    params.extend(given.iter().map(|(name, value)| (name.clone(), value.clone())));
    let missing = params.iter().filter(|(_, value)| value.is_null());
    problems.extend(missing.map(|(name, _)| problem(name, "it has no default and must be given".to_owned())));
    if problems.is_empty() { Ok(params) } else { Err(problems) }
}
