//! Draws definitions of all shapes: lists with barriers, pipelines, waves, graphs, placed tasks; retries, failures, at most
//! once and at least once.

use std::path::Path;

use downbeat_core::Dice;
use serde_json::{Value, json};

use crate::book::task;
use crate::cluster::NODES;

/// A definition by this name; every task of it writes into the book.
pub(crate) fn draw(book: &Path, name: &str, dice: &mut Dice) -> Value {
    let mut definition = match dice.below(6) {
        0 => list(book, dice),
        1 => pipeline(book, dice),
        2 => graph(book, dice),
        3 => placed(book, dice),
        4 => rollout(book, dice),
        _ => mixed(book, dice),
    };
    definition["name"] = json!(name);
    let placed = |task: &Value| !task["placement"].is_null();
    let fleet =
        !definition["target"].is_null() && !definition["tasks"].as_array().unwrap().iter().any(placed);
    if fleet && dice.below(5) == 0 {
        definition["exclusive"] = json!(true);
    }
    definition
}

fn pick<'a, T: ?Sized>(choices: &[&'a T], dice: &mut Dice) -> &'a T {
    choices[usize::try_from(dice.below(choices.len() as u64)).unwrap()]
}

fn target(dice: &mut Dice) -> String {
    pick(&["all", "group:web", "node:web-1 or node:web-3", "not node:web-2"], dice).to_owned()
}

fn strategy(dice: &mut Dice) -> &'static str {
    pick(&["fail-fast", "continue"], dice)
}

/// A task that mostly succeeds, sometimes after a retry, and is mostly sent again when it was lost.
fn some(book: &Path, name: &str, dice: &mut Dice) -> Value {
    #[allow(clippy::cast_precision_loss, reason = "hundredths of a second")]
    let seconds = match dice.below(6) {
        0 => 1.0 + dice.below(100) as f64 / 100.0,
        _ => dice.below(25) as f64 / 100.0,
    };
    let (succeeds_on, retries) = match dice.below(24) {
        0..3 => (2, 3),
        3 => (9, 1),
        _ => (1, dice.below(2)),
    };
    let mut task = task(book, name, seconds, succeeds_on);
    if retries > 0 {
        task["retry"] = json!({"max": retries, "delay": "50ms"});
    }
    match dice.below(4) {
        0 => {}
        1 => task["delivery"] = json!("at_most_once"),
        _ => task["delivery"] = json!("at_least_once"),
    }
    task
}

fn list(book: &Path, dice: &mut Dice) -> Value {
    let mut tasks: Vec<Value> =
        (0..2 + dice.below(3)).map(|index| some(book, &format!("t{index}"), dice)).collect();
    let mut undo = task(book, "undo", 0.0, 1);
    undo["condition"] = json!("on_failure");
    tasks.push(undo);
    json!({"target": target(dice), "strategy": strategy(dice), "tasks": tasks})
}

fn rollout(book: &Path, dice: &mut Dice) -> Value {
    let mut undo = task(book, "undo", 0.0, 1);
    undo["condition"] = json!("on_failure");
    let rollout = json!({"batch": 1 + dice.below(2), "pause": "100ms", "max_failures": dice.below(3)});
    json!({"target": target(dice), "rollout": rollout, "tasks": [
        some(book, "first", dice),
        {"name": "walk", "tasks": [some(book, "leaf0", dice), some(book, "leaf1", dice)]},
        undo,
    ]})
}

fn pipeline(book: &Path, dice: &mut Dice) -> Value {
    let branch: Vec<Value> = (0..3).map(|index| some(book, &format!("leaf{index}"), dice)).collect();
    json!({"target": target(dice), "strategy": strategy(dice), "tasks": [
        some(book, "before", dice),
        {"name": "walk", "tasks": branch},
        some(book, "after", dice),
    ]})
}

fn after(mut task: Value, names: &[&str]) -> Value {
    task["depends_on"] = json!(names);
    task
}

fn graph(book: &Path, dice: &mut Dice) -> Value {
    let wide = dice.below(3) + 2;
    let middle: Vec<String> = (0..wide).map(|index| format!("m{index}")).collect();
    let mut tasks = vec![some(book, "root", dice)];
    tasks.extend(middle.iter().map(|name| after(some(book, name, dice), &["root"])));
    let names: Vec<&str> = middle.iter().map(String::as_str).collect();
    tasks.push(after(some(book, "join", dice), &names));
    json!({"strategy": strategy(dice), "tasks": tasks})
}

fn placed(book: &Path, dice: &mut Dice) -> Value {
    let tasks: Vec<Value> = (0..3).map(|index| some(book, &format!("p{index}"), dice)).collect();
    let mut definition = json!({"strategy": strategy(dice), "tasks": tasks});
    if dice.below(2) == 0 {
        definition["placement"] = json!({"forbid": [pick(&NODES, dice)], "max_per_node": 1});
    }
    definition
}

/// A graph of fleet steps and placed ones.
fn mixed(book: &Path, dice: &mut Dice) -> Value {
    let mut fleet = some(book, "fleet", dice);
    fleet["target"] = json!("all");
    let mut last = some(book, "last", dice);
    last["target"] = json!("group:web");
    let tasks = [
        some(book, "one", dice),
        after(fleet, &["one"]),
        after(some(book, "side", dice), &["one"]),
        after(last, &["fleet", "side"]),
    ];
    json!({"strategy": strategy(dice), "tasks": tasks})
}
