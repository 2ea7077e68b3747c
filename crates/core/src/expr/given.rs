//! Settles a run's params: what the job declares, what was given, and what is wrong with it.

use crate::backend::{ParamProblem, Params};
use crate::nearest::advice;
use crate::spec::Definition;

/// The run's params: what was given, and the defaults of the rest.
pub fn given(definition: &Definition, given: &Params) -> Result<Params, Vec<ParamProblem>> {
    let problem =
        |param: &str, message: String| ParamProblem { param: param.to_owned(), element: None, message };
    let names: Vec<&str> = definition.params.keys().map(String::as_str).collect();
    let unknown = given.keys().filter(|name| !definition.params.contains_key(*name));
    let mut problems: Vec<ParamProblem> = unknown
        .map(|name| {
            problem(name, format!("the job has no param `{name}`; {}", advice(name, &names, "params")))
        })
        .collect();
    let mut params = definition.params.clone();
    params.extend(given.iter().map(|(name, value)| (name.clone(), value.clone())));
    let missing = params.iter().filter(|(_, value)| value.is_null());
    problems.extend(missing.map(|(name, _)| problem(name, "has no default and must be given".to_owned())));
    if problems.is_empty() { Ok(params) } else { Err(problems) }
}
