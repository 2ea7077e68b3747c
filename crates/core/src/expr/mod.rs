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
