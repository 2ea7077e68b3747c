//! Random jobs and random fates. Whatever happens the run ends, its rules hold, and a restart at any moment changes
//! nothing: a slow, obvious interpreter of the tables says what must come out.

use std::collections::HashMap;

use downbeat_core::execution::{Status, Verdict};
use downbeat_core::run::RunState;
use downbeat_core::{Change, Dice};
use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::world::{World, ended};

const CONDITIONS: [Option<&str>; 4] = [None, Some("always"), Some("on_success"), Some("on_failure")];

fn task(index: usize, dice: &mut Dice) -> Value {
    let mut task = json!({"name": format!("t{index}"), "backend": "test", "action": "noop"});
    if let Some(condition) = CONDITIONS[usize::try_from(dice.below(4)).unwrap()] {
        task["condition"] = json!(condition);
    }
    if dice.below(3) == 0 {
        task["retry"] = json!({"max": 1 + dice.below(2)});
    }
    task
}

/// A random job: list or graph, fleet or placed, with branches.
fn job(dice: &mut Dice, strategy: &str) -> Value {
    let count = 1 + usize::try_from(dice.below(6)).unwrap();
    let graph = dice.below(2) == 0;
    let mut tasks: Vec<Value> = Vec::new();
    for index in 0..count {
        let mut entry = task(index, dice);
        if dice.below(3) == 0 {
            let leaves: Vec<Value> = (0..1 + dice.below(3))
                .map(|leaf| task(100 * (index + 1) + usize::try_from(leaf).unwrap(), dice))
                .collect();
            entry = json!({"name": format!("t{index}"), "tasks": leaves});
            if let Some(condition) = CONDITIONS[usize::try_from(dice.below(4)).unwrap()] {
                entry["condition"] = json!(condition);
            }
        }
        if graph {
            let after: Vec<String> =
                (0..index).filter(|_| dice.below(2) == 0).map(|i| format!("t{i}")).collect();
            entry["depends_on"] = json!(after);
        }
        tasks.push(entry);
    }
    let mut job = json!({"strategy": strategy, "tasks": tasks});
    if dice.below(3) > 0 {
        job["target"] = json!("all");
    }
    job
}

/// Whether an instance succeeds in the end, and on which attempt: fixed by the seed, so that order cannot matter.
fn fate(seed: u64, step: u32, node: &str) -> (bool, u32) {
    let mut hash = seed ^ u64::from(step).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for byte in node.bytes() {
        hash = hash.rotate_left(7) ^ u64::from(byte).wrapping_mul(0x100_0000_01b3);
    }
    let mut dice = Dice::new(hash);
    (dice.below(4) > 0, 1 + u32::try_from(dice.below(2)).unwrap())
}

/// Plays a run with nodes that answer in random order, and restarts of the server in between.
fn drive(world: &mut World, seed: u64, restarts: bool, mischief: bool) {
    let mut dice = Dice::new(seed ^ 0xdead_beef);
    world.begin();
    for _ in 0..20_000 {
        if world.record.state.is_terminal() {
            return;
        }
        world.check();
        world.now += SignedDuration::from_secs(31);
        if restarts && dice.below(8) == 0 {
            world.restart();
            continue;
        }
        if mischief && dice.below(60) == 0 && world.record.cancel_requested_at.is_none() {
            let (run, at) = (world.record.id.clone(), world.now);
            world.happens(&Change::RunCancelRequested { run, by: "test".to_owned(), at });
            continue;
        }
        let open: Vec<_> = world.executions.values().filter(|e| !ended(&e.state)).cloned().collect();
        let chosen = &open[usize::try_from(dice.below(open.len() as u64)).unwrap()];
        if chosen.state.status() == Status::Pending {
            world.lease(chosen);
            continue;
        }
        let stop = matches!(chosen.state, downbeat_core::execution::State::Leased { stop: true, .. });
        if mischief && dice.below(6) == 0 {
            world.lose(chosen);
        } else if stop {
            world.end(chosen, Verdict::Cancelled);
        } else {
            let place = world.place(chosen);
            let (well, attempt) = fate(seed, chosen.step, &place);
            let verdict =
                if well && chosen.attempt >= attempt { Verdict::Succeeded } else { Verdict::Failed };
            world.end(chosen, verdict);
        }
    }
    panic!("the run did not end: {:?}", world.results());
}

/// The tables of the model for `continue`, read literally: what each instance must come to.
fn interpret(definition: &Value, nodes: &[&str], seed: u64) -> (Vec<String>, bool) {
    let fleet = definition.get("target").is_some();
    let places: Vec<&str> = if fleet { nodes.to_vec() } else { vec!["-"] };
    let entries = definition["tasks"].as_array().unwrap();
    let graph = entries.iter().any(|e| e["depends_on"].as_array().is_some_and(|after| !after.is_empty()));
    let mut results = Vec::new();
    let mut outcome: HashMap<String, &str> = HashMap::new();
    let mut left: Vec<&str> = Vec::new();
    let mut any_failed = false;
    let mut step = 0;
    for entry in entries {
        let leaves = entry["tasks"].as_array().cloned().unwrap_or_else(|| vec![entry.clone()]);
        let branch = entry.get("tasks").is_some();
        let condition = entry["condition"].as_str();
        let after: Vec<&str> = entry["depends_on"]
            .as_array()
            .map(|a| a.iter().map(|n| n.as_str().unwrap()).collect())
            .unwrap_or_default();
        let begins = if graph {
            match condition {
                Some("always") => true,
                Some("on_failure") => after.iter().any(|name| outcome[*name] == "failed"),
                _ => after.iter().all(|name| outcome[*name] == "succeeded"),
            }
        } else {
            match condition {
                Some("on_success") => !any_failed,
                Some("on_failure") => any_failed,
                _ => true,
            }
        };
        let (mut ran, mut failed) = (false, false);
        let left_before = left.clone();
        for place in &places {
            let joins = begins && (graph || condition == Some("on_failure") || !left_before.contains(place));
            let mut walk_failed = false;
            for (leaf, task) in (step..).zip(&leaves) {
                let runs = joins
                    && match task["condition"].as_str().filter(|_| branch) {
                        Some("on_failure") => walk_failed,
                        _ => !walk_failed,
                    };
                let (well, attempt) = fate(seed, leaf, place);
                let attempts = 1 + task["retry"]["max"].as_u64().unwrap_or(0);
                let well = well && u64::from(attempt) <= attempts;
                let status = match (runs, well) {
                    (false, _) => "skipped",
                    (true, true) => "succeeded",
                    (true, false) => "failed",
                };
                ran |= runs;
                if status == "failed" {
                    walk_failed = true;
                    failed = true;
                    // A placed step has no node of its own that could leave.
                    if fleet {
                        left.push(place);
                    }
                }
                results.push((leaf, (*place).to_owned(), status));
            }
        }
        any_failed |= failed;
        let end = if failed {
            "failed"
        } else if ran {
            "succeeded"
        } else {
            "skipped"
        };
        outcome.insert(entry["name"].as_str().unwrap().to_owned(), end);
        step += u32::try_from(leaves.len()).unwrap();
    }
    results.sort();
    (results.into_iter().map(|(step, node, status)| format!("{step}@{node} {status}")).collect(), any_failed)
}

#[test]
fn continue_comes_to_what_the_tables_say_whatever_the_order_and_the_restarts() {
    for seed in 0..4_000 {
        let mut dice = Dice::new(seed);
        let definition = job(&mut dice, "continue");
        let mut world = World::new(definition.clone(), 3, seed);
        drive(&mut world, seed, seed % 2 == 0, false);
        world.check();
        let (expected, failed) = interpret(&definition, &["n0", "n1", "n2"], seed);
        assert_eq!(world.results(), expected, "seed {seed}: {definition:#}");
        let state = if failed { RunState::Failed } else { RunState::Completed };
        assert_eq!(world.record.state, state, "seed {seed}");
        assert_eq!(world.record.end.as_ref().unwrap().partial, failed, "seed {seed}");
    }
}

#[test]
fn every_run_ends_and_its_rules_hold_under_losses_cancels_and_restarts() {
    for seed in 0..4_000 {
        let mut dice = Dice::new(seed);
        let strategy = if dice.below(2) == 0 { "fail-fast" } else { "continue" };
        let definition = job(&mut dice, strategy);
        let mut world = World::new(definition, 3, seed);
        drive(&mut world, seed, true, true);
        world.check();
    }
}
