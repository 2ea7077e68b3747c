//! Prepares an attempt: evaluates its params, resolves the keys of its limits, and computes its cache key.

use std::sync::Arc;

use serde_json::Value;

use super::passes::{At, Walk};
use super::progress::{Progress, Turn};
use crate::backend::{Params, params_bytes};
use crate::execution::Status;
use crate::expr::Data;
use crate::ids::{NodeId, sha256_hex};
use crate::limits;
use crate::plan::ResolvedTemplate;
use crate::spec::{Limits, Task};

/// The contents of an execution, except for its instance and its state.
#[derive(Clone, Debug)]
pub(super) struct Prepared {
    /// From 1.
    pub number: u32,
    /// The status of the attempt that it replaces.
    pub former: Option<Status>,
    pub params: Option<Arc<Params>>,
    pub limits: Option<Arc<Limits>>,
    pub cache_key: Option<Arc<str>>,
}

impl Prepared {
    /// Returns the contents of a first attempt that is never sent.
    pub(super) fn first() -> Self {
        Self { number: 1, former: None, params: None, limits: None, cache_key: None }
    }
}

impl Progress {
    pub(super) fn prepare(&mut self, at: At, number: u32, turn: &Turn<'_>) -> Result<Prepared, String> {
        let plan = Arc::clone(&self.plan);
        let (place, task) = (&plan.steps[at.step], plan.task(at.step));
        let params = place.params.as_ref().map(|template| self.render(template, at, turn)).transpose()?;
        if let Some(params) = &params {
            self.count_params(params)?;
        }
        let params = params.map(Arc::new);
        let limits = match &place.keys {
            None => place.limits.clone(),
            Some(template) => {
                let keys = self.render(template, at, turn)?;
                let limits = plan.definition.limits_of(task).map(|(written, limit)| {
                    let key = keys.get(written).and_then(Value::as_str).unwrap_or(written);
                    let (bytes, most) = (key.len(), limits::NAME_BYTES);
                    if key.trim().is_empty() || bytes > most {
                        return Err(format!(
                            "limit `{written}`: its key has {bytes} bytes; 1 to {most} are possible"
                        ));
                    }
                    Ok((key.to_owned(), *limit))
                });
                Some(Arc::new(limits.collect::<Result<_, _>>()?))
            }
        };
        let inputs = params.as_deref().unwrap_or(&task.params);
        let cache_key = task.cache.map(|_| cache_key(task, inputs, self.pinned(at)));
        Ok(Prepared { number, former: None, params, limits, cache_key })
    }

    fn count_params(&mut self, params: &Params) -> Result<(), String> {
        let bytes = self.params_bytes + params_bytes(params);
        if bytes > limits::PARAMS_OF_RUN_BYTES {
            let most = limits::PARAMS_OF_RUN_BYTES / 1024 / 1024;
            return Err(format!("with this step the evaluated params of the run exceed {most} MiB"));
        }
        self.params_bytes = bytes;
        Ok(())
    }

    fn render(&mut self, template: &ResolvedTemplate, at: At, turn: &Turn<'_>) -> Result<Params, String> {
        let Walk { node, item, .. } = *self.passes.walk(at.pass, at.walk);
        let facts = node.filter(|_| template.node).and_then(|node| (turn.facts)(self.plan.node(node).id));
        let items = self.passes.get(at.pass).and_then(|open| open.items.as_ref());
        let value = item.zip(items).map(|(item, items)| (Data::from(&items[item.get()]), item));
        let entry = self.plan.steps[at.step].entry;
        let scope = self.scope_of(template, entry, node, value, facts.as_ref().map(Data::from))?;
        template.render(&scope).map_err(|problem| format!("param {problem}"))
    }
}

/// Returns a hash of the inputs: equal for equal inputs, different for different ones.
fn cache_key(task: &Task, params: &Params, node: Option<NodeId>) -> Arc<str> {
    let mut outputs: Vec<&str> = task.outputs.iter().map(String::as_str).collect();
    outputs.sort_unstable();
    // JSON maps are ordered by key here, so equal params have equal text.
    let inputs = serde_json::json!([task.backend, task.action, params, outputs, node]);
    sha256_hex(inputs.to_string().as_bytes()).into()
}
