//! The flows of fleet jobs, checked by the nodes' own log: every step writes when it begins and when it ends into one
//! file, in the order in which it happens.

use std::fs;

use downbeat_testbed::Dev;
use serde_json::{Value, json};

/// Returns a step that logs its begin, does `work`, and logs its end. `$1` is the node's name.
fn step(name: &str, work: &str) -> Value {
    let script =
        format!("echo begin {name} $1 >>log; {work}; status=$?; echo end {name} $1 >>log; exit $status");
    json!({
        "name": name,
        "backend": "exec",
        "action": "run",
        "params": {"command": ["sh", "-c", script, "sh", "{{ node.hostname }}"], "working_dir": "{{ params.dir }}"},
    })
}

/// Waits for a file that another node makes, so that the order is forced and not a matter of luck.
fn wait_for(file: &str) -> String {
    format!("while ! test -e {file}; do sleep 0.01; done")
}

struct Flow {
    dev: Dev,
    run: Value,
}

impl Flow {
    fn carry_out(nodes: usize, mut job: Value, code: i32) -> Self {
        let dev = Dev::start_with(&["--nodes", &nodes.to_string()]);
        job["params"] = json!({"dir": dev.dir.path()});
        dev.write("job.yaml", &job.to_string());
        let done = dev.run(&["job", "run", "-f", "job.yaml", "--wait", "-o", "json"]);
        assert_eq!(done.code, code, "{done:?}");
        let run: Value = serde_json::from_str(&done.stdout).unwrap();
        let run = dev.whole_run(run["id"].as_str().unwrap());
        Self { dev, run }
    }

    /// The lines that the nodes wrote.
    fn log(&self) -> Vec<String> {
        let log = fs::read_to_string(self.dev.dir.path().join("log")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }

    fn place(&self, line: &str) -> usize {
        let log = self.log();
        log.iter().position(|known| known == line).unwrap_or_else(|| panic!("no `{line}` in {log:#?}"))
    }

    fn status(&self, step: usize, node: &str) -> &str {
        self.run["results"][step.to_string()][node]["status"]
            .as_str()
            .unwrap_or_else(|| panic!("{}", self.run))
    }
}

#[test]
fn barrier_no_node_begins_the_second_step_before_all_ended_the_first() {
    // The last node is slow: the others have long ended and must wait.
    let slow = "test $1 != node-3 || sleep 0.5";
    let job = json!({"target": "all", "tasks": [step("install", slow), step("restart", "true")]});
    let flow = Flow::carry_out(3, job, 0);
    let log = flow.log();
    let installs = log.iter().rposition(|line| line.starts_with("end install")).unwrap();
    let restarts = log.iter().position(|line| line.starts_with("begin restart")).unwrap();
    assert!(installs < restarts, "{log:#?}");
    assert_eq!(log.len(), 12, "{log:#?}");
    for node in ["node-1", "node-2", "node-3"] {
        assert_eq!((flow.status(0, node), flow.status(1, node)), ("succeeded", "succeeded"));
    }
}

#[test]
fn pipeline_a_fast_node_runs_ahead_and_the_barrier_after_it_waits_for_all() {
    // node-2 ends its first leaf only once node-1 has done its third: without running ahead this would never end.
    let slow = format!("test $1 != node-2 || {{ {}; }}", wait_for("ahead"));
    let ahead = "test $1 != node-1 || touch ahead";
    let pipeline = json!({"tasks": [step("update", &slow), step("install", "true"), step("enable", ahead)]});
    let job = json!({"target": "all", "timeout": "50s", "tasks": [pipeline, step("start", "true")]});
    let flow = Flow::carry_out(2, job, 0);
    // It writes `ahead` while it runs: its own last line may come a moment later.
    assert!(flow.place("begin enable node-1") < flow.place("end update node-2"));
    for node in ["node-1", "node-2"] {
        let order: Vec<usize> = ["update", "install", "enable", "start"]
            .map(|name| flow.place(&format!("begin {name} {node}")))
            .into();
        assert!(order.is_sorted(), "{:#?}", flow.log());
        // The barrier.
        assert!(flow.place("end enable node-2") < flow.place(&format!("begin start {node}")));
    }
    assert_eq!(flow.log().len(), 16);
}

#[test]
fn fail_fast_ends_what_runs_skips_the_rest_and_cleans_up_everywhere() {
    let install = step("install", "test $1 != node-2");
    let cleaning = json!({"condition": "on_failure", "tasks": [step("remove", "true")]});
    let job = json!({"target": "all", "tasks": [install, step("start", "true"), cleaning]});
    let flow = Flow::carry_out(3, job, 1);
    let log = flow.log();
    assert!(!log.iter().any(|line| line.contains("start")), "{log:#?}");
    assert_eq!(log.iter().filter(|line| line.starts_with("end remove")).count(), 3, "{log:#?}");
    let installs = log.iter().rposition(|line| line.starts_with("end install")).unwrap();
    let removes = log.iter().position(|line| line.starts_with("begin remove")).unwrap();
    assert!(installs < removes, "{log:#?}");
    assert_eq!(flow.run["status"], "failed");
    assert_eq!(flow.status(1, "node-1"), "skipped");
}

#[test]
fn continue_goes_on_without_the_node_that_failed() {
    let job = json!({
        "target": "all", "strategy": "continue",
        "tasks": [step("install", "test $1 != node-2"), step("start", "true")],
    });
    let flow = Flow::carry_out(3, job, 1);
    let mut started: Vec<String> =
        flow.log().into_iter().filter(|line| line.starts_with("end start")).collect();
    started.sort();
    assert_eq!(started, ["end start node-1", "end start node-3"]);
    assert_eq!((&flow.run["status"], &flow.run["partial"]), (&json!("failed"), &json!(true)));
}

#[test]
fn retries_concern_only_the_nodes_that_failed() {
    // node-2 fails until it has failed once.
    let mut install = step("install", "test $1 != node-2 || test -e failed || { touch failed; false; }");
    install["retry"] = json!({"max": 3, "delay": "10ms"});
    let job = json!({"target": "all", "tasks": [install]});
    let flow = Flow::carry_out(3, job, 0);
    let attempts = |node: &str| flow.run["results"]["0"][node]["attempts"].as_u64().unwrap();
    assert_eq!((attempts("node-1"), attempts("node-3")), (1, 1));
    assert_eq!(attempts("node-2"), 2, "{:#?}", flow.log());
}

#[test]
fn a_roll_out_walks_the_whole_list_wave_by_wave_and_stops_when_its_budget_is_spent() {
    let job = json!({
        "target": "all", "rollout": {"batch": [1, 2], "max_failures": 0},
        "tasks": [step("install", "test $1 != node-3"), step("start", "true")],
    });
    let flow = Flow::carry_out(5, job, 1);
    // The first wave ended before the second began.
    assert!(flow.place("end start node-1") < flow.place("begin install node-2"));
    assert!(flow.place("end start node-1") < flow.place("begin install node-3"));
    let log = flow.log();
    assert!(!log.iter().any(|line| line.contains("node-4") || line.contains("node-5")), "{log:#?}");
    let untouched = &flow.run["rollout"]["untouched"];
    assert_eq!(*untouched, json!({"count": 2, "nodes": ["node-4", "node-5"]}), "{}", flow.run);
}

#[test]
fn what_a_step_says_reaches_the_same_nodes_next_step_and_the_only_one_reaches_all() {
    let mut build = step("build", "echo version=$1-1.2 >>\"$DOWNBEAT_OUTPUT\"");
    build["outputs"] = json!(["version"]);
    let mut elect = step("elect", "echo '{\"leader\": \"'$1'\", \"noise\": [1]}'");
    elect["target"] = json!("node:node-2");
    elect["outputs"] = json!(["leader"]);
    let mut show = step("show", "echo $1 $2 $3 >>seen");
    let command = show["params"]["command"].as_array_mut().unwrap();
    command.push(json!("{{ steps.build.outputs.version }}"));
    command.push(json!("led-by-{{ steps.elect.outputs.leader }}"));
    let job = json!({"target": "all", "tasks": [build, elect, show]});
    let flow = Flow::carry_out(3, job, 0);
    let mut seen: Vec<String> =
        fs::read_to_string(flow.dev.dir.path().join("seen")).unwrap().lines().map(str::to_owned).collect();
    seen.sort();
    let line = |node: &str| format!("{node} {node}-1.2 led-by-node-2");
    assert_eq!(seen, [line("node-1"), line("node-2"), line("node-3")]);
}

#[test]
fn a_roll_out_within_its_budget_goes_on_without_the_node_that_failed() {
    let mut undo = step("undo", "true");
    undo["condition"] = json!("on_failure");
    let job = json!({
        "target": "all", "rollout": {"batch": 1, "max_failures": "34%"},
        "tasks": [step("install", "test $1 != node-1"), step("start", "true"), undo],
    });
    let flow = Flow::carry_out(3, job, 0);
    assert_eq!(
        (&flow.run["status"], &flow.run["partial"]),
        (&json!("completed"), &json!(true)),
        "{}",
        flow.run
    );
    let log = flow.log();
    let ended = |name: &str| -> Vec<&String> {
        log.iter().filter(|line| line.starts_with(&format!("end {name}"))).collect()
    };
    assert_eq!(ended("start"), ["end start node-2", "end start node-3"]);
    // The on-failure step runs on the failed node only, after the last wave.
    assert_eq!(ended("undo"), ["end undo node-1"]);
    assert!(flow.place("end start node-3") < flow.place("begin undo node-1"));
    assert_eq!(flow.run["untouched"], Value::Null);
}

#[test]
fn a_roll_out_that_is_paused_between_waves_begins_no_wave_until_it_is_resumed() {
    let dev = Dev::start_with(&["--nodes", "2"]);
    // The first node ends only once the run is paused.
    let first = format!("test $1 != node-1 || {{ {}; }}", wait_for("paused"));
    let job = json!({
        "target": "all", "rollout": {"batch": 1}, "params": {"dir": dev.dir.path()},
        "tasks": [step("first", &first), step("second", "true")],
    });
    dev.write("job.yaml", &job.to_string());
    let id = dev.submit(&["-f", "job.yaml"]);
    dev.run(&["run", "pause", &id]).ok();
    dev.write("paused", "");
    let shown = || dev.whole_run(&id);
    downbeat_testbed::until("the first step to end", || {
        (shown()["results"]["0"]["node-1"]["status"] == "succeeded").then_some(())
    });
    let run = shown();
    assert_eq!((&run["status"], &run["paused"]), (&json!("running"), &json!(true)));
    assert_eq!(run["results"]["0"].get("node-2"), None, "{run}");
    dev.run(&["run", "resume", &id]).ok();
    assert_eq!(dev.run(&["run", "watch", &id]).code, 0);
    let log = fs::read_to_string(dev.dir.path().join("log")).unwrap();
    assert_eq!(log.lines().filter(|line| line.starts_with("end second")).count(), 2, "{log}");
}
