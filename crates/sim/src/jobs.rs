//! Owns random jobs: lists, pipelines and graphs; on all nodes, on some, placed, or mixed; with conditions, retries,
//! timeouts, deliveries, limits, waves, exclusive nodes, items, concurrency limits, and outputs that later tasks use. The
//! hosts decide the outcome of an attempt, not the job.

use downbeat_core::Dice;
use serde_json::{Value, json};

use crate::outside::{ANSWERS, HANGS};

const CONDITIONS: [&str; 3] = ["always", "on_success", "on_failure"];

fn chance(dice: &mut Dice, one_in: u64) -> bool {
    dice.below(one_in) == 0
}

/// Sets a field in one of `one_in` cases.
fn sometimes(
    dice: &mut Dice,
    one_in: u64,
    on: &mut Value,
    field: &str,
    value: impl FnOnce(&mut Dice) -> Value,
) {
    if chance(dice, one_in) {
        on[field] = value(dice);
    }
}

fn pick<'a>(dice: &mut Dice, from: &'a [&'a str]) -> &'a str {
    from[usize::try_from(dice.below(from.len() as u64)).expect("an index fits in usize")]
}

fn task(name: &str, scale: u64, dice: &mut Dice) -> Value {
    let mut task = match dice.below(3) {
        0 => json!({"backend": "test", "action": "noop"}),
        1 => json!({"backend": "test", "action": "echo", "params": {"message": "hello"}}),
        // Not idempotent.
        _ => json!({"backend": "test", "action": "flaky", "params": {"succeed_on": 1}}),
    };
    task["name"] = json!(name);
    sometimes(dice, 3, &mut task, "condition", |dice| json!(pick(dice, &CONDITIONS)));
    let retry = |dice: &mut Dice| json!({"max": 1 + dice.below(3), "delay": "1s", "max_delay": "5s"});
    sometimes(dice, 3, &mut task, "retry", retry);
    sometimes(dice, 3, &mut task, "timeout", |dice| json!(format!("{}s", 2 + dice.below(20))));
    sometimes(dice, 3, &mut task, "delivery", |dice| json!(pick(dice, &["at_least_once", "at_most_once"])));
    sometimes(dice, 3, &mut task, "on_disconnect", |dice| json!(pick(dice, &["stop", "continue"])));
    sometimes(dice, 8, &mut task, "cache", |_| json!(true));
    sometimes(dice, 3, &mut task, "outputs", |_| json!(["v"]));
    sometimes(dice, 4, &mut task, "limits", |dice| limits(scale, dice));
    task
}

/// Keys that all runs share, so that they compete.
fn limits(scale: u64, dice: &mut Dice) -> Value {
    let rate = |most: u64| format!("{}/10s", scale * most);
    match dice.below(3) {
        0 => json!({"db": scale * (1 + dice.below(2))}),
        1 => json!({"api": rate(1 + dice.below(3))}),
        _ => json!({"db": scale * (1 + dice.below(3)), "api": rate(2 + dice.below(3))}),
    }
}

/// A placed task or branch with `for_each`.
fn for_each(dice: &mut Dice) -> Value {
    let items: Vec<u64> = (0..dice.below(5)).collect();
    let mut each = json!({"items": items});
    sometimes(dice, 2, &mut each, "max_parallel", |dice| json!(1 + dice.below(2)));
    each
}

fn target(agents: usize, dice: &mut Dice) -> Value {
    match dice.below(4) {
        0 => json!(format!("node:n{}", dice.below(agents as u64))),
        1 => json!("group:even"),
        _ => json!("all"),
    }
}

fn placement(agents: usize, dice: &mut Dice) -> Value {
    let mut placement = json!({});
    sometimes(dice, 2, &mut placement, "max_per_node", |dice| json!(1 + dice.below(2)));
    if chance(dice, 6) && agents > 1 {
        placement["forbid"] = json!([format!("n{}", dice.below(agents as u64))]);
    }
    placement
}

fn rollout(dice: &mut Dice) -> Value {
    let batch = match dice.below(3) {
        0 => json!(1 + dice.below(2)),
        1 => json!("50%"),
        _ => json!([1, "100%"]),
    };
    let mut rollout = json!({"batch": batch, "max_failures": dice.below(3)});
    sometimes(dice, 2, &mut rollout, "pause", |dice| json!(format!("{}s", 1 + dice.below(5))));
    rollout
}

/// Returns a job for all nodes of a cluster.
pub(crate) fn small_job(cluster: &str, dice: &mut Dice) -> Value {
    let tasks: Vec<Value> = (0..1 + dice.below(3)).map(|index| task(&format!("t{index}"), 1, dice)).collect();
    json!({"cluster": cluster, "target": "all", "strategy": "continue", "tasks": tasks})
}

/// Returns a standing task by this name.
pub(crate) fn standing_task(name: &str, dice: &mut Dice) -> Value {
    let mut task = match dice.below(3) {
        0 => json!({"backend": "test", "action": "noop"}),
        1 => json!({"backend": "test", "action": "echo", "params": {"message": "hello"}}),
        // Not idempotent.
        _ => json!({"backend": "test", "action": "flaky", "params": {"succeed_on": 1}}),
    };
    task["name"] = json!(name);
    sometimes(dice, 3, &mut task, "blocking", |_| json!(true));
    sometimes(dice, 3, &mut task, "timeout", |dice| json!(format!("{}s", 10 + dice.below(20))));
    sometimes(dice, 4, &mut task, "selector", |dice| json!(pick(dice, &["group:even", "group:odd"])));
    task
}

/// Returns a job with schedules that fire every few seconds. Its run is short and placed, so that it can always be created,
/// or has a target that no node ever has.
pub(crate) fn stored_job(name: &str, dice: &mut Dice) -> Value {
    let schedules: Vec<Value> = (0..1 + dice.below(2)).map(|_| schedule(dice)).collect();
    let task = json!({"backend": "test", "action": "noop", "name": "t0", "timeout": "20s"});
    let mut job = json!({"name": name, "schedule": schedules, "tasks": [task]});
    sometimes(dice, 8, &mut job, "target", |_| json!("group:nobody"));
    if chance(dice, 2) {
        life(&mut job, dice);
    }
    job
}

/// Adds constraints. What waits because of them has a deadline, so that it ends before the seed does.
fn life(job: &mut Value, dice: &mut Dice) {
    let mut constraints = json!({});
    if chance(dice, 2) {
        job["overlap"] = json!(pick(dice, &["allow", "skip", "queue", "queue_latest", "replace"]));
    } else {
        constraints["max_concurrent_runs"] = json!(1 + dice.below(2));
        job["on_violation"] = match dice.below(4) {
            0 => json!({"action": "skip"}),
            1 => json!({"action": "wait"}),
            2 => json!({"action": "kill_old"}),
            _ => json!({"action": "retry_later", "delay": format!("{}s", 1 + dice.below(9))}),
        };
    }
    sometimes(dice, 4, &mut constraints, "require_previous_success", |_| json!(true));
    sometimes(dice, 3, &mut constraints, "pre_run_hook", hook);
    sometimes(dice, 4, &mut constraints, "post_run_hook", hook);
    sometimes(dice, 3, &mut constraints, "if_unknown", |dice| json!(pick(dice, &["skip", "allow"])));
    if constraints != json!({}) {
        job["constraints"] = constraints;
    }
    job["deadline"] = json!(format!("{}s", 20 + dice.below(60)));
}

fn hook(dice: &mut Dice) -> Value {
    let url = if chance(dice, 4) { HANGS } else { ANSWERS };
    json!({"url": url, "timeout": format!("{}s", 1 + dice.below(6))})
}

fn schedule(dice: &mut Dice) -> Value {
    let mut schedule = match dice.below(6) {
        0 => json!({"every": format!("{}s", 1 + dice.below(4))}),
        1 | 2 => json!({"every": format!("{}s", 3 + dice.below(28))}),
        3 => json!({"cron": format!("*/{} * * * * *", 2 + dice.below(29))}),
        4 => {
            json!({"cron": format!("{}-{}/{} * * * * *", dice.below(20), 30 + dice.below(30), 1 + dice.below(9))})
        }
        _ => json!({"cron": format!("{},{} * * * * *", dice.below(30), 30 + dice.below(30))}),
    };
    sometimes(dice, 3, &mut schedule, "timezone", |_| json!("Asia/Kolkata"));
    sometimes(dice, 3, &mut schedule, "jitter", |dice| json!(format!("{}s", 1 + dice.below(20))));
    // Every seed begins on a Sunday.
    let days = |dice: &mut Dice| json!({"weekdays": [pick(dice, &["mon", "sat", "mon", "sun"])], "dates": ["12-24"]});
    sometimes(dice, 4, &mut schedule, "exclude", days);
    let latest = |window: String| json!({"window": window, "policy": "latest"});
    match dice.below(6) {
        0 => schedule["catch_up"] = json!("none"),
        1 => schedule["catch_up"] = json!(format!("{}s", 1 + dice.below(120))),
        2 => schedule["catch_up"] = latest(format!("{}s", 1 + dice.below(120))),
        3 => schedule["catch_up"] = latest("2h".to_owned()),
        _ => {}
    }
    schedule
}

/// Returns a job for `agents` nodes, named from `n0`.
pub(crate) fn job(agents: usize, dice: &mut Dice) -> Value {
    let graph = chance(dice, 2);
    // A large cluster has large jobs. If their limits were as low as others', they would take hours.
    let (most, scale) = if agents > 10 { (20, 10) } else { (5, 1) };
    let count = 1 + usize::try_from(dice.below(most)).expect("it is small");
    let fleet = dice.below(3) > 0;
    let is_placed =
        |task: &Value| task.get("placement").is_some() || (!fleet && task.get("target").is_none());
    let mut tasks: Vec<Value> = Vec::new();
    for index in 0..count {
        let name = format!("t{index}");
        let mut entry = if chance(dice, 4) {
            let leaves: Vec<Value> =
                (0..1 + dice.below(3)).map(|leaf| task(&format!("t{index}l{leaf}"), scale, dice)).collect();
            let mut branch = json!({"name": name, "tasks": leaves});
            sometimes(dice, 3, &mut branch, "condition", |dice| json!(pick(dice, &CONDITIONS)));
            branch
        } else {
            let mut leaf = task(&name, scale, dice);
            // A target that differs from the others'.
            match dice.below(6) {
                0 => leaf["placement"] = placement(agents, dice),
                1 => leaf["target"] = target(agents, dice),
                _ => {}
            }
            leaf
        };
        if is_placed(&entry) && chance(dice, 2) {
            entry["for_each"] = for_each(dice);
            if entry.get("limits").is_some() {
                entry["limits"]["item-{{ item }}"] = json!(1);
            }
        }
        if graph {
            let after: Vec<String> =
                (0..index).filter(|_| chance(dice, 2)).map(|i| format!("t{i}")).collect();
            // A fleet task has outputs on each node, of which another task would have to choose one.
            let sets_outputs = |task: &Value| task.get("outputs").is_some() && is_placed(task);
            let named =
                |name: &&String| tasks.iter().any(|task| task["name"] == json!(name) && sets_outputs(task));
            if let Some(before) = after.iter().find(named)
                && entry["action"] == "echo"
            {
                entry["params"]["message"] = json!(format!("after {{{{ steps.{before}.outputs.v }}}}"));
            }
            entry["depends_on"] = json!(after);
        }
        tasks.push(entry);
    }
    let places = |place: &str| tasks.iter().any(|task| task.get(place).is_some());
    let in_waves = fleet && !graph && !places("target") && !places("placement") && chance(dice, 2);
    let exclusive = fleet && !places("placement") && chance(dice, 4);
    let mut job = json!({"tasks": tasks});
    if in_waves
        && job["tasks"].as_array().is_some_and(|tasks| tasks.iter().any(|t| t["condition"] != "on_failure"))
    {
        job["rollout"] = rollout(dice);
    } else {
        job["strategy"] = json!(pick(dice, &["fail-fast", "continue", "continue"]));
    }
    if exclusive {
        job["exclusive"] = json!(true);
    }
    sometimes(dice, 4, &mut job, "priority", |dice| json!(dice.below(3)));
    if fleet {
        job["target"] = target(agents, dice);
    } else if chance(dice, 2) {
        job["placement"] = placement(agents, dice);
    }
    sometimes(dice, 4, &mut job, "max_parallel", |dice| json!(scale * (1 + dice.below(4))));
    sometimes(dice, 6, &mut job, "limits", |dice| limits(scale, dice));
    sometimes(dice, 4, &mut job, "placement_timeout", |dice| json!(format!("{}s", 10 + dice.below(60))));
    sometimes(dice, 5, &mut job, "timeout", |dice| json!(format!("{}s", 10 + dice.below(80))));
    sometimes(dice, 4, &mut job, "cleanup_timeout", |dice| json!(format!("{}s", 1 + dice.below(60))));
    job
}
