//! The look of every page, held against golden files.

use downbeat_api::{
    EndRules, EventList, InstanceResult, List, Node, NodeSummary, NodeWork, Plan, Run, RunRow, Server,
    Status, Volume, WholeRun,
};
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;

const RUN: &str = "0198c0de-0000-7000-8000-000000000001";

fn now() -> Timestamp {
    "2025-06-01T10:05:00Z".parse().unwrap()
}

fn view<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn plain(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

fn id(number: u64) -> String {
    format!("0198c0de-0000-7000-8000-{number:012}")
}

fn progress(whole: &WholeRun, plan: &Plan) -> Run {
    whole.progress(plan, &EndRules::of(plan))
}

/// Returns the page of a run whose results were all read.
fn page(whole: &WholeRun, plan: &Plan, rows: Rows, width: Option<usize>) -> String {
    let whole = WholeRun { run: progress(whole, plan), results: whole.results.clone() };
    plain(&run_page(&whole, plan, rows, now(), width))
}

/// Returns a result; `key` is its node, or its item in brackets.
fn instance(plan: &Plan, step: u32, key: &str, mut result: Value) -> InstanceResult {
    let node = if key.starts_with(['-', '[']) { Value::Null } else { json!(key) };
    let of = json!({"step": step, "task": plan.steps[step as usize].name, "node": node, "item": null, "error": null});
    for (name, value) in of.as_object().unwrap() {
        result.as_object_mut().unwrap().entry(name).or_insert_with(|| value.clone());
    }
    view(result)
}

/// Returns a run with its results, which are by step and key.
fn whole(run: Value, plan: &Plan, results: &Value) -> WholeRun {
    let by_step = results.as_object().unwrap().iter();
    let results = by_step.flat_map(|(step, results)| {
        let step: u32 = step.parse().unwrap();
        results
            .as_object()
            .unwrap()
            .iter()
            .map(move |(key, result)| instance(plan, step, key, result.clone()))
    });
    WholeRun::new(view(run), results)
}

fn changed(view: &mut Value, changes: Value) {
    let Value::Object(changes) = changes else { panic!("changes are an object") };
    view.as_object_mut().unwrap().extend(changes);
}

fn summary(changes: Value) -> Value {
    let mut run = json!({
        "id": RUN, "job": "deploy-web", "cluster": id(9), "cluster_name": "default", "state": "running",
        "status": "running", "partial": false, "steps": 4, "nodes": 3, "by": "api",
        "created_at": "2025-06-01T10:04:50Z", "started_at": "2025-06-01T10:04:51Z", "finished_at": null,
        "duration": null, "cancel_requested_at": null, "error": null, "owner": id(8),
    });
    changed(&mut run, changes);
    run
}

fn result(status: &str, duration: Option<&str>, extra: Value) -> Value {
    let mut result =
        json!({"status": status, "attempts": 1, "duration": duration, "exit_code": null, "execution": id(5)});
    changed(&mut result, extra);
    result
}

fn plan() -> Plan {
    let nodes = json!(["web-01", "web-02", "web-03"]);
    view(json!({
        "job": "deploy-web", "strategy": "fail-fast",
        "nodes": [{"id": id(1), "hostname": "web-01"}, {"id": id(2), "hostname": "web-02"}, {"id": id(3), "hostname": "web-03"}],
        "steps": [
            {"index": 0, "name": "fetch", "backend": "exec", "action": "run", "branch": "update", "where": nodes, "condition": null, "after": []},
            {"index": 1, "name": "exec shell", "backend": "exec", "action": "shell", "branch": "update", "where": nodes, "condition": null,
             "after": [{"step": 0, "kind": "per_node"}]},
            {"index": 2, "name": "train", "backend": "test", "action": "noop", "branch": null, "where": "placed", "condition": "always",
             "after": [{"step": 0, "kind": "barrier"}, {"step": 1, "kind": "barrier"}]},
            {"index": 3, "name": "clean-up", "backend": "test", "action": "echo", "branch": null,
             "where": ["a", "b", "c", "d", "e", "f"], "condition": "on_failure", "after": [{"step": 2, "kind": "barrier"}]},
        ],
    }))
}

fn running() -> WholeRun {
    let mut run = summary(json!({}));
    run["step"] = json!(1);
    run["counts"] = json!({"pending": 5, "leased": 0, "running": 1, "succeeded": 4, "failed": 1, "skipped": 0, "cancelled": 0, "lost": 0});
    let results = json!({
        "0": {
            "web-01": result("succeeded", Some("2.3s"), json!({"exit_code": 0})),
            "web-02": result("succeeded", Some("1.25s"), json!({"exit_code": 0})),
            "web-03": result("succeeded", Some("12ms"), json!({"exit_code": 0, "attempts": 3})),
        },
        "1": {
            "web-01": result("failed", Some("1h2m3s"), json!({"exit_code": 127, "error": "bash: line 1: deploy: command not found\nsecond line \u{1b}[31mred"})),
            "web-02": result("running", None, json!({})),
            "web-03": result("skipped", None, json!({"reason": "web-01 failed, and the strategy is fail-fast"})),
        },
        "2": {"-": result("pending", None, json!({}))},
    });
    run["waiting"] = json!([{"step": 2, "task": "train", "execution": id(5), "nodes": [
        {"node": "web-01", "reason": "it has no gpu"}, {"node": "web-02", "reason": "all 2 slots are taken"}]}]);
    whole(run, &plan(), &results)
}

fn failed() -> WholeRun {
    let mut run = running();
    run.run.summary = view(summary(json!({
        "state": "failed", "status": "failed", "partial": true, "finished_at": "2025-06-01T10:04:53.5Z", "duration": "2.5s",
        "error": "step 1 (exec shell) failed on 1 of 3 nodes",
    })));
    run.run.waiting.clear();
    run
}

#[test]
fn a_run_that_goes_on() {
    insta::assert_snapshot!(page(&running(), &plan(), Rows::Few, None));
}

#[test]
fn a_run_that_goes_on_in_a_narrow_terminal() {
    insta::assert_snapshot!(page(&running(), &plan(), Rows::Few, Some(90)));
}

#[test]
fn a_run_that_failed() {
    insta::assert_snapshot!(page(&failed(), &plan(), Rows::Few, None));
}

#[test]
fn statuses_have_colours() {
    insta::assert_snapshot!(run_line(&failed().run.summary, now()).replace('\u{1b}', "^"));
}

#[test]
fn a_list_of_runs() {
    let runs: List<RunRow> = view(json!({
        "data": [
            summary(json!({})),
            summary(json!({"id": id(2), "job": null, "state": "pending", "status": "pending", "started_at": null, "nodes": 0,
                           "pending_reason": "2 runs are active; at most 2 may be"})),
            summary(json!({"id": id(5), "paused": true, "paused_at": "2025-06-01T10:04:55Z",
                           "counts": {"pending": 3, "leased": 1, "running": 2, "succeeded": 40, "failed": 2, "skipped": 1,
                                      "cancelled": 0, "lost": 1},
                           "rollout": {"wave": 3, "waves": 5, "failed": 2, "budget": 4}})),
            summary(json!({"id": id(3), "state": "terminating", "cancel_requested_at": "2025-06-01T10:04:59Z"})),
            summary(json!({"id": id(4), "state": "completed", "status": "completed", "created_at": "2025-05-01T00:00:00Z",
                           "finished_at": "2025-05-01T00:10:00Z", "duration": "10m"})),
            summary(json!({"id": "nightly:2025-06-01T03:00:00Z", "job": "nightly", "state": "failed", "status": "failed",
                           "created_at": "2025-06-01T03:00:00Z", "finished_at": "2025-06-01T03:00:01Z", "duration": "950ms",
                           "error": "step 0 (dump) failed on 1 of 1 nodes"})),
        ],
        "pagination": {"limit": 20, "offset": 0, "total": 5, "has_more": false},
    }));
    insta::assert_snapshot!(plain(&run_table(&runs.data, now(), None)));
    assert_eq!(run_table(&[], now(), None), "no runs\n");
}

#[test]
fn lines_of_a_run_that_is_watched() {
    let mut lines = WatchLines::new(plan());
    let before = progress(&running(), &plan());
    let mut later = running();
    let cancelled = result("cancelled", Some("40ms"), json!({"reason": "the run was cancelled"}));
    let skipped = result("skipped", None, json!({"reason": "fail-fast has struck"}));
    later.results.remove(&2);
    later.extend([instance(&plan(), 1, "web-02", cancelled), instance(&plan(), 2, "web-01", skipped)]);
    let after = progress(&later, &plan());
    let mut text = String::new();
    for line in [lines.ended(before.steps()), lines.ended(after.steps())].concat() {
        text.push_str(&line);
        text.push('\n');
    }
    text.push_str(&run_line(&later.run.summary, now()));
    insta::assert_snapshot!(plain(&text));
}

#[test]
fn a_plan() {
    insta::assert_snapshot!(plain(&plan_page(&plan(), Rows::Few, None)));
}

/// `name>after,after`: a graph of placed tasks, each with its rules.
fn graph_plan(tasks: &[(&str, Value)]) -> Plan {
    let split = |text: &str| -> (String, Vec<String>) {
        let (name, after) = text.split_once('>').unwrap_or((text, ""));
        (name.to_owned(), after.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect())
    };
    let names: Vec<String> = tasks.iter().map(|(text, _)| split(text).0).collect();
    let index = |name: &String| names.iter().position(|known| known == name).unwrap();
    let steps = (0..).zip(tasks).map(|(number, (text, more)): (u32, _)| {
        let (name, after) = split(text);
        let after: Vec<Value> =
            after.iter().map(|name| json!({"step": index(name), "kind": "barrier"})).collect();
        let mut step = json!({
            "index": number, "entry": number, "name": name, "backend": "exec", "action": "run", "branch": null,
            "where": "placed", "condition": null, "after": after, "params": {"command": ["do", name]}, "timeout": "30m",
            "retries": 0, "delivery": "at_least_once", "idempotent": null, "placement_timeout": "30m",
        });
        changed(&mut step, more.clone());
        step
    });
    view(json!({
        "job": "nightly", "shape": "graph", "strategy": "continue", "max_parallel": 50, "nodes": [],
        "steps": steps.collect::<Vec<_>>(),
    }))
}

fn nightly() -> Plan {
    let workers = json!({"labels": ["worker"]});
    let placed = |more: Value| {
        let mut task = json!({"placement": workers});
        changed(&mut task, more);
        task
    };
    graph_plan(&[
        ("list", placed(json!({"outputs": ["shards"]}))),
        (
            "shard>list",
            placed(json!({
                "backend": "docker", "retries": 2, "limits": {"db": 4, "api": "100/1m"}, "timeout": "10m",
                "for_each": {"items": "{{ steps.list.outputs.shards }}", "max_parallel": 8}, "outputs": ["rows"],
            })),
        ),
        ("schema>list", placed(json!({"cache": {"max_age": "24h"}, "for_each": {"items": [1, 2, 3]}}))),
        ("report>shard,schema", placed(json!({}))),
        ("alarm>shard,schema", placed(json!({"condition": "on_failure", "placement_timeout": "5m"}))),
        (
            "clean-up>report,list",
            json!({"where": ["web-01", "web-02"], "condition": "always", "placement_timeout": null}),
        ),
    ])
}

#[test]
fn a_plan_of_a_graph() {
    insta::assert_snapshot!(plain(&plan_page(&nightly(), Rows::Few, Some(100))));
}

#[test]
fn a_plan_of_a_graph_in_full() {
    insta::assert_snapshot!(plain(&plan_page(&nightly(), Rows::All, None)));
}

#[test]
fn a_plan_of_a_graph_with_a_branch_and_rules_of_its_own() {
    let mut plan = graph_plan(&[
        ("fetch", json!({"placement": {"requires": {"gpu": "nvidia"}, "max_per_node": 1}})),
        (
            "unpack",
            json!({"entry": 1, "branch": "site", "after": [{"step": 0, "kind": "barrier"}], "where": ["a", "b"],
                          "condition": "always"}),
        ),
        (
            "switch",
            json!({"entry": 1, "branch": "site", "after": [{"step": 1, "kind": "per_node"}], "where": ["a", "b"],
                          "retries": 1}),
        ),
        ("check", json!({"entry": 2, "after": [{"step": 2, "kind": "barrier"}], "cache": {}})),
    ]);
    plan.max_parallel = None;
    insta::assert_snapshot!(plain(&plan_page(&plan, Rows::Few, Some(100))));
}

#[test]
fn a_plan_of_a_large_graph_is_in_layers() {
    let mut tasks: Vec<(String, Value)> = vec![("list".to_owned(), json!({}))];
    let names: Vec<String> = (0..70).map(|number| format!("shard-{number:02}")).collect();
    tasks.extend(names.iter().map(|name| (format!("{name}>list"), json!({"limits": {"db": 4}}))));
    tasks.push((format!("join>{}", names.join(",")), json!({})));
    tasks.push(("mail>join,list".to_owned(), json!({"condition": "always"})));
    let tasks: Vec<(&str, Value)> = tasks.iter().map(|(text, more)| (text.as_str(), more.clone())).collect();
    let plan = graph_plan(&tasks);
    insta::assert_snapshot!(plain(&plan_page(&plan, Rows::Few, Some(120))));
    let all = plan_page(&plan, Rows::All, None);
    assert!(names.iter().all(|name| all.contains(name)), "{all}");
}

#[test]
fn a_plan_whose_lines_nobody_could_follow_is_in_layers() {
    let names: Vec<String> = (0..50).map(|number| format!("t{number}")).collect();
    // Each task of the second half has its own dependencies.
    let tasks: Vec<(String, Value)> = (0..50)
        .map(|number: usize| {
            let after: Vec<&str> = (0..25)
                .filter(|former| number >= 25 && (former * 7 + number * 5) % 4 < 2)
                .map(|former| names[former].as_str())
                .collect();
            (format!("{}>{}", names[number], after.join(",")), json!({}))
        })
        .collect();
    let tasks: Vec<(&str, Value)> = tasks.iter().map(|(text, more)| (text.as_str(), more.clone())).collect();
    let text = plan_page(&graph_plan(&tasks), Rows::Few, Some(120));
    assert!(text.lines().all(|line| plain(line).chars().count() <= 120), "{text}");
}

/// A fan-out over so many items, in which every hundredth fails, then a join that is skipped.
fn fan_out(items: u32) -> WholeRun {
    let mut run = summary(json!({
        "job": "nightly", "state": "failed", "status": "failed", "partial": true, "nodes": 0, "steps": 6, "no_cache": true,
        "finished_at": "2025-06-01T10:04:53.5Z", "duration": "2.5s", "error": "step 1 (shard) failed for 1 of 4 items",
    }));
    let shards: serde_json::Map<String, Value> = (0..items)
        .map(|item| {
            let node = format!("web-0{}", item % 3);
            let of_item = json!({"item": item, "node": node});
            let mut shown = match item {
                0 => result(
                    "succeeded",
                    Some("12ms"),
                    json!({"exit_code": 0, "cached": true, "reused": id(6), "outputs": {"rows": 7}}),
                ),
                item if item % 100 == 1 => result(
                    "failed",
                    Some("40ms"),
                    json!({"exit_code": 1, "error": "exited with code 1", "attempts": 3}),
                ),
                2 => result("skipped", None, json!({"reason": "fail-fast has struck"})),
                _ => result("succeeded", Some("1s"), json!({"exit_code": 0, "outputs": {"rows": item}})),
            };
            changed(&mut shown, of_item);
            if item == 2 {
                shown["node"] = Value::Null;
            }
            (format!("[{item}]"), shown)
        })
        .collect();
    run["step"] = json!(null);
    run["counts"] = json!({"pending": 0, "leased": 0, "running": 0, "succeeded": 3, "failed": 1, "skipped": 3, "cancelled": 0, "lost": 0});
    let skipped = |reason: &str| json!({"-": result("skipped", None, json!({"reason": reason}))});
    let results = json!({
        "0": {"web-01": result("succeeded", Some("12ms"), json!({"exit_code": 0, "cached": true, "reused": id(6)}))},
        "1": shards,
        "2": {"[0]": result("succeeded", Some("1s"), json!({"item": 0, "node": "web-01", "exit_code": 0, "reused": id(7)}))},
        "3": skipped("shard failed"),
        "4": {"web-02": result("succeeded", Some("1s"), json!({"exit_code": 0}))},
    });
    whole(run, &nightly(), &results)
}

#[test]
fn a_run_of_a_fan_out() {
    insta::assert_snapshot!(page(&fan_out(12), &nightly(), Rows::Few, None));
}

#[test]
fn a_run_of_ten_thousand_items_stays_readable() {
    let run = fan_out(10_000);
    insta::assert_snapshot!(page(&run, &nightly(), Rows::Few, Some(120)));
    let all = page(&run, &nightly(), Rows::All, None);
    assert!(all.contains("shard[9999]"), "every item");
    let place = |item: &str| all.find(item).unwrap();
    assert!(place("shard[2] ") < place("shard[10] "), "by number");
}

#[test]
fn a_run_of_ten_thousand_steps_shows_the_first_that_matter() {
    let names: Vec<String> = (0..10_000).map(|step| format!("task-{step}")).collect();
    let tasks: Vec<(&str, Value)> = names.iter().map(|name| (name.as_str(), json!({}))).collect();
    let plan = graph_plan(&tasks);
    let mut run = fan_out(3);
    run.results.clear();
    for step in 0..5_000 {
        let status = match step {
            4_000 => "failed",
            4_998.. => "running",
            _ => "succeeded",
        };
        run.extend([instance(&plan, step, "web-01", result(status, Some("0s"), json!({})))]);
    }
    run.run.summary = view(summary(json!({"steps": 10_000})));
    let text = page(&run, &plan, Rows::Few, Some(80));
    let rows: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("STEP")).collect();
    assert!(rows[1].starts_with("4000  task-4000  "), "what failed is first: {text}");
    assert!(
        rows[2].starts_with("4998  ") && rows[4].starts_with("5000  "),
        "then what runs, then what waits: {text}"
    );
    assert!(text.contains("… and 9950 more steps; --all or -o json shows them"), "{text}");
    assert!(text.lines().count() < 90, "{text}");
    assert!(text.contains("<0.1ms"), "a duration of 0 is a duration: {text}");
    assert_eq!(page(&run, &plan, Rows::All, None).matches("task-").count(), 10_000);
}

#[test]
fn lists_and_pages_fit_eighty_columns() {
    let error = json!({"error": "step 0 (fetch) failed on web-02; 1 node failed, none was allowed", "status": "failed"});
    let mut runs: Vec<RunRow> = vec![view(summary(error)), view(summary(json!({"job": null})))];
    runs[1].summary.id = "0198c0df-1111-7000-8000-000000000002".into();
    let list = plain(&run_table(&runs, now(), Some(80)));
    let nodes: Vec<NodeSummary> = view(json!([node(
        json!({"hostname": "a-rather-long-hostname-01.eu-central-1.example.com", "groups": ["web", "eu", "frontend", "canary"],
            "labels": {"disk": "ssd", "rack": "a-17", "zone": "eu-central-1a"}, "backends": ["exec", "file", "http", "ping", "test"]})
    ),]));
    let nodes = plain(&node_table(&nodes, now(), Some(80)));
    let run = page(&failed(), &plan(), Rows::Few, Some(80));
    // Commands to copy and the ids in them stay whole.
    let tables = run.lines().filter(|line| !line.starts_with("downbeat "));
    for line in list.lines().chain(nodes.lines()).chain(tables) {
        assert!(unicode_width::UnicodeWidthStr::width(line) <= 80, "{line}");
    }
    insta::assert_snapshot!(format!("{list}\n{nodes}\n{run}"));
}

#[test]
fn a_run_that_was_submitted_says_how_to_follow_it() {
    let line = |changes: Value| plain(&started_line(&view(summary(changes))));
    insta::assert_snapshot!(
        [
            line(json!({"job": null})),
            line(json!({"state": "pending", "status": "pending",
            "pending_reason": "waits for its turn: 1 of 1 runs active, next in line"})),
            line(json!({"state": "completed", "status": "completed"})),
        ]
        .join("\n")
    );
}

#[test]
fn a_step_that_waits_for_its_node_says_so_in_its_row() {
    let mut run = running();
    let waits = "waits for web-03, silent for 42s; fails when it is offline, in 58s";
    run.extend([instance(&plan(), 1, "web-03", result("pending", None, json!({"waits": waits})))]);
    let text = page(&run, &plan(), Rows::Few, None);
    assert!(text.lines().any(|line| line.contains("web-03  pending") && line.ends_with(waits)), "{text}");
}

#[test]
fn a_fan_out_that_waits_says_for_how_many() {
    let mut run = fan_out(3);
    run.run.summary = view(summary(json!({})));
    run.run.waiting = view(json!([
        {"step": 1, "task": "shard", "item": 3, "others": 12, "execution": id(5), "nodes": [{"node": "web-01", "reason": "has no free slot"}]},
        {"step": 3, "task": "report", "execution": id(5), "nodes": [{"node": "-", "reason": "limit db: 4 of 4 are taken"}]},
    ]));
    let text = page(&run, &nightly(), Rows::Few, None);
    let waits = text.split_once("\nstep 1 (").unwrap().1;
    insta::assert_snapshot!(waits);
}

#[test]
fn lines_of_a_fan_out_that_is_watched() {
    let mut lines = WatchLines::new(nightly());
    let mut text = String::new();
    let mut update = |run: &WholeRun| {
        lines
            .ended(progress(run, &nightly()).steps())
            .iter()
            .for_each(|line| text.push_str(&format!("{line}\n")));
        text.push_str("-\n");
    };
    let end = fan_out(4);
    let mut run = fan_out(4);
    run.run.summary = view(summary(json!({})));
    // More items may follow until a task that waits for them starts.
    run.results.retain(|step, _| *step < 3);
    update(&run);
    run.results.clone_from(&end.results);
    update(&run);
    update(&end);
    insta::assert_snapshot!(plain(&text));
}

/// Ten nodes in three waves; the second wave exceeded the budget.
fn stopped_rollout() -> WholeRun {
    let host = |number: usize| format!("web-{number:02}");
    let nodes = |range: std::ops::RangeInclusive<usize>| json!(range.map(host).collect::<Vec<_>>());
    let mut run = summary(json!({
        "state": "failed", "status": "failed", "finished_at": "2025-06-01T10:04:53.5Z", "duration": "2.5s", "nodes": 10,
        "steps": 2, "error": "step 0 (fetch) failed on web-02; 1 node failed, none was allowed", "retry_of": id(3),
    }));
    let skipped = json!({"reason": "the roll-out stopped in wave 2: step 0 (fetch) failed"});
    let mut fetched = json!({
        "web-01": result("succeeded", Some("2.3s"), json!({"exit_code": 0, "reused": id(6)})),
        "web-02": result("failed", Some("12ms"), json!({"exit_code": 1, "error": "no such host", "attempts": 2})),
        "web-03": result("succeeded", Some("12ms"), json!({"exit_code": 0, "outputs": {"version": "1.4", "size": 7}})),
    });
    for number in 4..=10 {
        fetched[host(number)] = result("skipped", None, skipped.clone());
    }
    changed(
        &mut run,
        json!({
            "step": null, "params": {"version": "1.4", "count": 3},
            "counts": {"pending": 0, "leased": 0, "running": 0, "succeeded": 2, "failed": 1, "skipped": 17, "cancelled": 0, "lost": 0},
            "rollout": {"wave": 2, "failed": 1, "budget": 0, "untouched": {"count": 7, "nodes": nodes(4..=10)}, "waves": [
                {"wave": 1, "nodes": 1, "status": "ended", "failed": 0},
                {"wave": 2, "nodes": 2, "status": "ended", "failed": 1},
                {"wave": 3, "nodes": 7, "status": "skipped", "failed": 0},
            ]},
        }),
    );
    whole(run, &rollout_plan(10, &[1, 2, 7]), &json!({"0": fetched}))
}

fn rollout_plan(nodes: usize, waves: &[usize]) -> Plan {
    let hosts: Vec<String> = (1..=nodes).map(|number| format!("web-{number:02}")).collect();
    let step = |index: u32, name: &str, more: Value| {
        let mut step = json!({
            "index": index, "name": name, "backend": "exec", "action": "run", "branch": null, "where": 0,
            "condition": null, "after": [], "params": {}, "timeout": "30m", "retries": 0, "delivery": "at_most_once",
            "idempotent": false,
        });
        changed(&mut step, more);
        step
    };
    let waves: Vec<Value> =
        (1..).zip(waves).map(|(wave, size): (u32, _)| json!({"wave": wave, "nodes": size})).collect();
    view(json!({
        "job": "deploy-web", "strategy": "fail-fast", "exclusive": true, "priority": 5, "timeout": "1h",
        "rollout": {"waves": waves, "pause": "5m", "budget": 2},
        "nodes": hosts.iter().map(|host| json!({"id": id(1), "hostname": host})).collect::<Vec<_>>(),
        "sets": [(0..nodes).collect::<Vec<_>>()],
        "steps": [
            step(0, "fetch", json!({"params": {"command": ["curl", "-o", "/tmp/x y", "http://example/a-rather-long-path/to/some/archive.tar.gz"]},
                                    "retries": 3, "timeout": "1m30s"})),
            step(1, "restart", json!({"backend": "systemd", "action": "restart", "params": {"unit": "web"}, "delivery": "at_least_once",
                                      "idempotent": true, "after": [{"step": 0, "kind": "barrier"}]})),
            step(2, "undo", json!({"condition": "on_failure", "after": [{"step": 1, "kind": "barrier"}], "params": {"command": "undo", "empty": ""}})),
        ],
    }))
}

#[test]
fn a_plan_in_waves() {
    insta::assert_snapshot!(plain(&plan_page(&rollout_plan(3, &[1, 2]), Rows::Few, None)));
}

#[test]
fn a_plan_over_many_nodes_is_short_unless_all_is_asked_for() {
    let plan = rollout_plan(300, &[1, 30, 150, 119]);
    insta::assert_snapshot!(plain(&plan_page(&plan, Rows::Few, Some(140))));
    assert!(plan_page(&plan, Rows::All, None).contains("web-299, web-300"));
}

#[test]
fn a_roll_out_that_was_stopped() {
    let plan = rollout_plan(10, &[1, 2, 7]);
    insta::assert_snapshot!(page(&stopped_rollout(), &plan, Rows::Few, None));
}

#[test]
fn a_paused_roll_out() {
    let mut run = stopped_rollout();
    run.run.summary = view(summary(json!({"paused": true, "paused_at": "2025-06-01T10:04:55Z"})));
    run.run.rollout = Some(view(json!({"wave": 1, "failed": 0, "budget": 2, "waves": [
        {"wave": 1, "nodes": 1, "status": "ended"}, {"wave": 2, "nodes": 2, "status": "waiting"}]})));
    let text = page(&run, &rollout_plan(3, &[1, 2]), Rows::Few, None);
    insta::assert_snapshot!(format!("{text}\n{}", plain(&run_line(&run.run.summary, now()))));
}

#[test]
fn a_run_on_many_nodes() {
    let mut run = stopped_rollout();
    let plan = rollout_plan(200, &[1, 2, 197]);
    let succeeded = || result("succeeded", Some("1s"), json!({"exit_code": 0}));
    run.extend((11..=200).map(|number| instance(&plan, 0, &format!("web-{number}"), succeeded())));
    run.run.summary.partial = true;
    let rollout = run.run.rollout.as_mut().unwrap();
    (rollout.untouched, rollout.waves[2].nodes) = (None, 197);
    insta::assert_snapshot!(page(&run, &plan, Rows::Few, None));
    assert!(page(&run, &plan, Rows::All, None).contains("web-200"));
}

#[test]
fn lines_of_a_roll_out_that_is_watched() {
    let mut lines = WatchLines::new(rollout_plan(10, &[1, 2, 7]));
    let mut text = String::new();
    let mut update = |run: &WholeRun| {
        for line in lines.changes(&progress(run, &rollout_plan(10, &[1, 2, 7])), now()) {
            text.push_str(&format!("{line}\n"));
        }
        text.push_str("-\n");
    };
    let mut run = stopped_rollout();
    let (last, end) = (run.run.summary.clone(), run.run.rollout.clone());
    run.run.summary = view(summary(json!({})));
    for (statuses, failed, paused) in [
        (["waiting", "waiting", "waiting"], 0, false),
        (["running", "waiting", "waiting"], 0, false),
        (["ended", "waiting", "waiting"], 0, true),
        (["ended", "waiting", "waiting"], 0, true),
        (["ended", "running", "waiting"], 0, false),
    ] {
        let rollout = run.run.rollout.as_mut().unwrap();
        rollout.failed = failed;
        for (wave, status) in rollout.waves.iter_mut().zip(statuses) {
            wave.status = view(json!(status));
        }
        run.run.summary.paused = paused;
        update(&run);
    }
    (run.run.summary, run.run.rollout) = (last, end);
    update(&run);
    update(&run);
    insta::assert_snapshot!(plain(&text));
}

fn node(changes: Value) -> Value {
    let mut node = json!({
        "id": id(1), "hostname": "web-01", "cluster": id(9), "session": id(7), "status": "online", "draining": false,
        "groups": ["web", "eu"], "labels": {"disk": "ssd", "fast": ""}, "capabilities": {"cpu": 8, "gpu": "nvidia"},
        "backends": ["exec", "ping"], "slots": 4, "version": "0.1.0",
        "registered_at": "2025-06-01T08:00:00Z", "seen_at": "2025-06-01T10:04:57Z",
    });
    changed(&mut node, changes);
    node
}

#[test]
fn a_list_of_nodes() {
    let nodes: Vec<NodeSummary> = view(json!([
        node(json!({})),
        node(json!({"hostname": "web-02", "draining": true, "groups": [], "labels": {}})),
        node(
            json!({"hostname": "db-long-name-01", "status": "offline", "seen_at": "2025-05-30T10:00:00Z", "backends": []})
        ),
        node(json!({"hostname": "web-03", "problems": ["the disk is full", "the outbox cannot be written"]})),
    ]));
    insta::assert_snapshot!(plain(&node_table(&nodes, now(), None)));
}

#[test]
fn a_node() {
    let node: Node =
        view(node(json!({"problems": ["the disk is full"], "backends": [{"name": "exec", "actions": [
        {"name": "run", "idempotent": false, "params": [
            {"name": "command", "kind": "argv", "required": true, "help": ""},
            {"name": "env", "kind": "map", "required": false, "help": ""}]},
        {"name": "shell", "idempotent": false, "params": []}]}]})));
    insta::assert_snapshot!(plain(&node_page(&node, now(), None)));
}

fn held(changes: Value) -> Value {
    let mut held = json!({
        "execution": id(5), "run": RUN, "job": "deploy-web", "step": 2, "task": "train", "attempt": 1,
        "status": "running", "stopping": false, "placed": true, "name": format!("{}.1", id(5)),
        "leased_at": "2025-06-01T10:04:48Z", "lease_age": "12s", "expires_at": "2025-06-01T10:05:27Z",
        "expires_in": "27s", "started_at": "2025-06-01T10:04:48Z",
    });
    changed(&mut held, changes);
    held
}

fn work(held: &Value, changes: Value) -> Value {
    let mut work = json!({
        "id": id(1), "hostname": "web-01", "status": "online", "draining": false, "slots": {"total": 4, "free": 4},
        "held": held, "expired_leases": 0, "active_at": "2025-06-01T10:04:57Z",
        "totals": {"pending": 0, "leased": 0, "running": 0, "succeeded": 0, "failed": 0, "skipped": 0, "cancelled": 0, "lost": 0},
        "heartbeat_at": "2025-06-01T10:04:57Z", "claimed_at": null, "finished_at": null,
    });
    changed(&mut work, changes);
    work
}

#[test]
fn a_nodes_work() {
    let all = json!([
        held(json!({})),
        held(
            json!({"step": 11, "task": "docker run", "attempt": 3, "status": "leased", "job": null, "lease_age": "1h2m3s",
                    "expires_in": "400ms", "name": format!("downbeat-{}-3", id(6))})
        ),
        held(json!({"stopping": true, "expires_in": "0s", "lease_age": "95s", "item": 7})),
    ]);
    let work: NodeWork = view(work(
        &all,
        json!({
            "status": "stale", "slots": {"total": 4, "free": 1}, "expired_leases": 2, "claimed_at": "2025-06-01T10:04:48Z",
            "finished_at": "2025-06-01T09:55:00Z",
            "totals": {"pending": 1, "leased": 1, "running": 2, "succeeded": 120, "failed": 3, "skipped": 0, "cancelled": 0, "lost": 2},
        }),
    ));
    insta::assert_snapshot!(plain(&work_page(&work, now(), None)));
}

#[test]
fn a_node_that_has_done_nothing_yet() {
    let work: NodeWork = view(work(&json!([]), json!({})));
    insta::assert_snapshot!(plain(&work_page(&work, now(), None)));
}

#[test]
fn events() {
    let events: EventList = view(json!({
        "data": [
            {"seq": 1, "at": "2025-06-01T10:00:00.123456Z", "kind": "node_registered", "server": id(8), "run": null, "execution": null,
             "node": id(1), "by": null, "text": "node web-01 registered",
             "data": {"hostname": "web-01", "groups": [], "session": id(3), "version": "0.1.0"}},
            {"seq": 2, "at": "2025-06-01T10:00:00.5Z", "kind": "executions_added", "server": id(8), "run": RUN, "execution": null,
             "node": null, "by": null, "text": "2 executions added", "data": {"executions": [
                {"id": id(6), "step": 3, "item": 17, "node": null, "attempt": 2, "status": "pending"},
                {"id": id(7), "step": 4, "node": id(2), "attempt": 1, "status": "pending"}]}},
            {"seq": 2, "at": "2025-06-01T10:00:00.5Z", "kind": "executions_added", "server": id(8), "run": RUN, "execution": null,
             "node": null, "by": null, "text": "1 execution added, cached", "data": {"executions": [
                {"id": id(4), "step": 5, "item": 2, "node": null, "attempt": 1, "status": "succeeded", "cached": true}]}},
            {"seq": 3, "at": "2025-06-01T10:00:00.6Z", "kind": "execution_leased", "server": id(8), "run": RUN, "execution": id(6),
             "step": 3, "item": 17, "attempt": 2, "node": id(1), "by": null, "text": "execution leased", "data": {}},
            {"seq": 4, "at": "2025-06-01T10:00:00.7Z", "kind": "execution_started", "server": id(8), "run": RUN, "execution": id(6),
             "step": 3, "item": 17, "attempt": 2, "node": id(1), "by": null, "text": "execution started", "data": {}},
            {"seq": 5, "at": "2025-06-01T10:00:00.7Z", "kind": "execution_skipped", "server": id(8), "run": RUN, "execution": id(7),
             "step": 4, "attempt": 1, "node": id(2), "by": null, "text": "execution skipped: step 3 failed", "data": {"reason": "step 3 failed"}},
            {"seq": 1234567, "at": "2025-06-01T10:00:01Z", "kind": "execution_finished", "server": id(8), "run": RUN, "execution": id(5),
             "node": null, "by": null, "text": "execution failed with exit code 1: two\nlines", "data": {}},
            {"seq": 1234568, "at": "2025-06-01T10:00:02Z", "kind": "run_cancel_requested", "server": id(8), "run": RUN, "execution": null,
             "node": null, "by": "api", "text": "cancel requested", "data": {}},
        ],
        "pagination": {"limit": 100, "offset": 0, "total": 3, "has_more": false, "next": 1_234_568},
    }));
    let mut lines = EventLines::default();
    let text: String = events.data.iter().map(|event| lines.line(event) + "\n").collect();
    insta::assert_snapshot!(plain(&text));
}

#[test]
fn the_whole_system() {
    let server: Server = view(json!({
        "id": id(8), "name": "server-1", "http": "127.0.0.1:4680", "grpc": "127.0.0.1:4681", "version": "0.1.0",
        "started_at": "2025-06-01T07:00:00Z", "seen_at": "2025-06-01T10:04:59Z",
        "alive": true, "runs": 2,
    }));
    let status: Status = view(json!({
        "version": "0.1.0", "server": "server-1", "store": "sqlite", "uptime": "3h5m", "servers": [server],
        "runs": {"pending": 0, "running": 2, "completed": 17, "failed": 1, "cancelled": 0},
        "executions": {"pending": 4, "leased": 0, "running": 2, "succeeded": 120, "failed": 3, "skipped": 2, "cancelled": 0, "lost": 1},
        "nodes": {"online": 3, "stale": 1, "offline": 0}, "nodes_with_problems": 2,
        "volume": {
            "runs": 20, "executions": 132, "events": 1_024, "output_bytes": 1_536, "disk_bytes": 3_565_158_000_u64,
            "growth": {"over": "3h4m", "runs": 1, "executions": -60, "events": 900, "output_bytes": -512, "disk_bytes": 31_457_280},
        },
    }));
    insta::assert_snapshot!(plain(&status_page(&status, now(), None)));
    // In memory, and not measured yet.
    let volume = Volume { disk_bytes: None, growth: None, ..status.volume.clone().unwrap() };
    let status = Status { volume: Some(volume), ..status };
    let page = plain(&status_page(&status, now(), None));
    assert!(page.contains("1.5 KiB of output\n") && page.contains("not measured yet"), "{page}");
}

#[test]
fn the_whole_system_as_a_replica_shows_it() {
    let server: Server = view(json!({
        "id": id(8), "name": "copy", "role": "replica", "http": "127.0.0.1:4690", "grpc": "127.0.0.1:4691",
        "version": "0.1.0", "started_at": "2025-06-01T07:00:00Z", "seen_at": "2025-06-01T10:04:59Z",
        "alive": true, "runs": 0,
    }));
    let page = |replica: Value| {
        let status: Status = view(json!({
            "version": "0.1.0", "server": "copy", "role": "replica", "replica": replica, "store": "sqlite",
            "uptime": "3h5m", "servers": [server], "runs": {"completed": 17}, "executions": {}, "nodes": {"online": 3},
        }));
        plain(&status_page(&status, now(), None))
    };
    let follows = page(json!({
        "primary": "http://10.0.0.1:4680", "connected": true, "seq": 90, "lag_events": 0, "lag": "120ms", "copies": 1,
        "error": null,
    }));
    let alone = page(json!({
        "primary": "http://10.0.0.1:4680", "connected": false, "seq": 90, "lag_events": 1, "lag": "2m", "copies": 1,
        "error": "it does not answer: connection refused",
    }));
    insta::assert_snapshot!(format!("{follows}\n{alone}"));
}
