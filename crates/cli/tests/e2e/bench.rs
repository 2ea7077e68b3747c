//! The loads of `bench`, with numbers so small that they measure nothing: what they start, count and clear away.

use std::process::Stdio;

use downbeat_testbed::{Done, command, eventually, postgres_url, run_in};
use serde_json::Value;

fn bench(args: &[&str]) -> Done {
    let dir = tempfile::tempdir().unwrap();
    run_in(dir.path(), &[&["bench", "-o", "json"], args].concat())
}

fn whole(value: &Value) -> u64 {
    value.as_f64().unwrap_or_else(|| panic!("no number: {value}")) as u64
}

#[test]
fn tasks_are_spread_over_all_servers_that_share_a_database() {
    let figures = bench(&[
        "tasks",
        "--store",
        &postgres_url(),
        "--servers",
        "3",
        "--n",
        "300",
        "--per-run",
        "50",
        "--nodes",
        "3",
        "--singles",
        "3",
    ])
    .json();
    assert_eq!((figures["load"].as_str(), whole(&figures["n"])), (Some("tasks"), 300), "{figures}");
    let servers = figures["servers"].as_array().unwrap();
    let names: Vec<_> = servers.iter().map(|server| server["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["server-1", "server-2", "server-3"]);
    assert!(servers.iter().all(|server| whole(&server["commits"]) > 0), "{figures}");
}

#[test]
fn tasks_are_measured_in_turns_without_and_beside_cleaning() {
    for (store, name) in [("sqlite".to_owned(), "sqlite"), (postgres_url(), "postgres")] {
        let args =
            ["tasks", "--beside-cleaning", "--old", "8000", "--rounds", "1", "--n", "100", "--per-run", "50"];
        let figures =
            bench(&[&args[..], &["--nodes", "2", "--singles", "2", "--store", &store]].concat()).json();
        assert_eq!(
            (figures["load"].as_str(), figures["store"].as_str()),
            (Some("tasks"), Some(name)),
            "{figures}"
        );
        assert_eq!((whole(&figures["n"]), whole(&figures["old executions"])), (100, 8_000), "{figures}");
        let number = |name: &str| figures[name].as_f64().unwrap_or_else(|| panic!("no {name}: {figures}"));
        let (alone, beside) = (number("per second without cleaning"), number("per second beside cleaning"));
        assert!(alone > 0.0 && beside > 0.0, "{figures}");
        let cost = number("cost of cleaning in percent");
        assert!((cost - 100.0 * (alone - beside) / alone).abs() < 1e-6, "{figures}");
        assert!(number("removed meanwhile") < 8_000.0, "{figures}");
    }
    for args in
        [&["--old", "5"][..], &["--beside-cleaning", "--old", "0"], &["--beside-cleaning", "--rounds", "0"]]
    {
        let done = bench(&[&["tasks"], args].concat());
        assert_eq!(done.code, 2, "{args:?}: {done:?}");
    }
}

#[test]
fn every_node_of_a_fleet_does_every_step_of_every_round() {
    let figures = bench(&["fleet", "--nodes", "50", "--steps", "3", "--rounds", "2"]).json();
    assert_eq!((figures["load"].as_str(), figures["store"].as_str()), (Some("fleet"), Some("sqlite")));
    assert_eq!((whole(&figures["nodes"]), whole(&figures["n"])), (50, 300), "{figures}");
    let number = |name: &str| figures[name].as_f64().unwrap_or_else(|| panic!("no {name}: {figures}"));
    assert_eq!((number("steps"), number("rounds")), (3.0, 2.0));
    assert!(number("min ms") > 0.0 && number("min ms") <= number("p50_ms"), "{figures}");
    assert!(
        number("p50_ms") <= number("p99_ms") && number("p99_ms") <= number("max ms") * 1.001,
        "{figures}"
    );
    assert!((number("us per node") - number("p50_ms") * 1e3 / 50.0).abs() < 1e-6, "{figures}");
    assert!((number("us per execution") - number("us per node") / 3.0).abs() < 1e-6, "{figures}");
    for name in ["seconds", "per_second", "server_rss_bytes", "seconds until all nodes were online"] {
        assert!(number(name) > 0.0, "{name}: {figures}");
    }
    // Each execution is finished by a change of its own, whether it was born leased or not.
    assert!(whole(&figures["servers"][0]["changes"]) >= 300, "{figures}");
}

#[test]
fn a_fleet_that_cannot_be_is_refused() {
    for args in [
        &["fleet", "--nodes", "0"][..],
        &["fleet", "--rounds", "0"],
        &["fleet", "--scale", "--nodes", "5"],
        &["fleet", "--nodes", "4294967295"],
    ] {
        let done = bench(args);
        assert_eq!(done.code, 2, "{args:?}: {done:?}");
    }
}

#[test]
fn every_node_of_a_cluster_carries_out_every_standing_task_once() {
    for (store, name) in [("sqlite".to_owned(), "sqlite"), (postgres_url(), "postgres")] {
        let figures =
            bench(&["cluster", "--store", &store, "--nodes", "20", "--tasks", "3", "--for", "1s"]).json();
        assert_eq!(
            (figures["load"].as_str(), figures["store"].as_str()),
            (Some("cluster"), Some(name)),
            "{figures}"
        );
        assert_eq!((whole(&figures["nodes"]), whole(&figures["n"])), (20, 60), "{figures}");
        assert_eq!(whole(&figures["heartbeats"]["nodes_silent"]), 0, "{figures}");
        assert_eq!(whole(&figures["heartbeats"]["interval_seconds"]), 10, "{figures}");
        for (phase, executions) in [("first_task", 20), ("list", 60)] {
            let work = &figures[phase];
            assert_eq!(whole(&work["executions"]), executions, "{figures}");
            let number = |name: &str| work[name].as_f64().unwrap_or_else(|| panic!("no {name}: {work}"));
            assert!(number("seconds") > 0.0 && number("changes_per_commit") >= 1.0, "{work}");
            assert!(number("edited_after_ms") <= number("seconds") * 1e3, "{work}");
        }
        for phase in ["idle", "idle_after_list"] {
            assert!(figures[phase]["server_cpu_percent"].is_number(), "{figures}");
        }
        let peak = whole(&figures["server_rss_peak_bytes"]);
        assert!(peak >= whole(&figures["server_rss_bytes"]) && peak > 0, "{figures}");
        let reads = figures["reads"].as_array().unwrap();
        let calls: Vec<&str> = reads.iter().map(|read| read["call"].as_str().unwrap()).collect();
        assert_eq!(
            calls,
            [
                "/clusters/default/status",
                "/clusters/default/walks?limit=100",
                "/nodes?limit=100",
                "/clusters/default/executions?limit=100",
                "/status"
            ]
        );
        for read in reads {
            assert!(whole(&read["count"]) > 0 && whole(&read["failed"]) == 0, "{read}");
            assert!(read["p50_ms"].as_f64() <= read["p99_ms"].as_f64(), "{read}");
        }
        assert!(figures["sizes"].is_null(), "{figures}");
    }
}

#[test]
fn a_cluster_that_cannot_be_is_refused() {
    for args in [
        &["cluster", "--nodes", "0"][..],
        &["cluster", "--tasks", "0"],
        &["cluster", "--for", "0"],
        &["cluster", "--scale", "--nodes", "5"],
        &["cluster", "--nodes", "4294967295"],
    ] {
        let done = bench(args);
        assert_eq!(done.code, 2, "{args:?}: {done:?}");
    }
}

#[test]
fn every_graph_is_run_and_every_figure_is_there() {
    for (store, name) in [("sqlite".to_owned(), "sqlite"), (postgres_url(), "postgres")] {
        let figures = bench(&["graph", "--store", &store, "--n", "6", "--rounds", "1"]).json();
        assert_eq!(
            (figures["load"].as_str(), figures["shape"].as_str()),
            (Some("graph"), Some("sequential")),
            "{figures}"
        );
        let shapes: Vec<(&str, &str)> = figures["shapes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| (one["shape"].as_str().unwrap(), one["work"].as_str().unwrap()))
            .collect();
        assert_eq!(
            shapes,
            [
                ("sequential", "exec shell fibonacci"),
                ("sequential", "exec run /bin/true"),
                ("sequential", "test noop"),
                ("parallel", "exec shell fibonacci"),
                ("parallel", "test noop"),
                ("noop", "test noop"),
                ("exec", "exec run /bin/true"),
                ("plan", "chain"),
                ("plan", "layers"),
                ("plan", "wide"),
            ]
        );
        for one in figures["shapes"].as_array().unwrap() {
            let number = |name: &str| one[name].as_f64().unwrap_or_else(|| panic!("no {name}: {one}"));
            assert!(number("p50_ms") > 0.0 && number("p50_ms") <= number("p99_ms"), "{one}");
            assert_eq!(number("n"), 6.0, "{one}");
            match one["shape"].as_str().unwrap() {
                "plan" => {
                    assert_eq!(one["store"], "none");
                    assert!(number("bytes per step") > 0.0, "{one}");
                }
                shape => {
                    assert_eq!(one["store"], name);
                    assert!(number("server_rss_bytes") > 0.0 && number("commits per task") > 0.0, "{one}");
                    assert_eq!(shape == "exec", one["of fork+exec"].is_number(), "{one}");
                    assert_eq!(shape == "sequential", one["overhead ms per step"].is_number(), "{one}");
                }
            }
        }
    }
}

#[test]
fn the_overhead_of_a_chain_is_what_is_not_work() {
    let figures = bench(&["graph", "--shape", "sequential", "--n", "4", "--rounds", "2"]).json();
    let shapes = figures["shapes"].as_array().unwrap();
    for one in shapes {
        let number = |name: &str| one[name].as_f64().unwrap_or_else(|| panic!("no {name}: {one}"));
        assert_eq!(number("n"), 8.0);
        let whole = number("work ms per step") + number("overhead ms per step");
        assert!((whole - number("ms per task")).abs() < 1e-6, "{one}");
    }
    // A shell works, and a no-op does not.
    let work = |index: usize| shapes[index]["work ms per step"].as_f64().unwrap();
    assert!(work(0) > work(2), "{figures}");
}

#[test]
fn a_graph_that_cannot_be_is_refused() {
    for args in [
        &["graph", "--rounds", "0"][..],
        &["graph", "--n", "1"],
        &["graph", "--n", "10001"],
        &["graph", "--slots", "0"],
    ] {
        let done = bench(args);
        assert_eq!(done.code, 2, "{args:?}: {done:?}");
    }
}

#[test]
fn several_servers_need_a_store_that_can_be_shared() {
    for args in [
        &["tasks", "--servers", "2"][..],
        &["tasks", "--servers", "0"],
        &["takeover", "--store", "sqlite"],
        &["takeover", "--store", "postgres://nowhere", "--servers", "1"],
        &["claims", "--store", "sqlite"],
    ] {
        let done = bench(args);
        assert_eq!(done.code, 2, "{args:?}: {done:?}");
    }
}

#[test]
fn every_run_of_a_killed_server_is_taken_over_and_nothing_finished_is_repeated() {
    let figures = bench(&[
        "takeover",
        "--store",
        &postgres_url(),
        "--servers",
        "2",
        "--rounds",
        "2",
        "--runs",
        "2",
        "--nodes",
        "2",
        "--stale-after",
        "1s",
    ])
    .json();
    // A server that gets too little CPU time is considered dead: its runs do not count.
    let (taken, taken_from_living) =
        (whole(&figures["n"]), whole(&figures["runs taken from a living server"]));
    assert!(taken == 4 || taken_from_living > 0, "{figures}");
    assert_eq!(whole(&figures["finished steps repeated"]), 0, "{figures}");
    // Two rounds, two servers, two runs on each, 50 steps in each.
    assert_eq!(whole(&figures["executions finished"]), 400, "{figures}");
    assert!(figures["p99_ms"].as_f64().unwrap() >= figures["taken p50 ms"].as_f64().unwrap(), "{figures}");
}

#[test]
fn claims_are_counted_window_by_window_with_and_without_a_held_transaction() {
    let figures = bench(&[
        "claims",
        "--store",
        &postgres_url(),
        "--both",
        "--minutes",
        "0.05",
        "--windows",
        "3",
        "--finished",
        "250",
        "--per-run",
        "100",
        "--nodes",
        "2",
    ])
    .json();
    let sides = figures["sides"].as_array().unwrap();
    let held: Vec<_> = sides.iter().map(|side| side["held_transaction"].as_bool().unwrap()).collect();
    assert_eq!(held, [false, true]);
    for side in sides {
        let windows = side["windows"].as_array().unwrap();
        assert_eq!(windows.len(), 3);
        let claims: u64 = windows.iter().map(|window| whole(&window["claims"])).sum();
        assert!(claims > 0 && claims == whole(&side["claims"]), "{side}");
        let executions =
            side["tables"].as_array().unwrap().iter().find(|table| table["name"] == "executions");
        assert!(executions.is_some_and(|table| whole(&table["bytes"]) > 0), "{side}");
    }
    assert_eq!(whole(&figures["n"]), sides.iter().map(|side| whole(&side["claims"])).sum::<u64>());
}

/// Returns the processes that a process has started.
fn children(parent: u32) -> Vec<u32> {
    let is_child = |process: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        // After the name, which may contain blanks: the state, then the parent.
        let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        rest.split_whitespace().nth(1).and_then(|parent| parent.parse().ok()) == Some(parent)
    };
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_child).collect()
}

#[tokio::test]
async fn a_bench_that_is_killed_leaves_no_process_behind() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = command(dir.path())
        .args(["bench", "tasks", "--n", "1000000"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let started = eventually("a server is started", || async {
        let started = children(bench.id());
        (!started.is_empty()).then_some(started)
    })
    .await;
    bench.kill().unwrap();
    bench.wait().unwrap();
    eventually("they have ended", || async {
        // A process that has ended may not have been reaped.
        let runs = |process: &u32| {
            let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
            stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
        };
        (!started.iter().any(runs)).then_some(())
    })
    .await;
}

#[test]
fn every_attack_is_made_and_small_runs_go_on_beside_it() {
    for (store, name) in [("sqlite".to_owned(), "sqlite"), (postgres_url(), "postgres")] {
        let figures = bench(&["hostile", "--store", &store, "--n", "9", "--seconds", "0.3"]).json();
        assert_eq!(
            (figures["load"].as_str(), figures["store"].as_str()),
            (Some("hostile"), Some(name)),
            "{figures}"
        );
        let scenarios = figures["scenarios"].as_array().unwrap();
        let attacks: Vec<(&str, &str)> = scenarios
            .iter()
            .map(|one| (one["attack"].as_str().unwrap(), one["outcome"].as_str().unwrap()))
            .collect();
        let outcome = |attack: &str| attacks.iter().find(|(name, _)| *name == attack).unwrap().1;
        let names: Vec<&str> = attacks.iter().map(|(name, _)| *name).collect();
        assert_eq!(
            names,
            ["params", "skips", "replica", "views", "plans", "pages", "lists", "unplaceable"],
            "{figures}"
        );
        assert_eq!(outcome("params"), "the run cancelled", "{figures}");
        assert_eq!(outcome("skips"), "the run failed", "{figures}");
        assert_eq!(outcome("replica"), "the replica has it, the run cancelled", "{figures}");
        assert_eq!(outcome("plans"), "planned", "{figures}");
        assert_eq!(outcome("unplaceable"), "1 runs wait, 0 refused", "{figures}");
        for attack in ["views", "pages", "lists"] {
            assert!(outcome(attack).ends_with(" 0 refused"), "{figures}");
        }
        for one in scenarios {
            for side in [&one["idle"], &one["beside"]] {
                let number = |name: &str| side[name].as_f64().unwrap_or_else(|| panic!("no {name}: {one}"));
                assert!(number("runs") > 0.0 && number("failed") == 0.0, "{one}");
                assert!(number("p50_ms") > 0.0 && number("p50_ms") <= number("p99_ms"), "{one}");
                assert!(number("rss_bytes") > 0.0 && number("healthz_most_ms") > 0.0, "{one}");
            }
            assert!(one["memory_of_idle"].as_f64().unwrap() > 0.0, "{one}");
        }
    }
}

#[test]
fn a_wrong_flag_of_the_attacks_is_named_with_its_value() {
    for (flag, value, problem) in [
        ("--n", "8", "--n: 8 is not from 9 to 9000"),
        ("--seconds", "0", "--seconds: 0.0 is not a valid time; write seconds, such as 0.5 or 60"),
        ("--patience", "1e300", "--patience: 1e300 is not a valid time"),
        ("--program", "nowhere", "--program: cannot find `nowhere`: "),
    ] {
        let done = bench(&["hostile", flag, value]);
        assert_eq!(done.code, 2, "{flag}: {done:?}");
        assert!(done.stderr.contains(problem), "{flag}: {done:?}");
    }
}
