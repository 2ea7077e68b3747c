//! Owns the measured graphs, as the JSON that a client submits.

use serde_json::{Value, json};

/// A script that a user might write to measure the cost of a step: ten Fibonacci numbers.
const FIBONACCI: &str = "a=0 b=1; for _ in {1..10}; do c=$((a+b)) a=$b b=$c; done; echo $a";
/// How many tasks of the previous layer each task waits for.
const EDGES: usize = 3;

/// The action of each task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Nothing: only Downbeat's own cost remains.
    Noop,
    /// The smallest possible process.
    True,
    /// A shell that computes a little.
    Fibonacci,
}

impl Work {
    pub(super) fn name(self) -> &'static str {
        match self {
            Work::Noop => "test noop",
            Work::True => "exec run /bin/true",
            Work::Fibonacci => "exec shell fibonacci",
        }
    }

    fn task(self, name: &str, after: &[String]) -> Value {
        let mut task = match self {
            Work::Noop => json!({"name": name, "backend": "test", "action": "noop"}),
            // One word: a job file with 10,000 of them is just below the size limit.
            Work::True => {
                json!({"name": name, "backend": "exec", "action": "run", "params": {"command": "/bin/true"}})
            }
            Work::Fibonacci => {
                json!({"name": name, "backend": "exec", "action": "shell", "params": {"command": FIBONACCI}})
            }
        };
        if !after.is_empty() {
            task["depends_on"] = json!(after);
        }
        task
    }
}

/// One task after the other.
pub(super) fn chain(work: Work, steps: usize) -> Value {
    let name = |step: usize| format!("s{step}");
    let tasks = (0..steps).map(|step| {
        let after: Vec<String> = step.checked_sub(1).map(name).into_iter().collect();
        work.task(&name(step), &after)
    });
    graph("chain", &tasks.collect::<Vec<_>>())
}

/// All tasks at once, after the first.
pub(super) fn wide(work: Work, steps: usize) -> Value {
    let root = "r".to_owned();
    let mut tasks = vec![work.task(&root, &[])];
    tasks.extend((1..steps).map(|step| work.task(&format!("t{step}"), std::slice::from_ref(&root))));
    graph("wide", &tasks)
}

/// Layers, as many as each is wide. Every task waits for a few tasks of the previous layer.
pub(super) fn layers(work: Work, steps: usize) -> Value {
    let width = steps.isqrt().max(1);
    let name = |step: usize| format!("s{step}");
    let tasks = (0..steps).map(|step| {
        let (layer, place) = (step / width, step % width);
        let after: Vec<String> = match layer.checked_sub(1) {
            Some(before) => {
                (0..EDGES.min(width)).map(|edge| name(before * width + (place + edge) % width)).collect()
            }
            None => Vec::new(),
        };
        work.task(&name(step), &after)
    });
    graph("layers", &tasks.collect::<Vec<_>>())
}

fn graph(name: &str, tasks: &[Value]) -> Value {
    json!({"name": name, "tasks": tasks})
}

#[cfg(test)]
mod tests {
    use downbeat_core::backend::Catalogue;
    use downbeat_core::limits;
    use downbeat_core::spec;

    use super::*;

    #[test]
    fn the_largest_graph_of_each_shape_is_one_that_a_server_takes() {
        for (make, work) in [
            (chain as fn(Work, usize) -> Value, Work::Noop),
            (wide, Work::Noop),
            (wide, Work::True),
            (layers, Work::Noop),
        ] {
            let definition = make(work, limits::STEPS_PER_RUN);
            assert!(
                definition.to_string().len() <= limits::JOB_FILE_BYTES,
                "{} {work:?}",
                definition["name"]
            );
            let read = spec::from_json(&definition, &Catalogue::builtin()).unwrap();
            assert_eq!(read.tasks.len(), limits::STEPS_PER_RUN);
        }
    }

    #[test]
    fn a_task_of_a_layer_waits_for_some_of_the_layer_before() {
        let tasks = layers(Work::Noop, 16)["tasks"].clone();
        assert_eq!(tasks[3].get("depends_on"), None);
        assert_eq!(tasks[4]["depends_on"], json!(["s0", "s1", "s2"]));
        assert_eq!(tasks[15]["depends_on"], json!(["s11", "s8", "s9"]));
    }
}
