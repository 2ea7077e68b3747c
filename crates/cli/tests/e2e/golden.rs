//! Compares printed pages with golden files. Ids, times and durations are masked.

use downbeat_testbed::{Dev, example, until};

/// Backends that are offered where their program is found differ from host to host.
fn without_tools_of_the_host(text: &str) -> String {
    let tools = ["apt", "systemd", "rke2"];
    let own_line = |line: &&str| !tools.contains(&line.split(' ').next().unwrap_or_default());
    let text = text.split('\n').filter(own_line).collect::<Vec<_>>().join("\n");
    tools.iter().fold(text, |text, tool| text.replace(&format!(",{tool}"), ""))
}

fn masked(dev: &Dev, text: &str, check: impl FnOnce(String)) {
    let text = text.replace(&dev.url(), "URL").replace(dev.http(), "HTTP");
    let text = text.replace(dev.grpc(), "GRPC");
    let text = without_tools_of_the_host(&text);
    insta::with_settings!({filters => vec![
        (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "ID"),
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "TIME"),
        (r"\b\d\d:\d\d:\d\dZ", "TIME"),
        (r"<?\b\d+(\.\d+)?(us|ms|s|m|h)\b", "SPAN"),
        (r"capabilities .*", "capabilities  FOUND"),
        (r"\b\d+ events", "N events"),
        (r"\b\d+(\.\d+)? ([KMG]iB|B)\b", "SIZE"),
        // A slow test is measured.
        (r"grows .*", "grows  GROWTH"),
        // Masked texts have other widths than what they stand for.
        (r"  +", "  "),
    ]}, { check(text) });
}

macro_rules! golden {
    ($dev:expr, $name:literal, $args:expr) => {
        masked(&$dev, &$dev.run($args).stdout, |text| insta::assert_snapshot!($name, text));
    };
}

#[test]
fn a_tour() {
    let dev = Dev::start();
    golden!(dev, "job_plan", &["job", "plan", "-f", &example("graph.yaml")]);
    golden!(dev, "job_run_watch", &["job", "run", "-f", &example("hello.yaml"), "--watch"]);
    golden!(dev, "run_show", &["run", "show", "last"]);
    // Lines are in the order of time, and the nodes write at the same time.
    let logs = dev.run(&["run", "logs", "last", "--step", "2"]).ok();
    let mut lines: Vec<&str> = logs.lines().collect();
    lines.sort_unstable();
    masked(&dev, &lines.join("\n"), |text| insta::assert_snapshot!("run_logs", text));
    golden!(
        dev,
        "job_run_wait_failed",
        &["job", "run", "-f", &example("on_failure.yaml"), "--target", "node:node-1", "--wait"]
    );
    golden!(dev, "run_list", &["run", "list"]);
    golden!(dev, "node_list", &["node", "list"]);
    golden!(dev, "node_show", &["node", "show", "node-1"]);
    golden!(dev, "node_work", &["node", "work", "node-1"]);
    golden!(dev, "status", &["status"]);
    let volume = dev.run(&["status", "-o", "json"]).json()["volume"].clone();
    let numbers = ["events", "output_bytes", "disk_bytes"].map(|name| volume[name].as_u64() > Some(0));
    assert_eq!(numbers, [true; 3], "{volume}");
    golden!(dev, "server_list", &["server-list"]);
    golden!(dev, "node_delete", &["node", "delete", "node-3", "--force"]);
}

#[test]
fn a_roll_out() {
    let dev = Dev::start_with(&["--nodes", "7"]);
    dev.write(
        "rollout.yaml",
        "name: deploy\ntarget: all\nparams: {bad: node-3}\nrollout: {batch: [1, 2], pause: 100ms, max_failures: 0}\n\
         timeout: 1h\ntasks:\n  - tasks:\n      - {name: fetch, backend: test, action: noop, max_retries: 2}\n      \
         - name: start\n        backend: exec\n        action: run\n        params: {command: [test, \
         '{{ node.hostname }}', '!=', '{{ params.bad }}']}\n  - {name: undo, backend: test, action: noop, condition: on_failure}\n",
    );
    golden!(dev, "job_plan_rollout", &["job", "plan", "-f", "rollout.yaml"]);
    golden!(dev, "job_run_watch_rollout", &["job", "run", "-f", "rollout.yaml", "--watch"]);
    golden!(dev, "run_show_rollout", &["run", "show", "last"]);
    golden!(dev, "run_retry", &["run", "retry", "last", "--failed-only", "--wait"]);
    golden!(dev, "run_list_retry", &["run", "list"]);
}

#[test]
fn a_placed_task_says_why_it_waits() {
    let dev = Dev::start();
    let file = dev.write(
        "gpu.yaml",
        "name: train\nplacement: {requires: {gpu: nvidia}}\ntasks: [{backend: test, action: noop}]\n",
    );
    let id = dev.submit(&["-f", file.to_str().unwrap()]);
    until("the reasons", || {
        let run = dev.run(&["run", "show", &id, "-o", "json"]).json();
        run["waiting"].as_array().is_some_and(|steps| !steps.is_empty()).then_some(())
    });
    golden!(dev, "run_show_waiting", &["run", "show", &id]);
    assert!(!dev.run(&["run", "show", &id]).stdout.contains('\u{1b}'), "no colours outside a terminal");
}
