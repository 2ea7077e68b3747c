//! `task list`, `show`, `delete` and `reorder`.

use clap::Args;
use downbeat_api::{StandingTask, request};
use downbeat_client::{Body, Client};
use downbeat_core::shown::shown;
use jiff::Timestamp;
use serde_json::json;

use super::Which;
use super::which::{all, cluster, find};
use crate::exit::{Failure, Result};
use crate::out::Out;
use crate::render::{Rows, hosts, standing_task_page, standing_task_table};

pub(super) async fn run(client: &Client, out: Out) -> Result {
    let tasks = all(client).await?;
    out.result(&json!({ "data": tasks }), || standing_task_table(&tasks, out.width()))
}

pub(super) async fn show(which: &Which, client: &Client, out: Out) -> Result {
    let task = which.resolve(client).await?;
    out.result(&task, || standing_task_page(&task, Timestamp::now(), out.width()))
}

pub(super) async fn delete(which: &Which, client: &Client, out: Out) -> Result {
    let task = which.resolve(client).await?;
    client.ask(request::delete_task(task.id)).await?;
    out.result(&json!({"id": task.id, "name": task.name, "deleted": true}), || {
        format!("task {} is deleted; where it runs, it ends first", task.name)
    })
}

#[derive(Debug, Args)]
pub(crate) struct ReorderArgs {
    /// All tasks of the cluster in their new order, by name or id
    #[arg(value_name = "TASK", required = true)]
    tasks: Vec<String>,
}

pub(super) async fn reorder(args: ReorderArgs, client: &Client, out: Out) -> Result {
    let tasks = all(client).await?;
    let order = ordered(&args.tasks, &tasks, cluster(client))?;
    let ids: Vec<_> = order.iter().map(|place| tasks[*place].id).collect();
    let body = json!({"task_ids": ids}).to_string();
    client.send(request::reorder_tasks(cluster(client)), Body::Json(body), None).await?;
    let tasks = all(client).await?;
    out.result(&json!({ "data": tasks }), || standing_task_table(&tasks, out.width()))
}

/// Returns the places of the tasks in their new order, which must name each task once.
fn ordered(given: &[String], tasks: &[StandingTask], cluster: &str) -> Result<Vec<usize>> {
    let mut order: Vec<usize> = Vec::with_capacity(given.len());
    for text in given {
        let place = find(text, tasks, cluster)?;
        if order.contains(&place) {
            return Err(Failure::bad_input(format!("task `{}` is given twice", shown(text))));
        }
        order.push(place);
    }
    let missing = tasks.iter().enumerate().filter(|(place, _)| !order.contains(place));
    let missing: Vec<&str> = missing.map(|(_, task)| task.name.as_str()).collect();
    if missing.is_empty() {
        return Ok(order);
    }
    let named = hosts(&missing, Rows::Few);
    Err(Failure::bad_input(format!("the new order needs every task of the cluster once; missing: {named}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Code;

    fn tasks(names: &[&str]) -> Vec<StandingTask> {
        let task = |(number, name): (usize, &&str)| {
            let id = format!("0198c0de-0000-7000-8000-{number:012}");
            crate::render::a_standing_task(&id, name, number + 1)
        };
        names.iter().enumerate().map(task).collect()
    }

    #[test]
    fn an_order_names_every_task_once_by_name_or_id() {
        let tasks = tasks(&["install", "configure", "start"]);
        let order = |given: &[&str]| {
            let given: Vec<String> = given.iter().map(|text| (*text).to_owned()).collect();
            ordered(&given, &tasks, "default")
        };
        let id = tasks[0].id.to_string();
        assert_eq!(order(&["start", &id, "configure"]), Ok(vec![2, 0, 1]));
        let twice = order(&["start", "start", "install"]).unwrap_err();
        assert_eq!((twice.code, twice.message.as_str()), (Code::BadInput, "task `start` is given twice"));
        let few = order(&["start"]).unwrap_err();
        assert_eq!(few.code, Code::BadInput);
        assert!(few.message.ends_with("missing: install, configure"), "{}", few.message);
        let unknown = order(&["strat", "install", "configure"]).unwrap_err();
        assert_eq!(unknown.code, Code::NotFound);
        assert!(unknown.message.ends_with("did you mean `start`?"), "{}", unknown.message);
    }
}
