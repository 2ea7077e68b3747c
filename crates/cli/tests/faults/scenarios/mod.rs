//! Leases, one scenario after the other, with real servers and agents: which node gets work, which keeps it, and what
//! happens to it when a process dies or is late.

mod leasing;
mod placement;
mod recovery;
mod registry;
mod whole;

use serde_json::{Value, json};

use crate::site::Site;

/// A server, and agents with two slots each.
async fn site(agents: &[&str]) -> Site {
    Site::with_agents(agents).await
}

/// Placed tasks that do not wait for each other.
fn parallel(tasks: Vec<Value>) -> Value {
    let root = json!({"name": "root", "backend": "test", "action": "noop"});
    let after = |mut task: Value| {
        task["depends_on"] = json!(["root"]);
        task
    };
    let tasks: Vec<Value> = [root].into_iter().chain(tasks.into_iter().map(after)).collect();
    json!({"strategy": "continue", "tasks": tasks})
}

/// Returns the executions of a run except its root, as step, attempt, status and node.
fn rows(executions: &[Value]) -> Vec<(u64, u64, &str, &str)> {
    let mut rows: Vec<_> = executions
        .iter()
        .filter(|each| each["task"] != "root")
        .map(|each| {
            let number = |name: &str| each[name].as_u64().unwrap();
            let word = |name: &str| each[name].as_str().unwrap_or("-");
            (number("step"), number("attempt"), word("status"), word("node"))
        })
        .collect();
    rows.sort_unstable();
    rows
}

/// Returns the name of an execution's processes.
fn name_of(execution: &Value) -> String {
    format!("{}.{}", execution["id"].as_str().unwrap(), execution["attempt"])
}
