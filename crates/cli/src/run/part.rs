//! Resolves a part of a run: a step, an item, a node. Parts that the run does not have are "not found".

use downbeat_api::{Plan, Run, Step, Where, request};
use downbeat_client::Client;

use crate::exit::{Failure, Result};

/// How many steps an error names.
const MOST_NAMED: usize = 3;

/// Returns the step with this number, or the only step with this name.
pub(super) fn step(text: &str, plan: &Plan) -> Result<u32> {
    let number = text.parse::<u32>().ok();
    if let Some(step) = plan.steps.iter().find(|step| Some(step.index) == number) {
        return Ok(step.index);
    }
    let named: Vec<u32> = plan.steps.iter().filter(|step| step.name == text).map(|step| step.index).collect();
    match named.as_slice() {
        [only] => Ok(*only),
        [] => {
            let last = plan.steps.len().saturating_sub(1);
            Err(Failure::not_found(format!(
                "the run has no step `{text}`; use a number from 0 to {last} or a name that `run show` lists"
            )))
        }
        [first, .., last] => Err(Failure::bad_input(format!(
            "{} steps are called `{text}`, from {first} to {last}; use a step number instead",
            named.len()
        ))),
    }
}

/// Checks that a task of the run, or the task of `step`, has an item with this number.
pub(super) fn check_item(item: u32, step: Option<u32>, run: &Run, plan: &Plan) -> Result {
    let over_items = |each: &&Step| each.for_each.is_some() && step.is_none_or(|step| step == each.index);
    let steps: Vec<&Step> = plan.steps.iter().filter(over_items).collect();
    if steps.is_empty() {
        let which = if step.is_some() { "this step" } else { "no task of the run" };
        let has = if step.is_some() { "has no" } else { "has" };
        return Err(Failure::bad_input(format!("--item: {which} {has} `for_each`, so there are no items")));
    }
    // Items of an expression are known only after it is evaluated.
    let may_get_items = |each: &Step| {
        let is_written = each.for_each.as_ref().is_some_and(|each| each.items.is_array());
        !is_written && !run.summary.state.is_terminal()
    };
    let count = |each: &Step| {
        let written = each.for_each.as_ref().and_then(|each| each.items.as_array()).map_or(0, Vec::len);
        let progress = run.steps().iter().find(|progress| progress.step == each.index);
        let there: u64 = progress.map_or(0, |progress| progress.counts.values().sum());
        written.max(usize::try_from(there).unwrap_or(usize::MAX))
    };
    if steps.iter().any(|each| (item as usize) < count(each) || may_get_items(each)) {
        return Ok(());
    }
    let has = |each: &&Step| match count(each) {
        0 => format!("step {} ({}) has no items", each.index, each.name),
        1 => format!("step {} ({}) has 1 item, number 0", each.index, each.name),
        count => format!("step {} ({}) has {count} items, numbers 0 to {}", each.index, each.name, count - 1),
    };
    let mut named: Vec<String> = steps.iter().take(MOST_NAMED).map(has).collect();
    if steps.len() > MOST_NAMED {
        named.push(format!("{} other steps have items", steps.len() - MOST_NAMED));
    }
    Err(Failure::not_found(format!("there is no item {item}: {}", named.join("; "))))
}

/// Checks that a node, given by hostname or id, has a part in the run or may still get one.
pub(super) async fn check_node(text: &str, run: &Run, plan: &Plan, client: &Client) -> Result {
    let is_target = |name: &str| plan.nodes.iter().any(|node| node.hostname == name);
    if is_target(text) {
        return Ok(());
    }
    let node = client.ask(request::node(text).with("cluster", run.summary.cluster)).await?;
    let continues = !run.summary.state.is_terminal();
    let has_placed = plan.steps.iter().any(|step| matches!(step.place, Where::Placed(_)));
    if is_target(&node.hostname) || (continues && has_placed) {
        return Ok(());
    }
    let results = request::run_results(&run.summary.id).with("node", node.id).with("limit", 1);
    if has_placed && !client.ask(results).await?.data.is_empty() {
        return Ok(());
    }
    Err(Failure::not_found(format!(
        "node `{text}` is not part of run {}; `downbeat run show` lists its nodes",
        run.summary.id
    )))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::exit::Code;

    #[test]
    fn a_step_is_named_by_its_number_or_by_a_name_that_only_it_has() {
        let step_called = |index: u32, name: &str| {
            json!({"index": index, "name": name, "backend": "test", "action": "noop", "branch": null,
                   "where": "placed", "condition": null, "after": []})
        };
        let steps =
            [step_called(0, "fetch"), step_called(1, "same"), step_called(2, "same"), step_called(3, "9")];
        let plan: Plan =
            serde_json::from_value(json!({"job": null, "strategy": "continue", "nodes": [], "steps": steps}))
                .unwrap();
        assert_eq!(step("2", &plan), Ok(2));
        assert_eq!(step("fetch", &plan), Ok(0));
        assert_eq!(step("9", &plan), Ok(3), "no step has this number, one has this name");
        assert_eq!(step("same", &plan).unwrap_err().code, Code::BadInput);
        for unknown in ["4", "nope", ""] {
            assert_eq!(step(unknown, &plan).unwrap_err().code, Code::NotFound, "{unknown}");
        }
    }
}
