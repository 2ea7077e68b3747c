//! Every exit code, and the words that go with it.

use std::fs;

use downbeat_testbed::{Dev, Done, example, run_in};

fn fails_with(done: &Done, code: i32, words: &str) {
    assert_eq!(done.code, code, "{done:?}");
    assert!(done.stderr.contains(words), "{done:?}");
    assert!(done.stderr.starts_with("error: "), "{done:?}");
    assert_eq!(done.stdout, "", "diagnostics go to standard error");
}

#[test]
fn the_result_of_a_run_is_the_exit_code() {
    let dev = Dev::start();
    assert_eq!(dev.run(&["job", "run", "--target", "all", "--wait", "test", "noop"]).code, 0);
    assert_eq!(dev.run(&["job", "run", "--target", "all", "--wait", "test", "fail"]).code, 1);
    assert_eq!(dev.run(&["job", "run", "--target", "all", "test", "fail", "--watch"]).code, 1);
    let id = dev.submit(&["--target", "all", "test", "sleep", "--duration", "1h"]);
    dev.run(&["run", "cancel", &id]).ok();
    assert_eq!(dev.run(&["run", "watch", &id]).code, 1);
    assert_eq!(dev.run_status(&id), "cancelled");
}

#[test]
fn bad_input_is_2() {
    let dev = Dev::start();
    fails_with(&dev.run(&["job", "run", "--target", "all", "exce", "run"]), 2, "did you mean `exec`?");
    fails_with(
        &dev.run(&["job", "run", "--target", "all", "exec", "run", "--comand", "x"]),
        2,
        "did you mean `command`?",
    );
    fails_with(&dev.run(&["job", "run", "--target", "all and", "test", "noop"]), 2, "target");
    fails_with(&dev.run(&["job", "run", "-f", "missing.yaml"]), 2, "cannot read missing.yaml: no such file");
    dev.write("bad.yaml", "name: x\ntasks:\n  - bakend: exec\n    action: run\n");
    fails_with(
        &dev.run(&["job", "run", "-f", "bad.yaml"]),
        2,
        "bad.yaml:3:5: tasks[0].bakend: unknown field `bakend`",
    );
    fails_with(&dev.run(&["job", "plan", "-f", "bad.yaml"]), 2, "bad.yaml:3:5: ");
    dev.write("huge.yaml", &"#".repeat(2 << 20));
    fails_with(&dev.run(&["job", "run", "-f", "huge.yaml"]), 2, "");
    fs::write(dev.dir.path().join("latin.yaml"), b"name: \xff\n").unwrap();
    fails_with(&dev.run(&["job", "run", "-f", "latin.yaml"]), 2, "UTF-8");
    fails_with(&dev.run(&["run", "list", "--status", "runing"]), 2, "runing");
    fails_with(&dev.run(&["run", "show", ""]), 2, "RUN is empty");
    let params = "--param is for job files";
    fails_with(&dev.run(&["job", "run", "--target", "all", "test", "noop", "--param", "a=b"]), 2, params);
    let params = "a: the job has no params";
    fails_with(&dev.run(&["job", "run", "--param", "a=b", "-f", &example("hello.yaml")]), 2, params);
    fails_with(&dev.run(&["event", "list", "--since", "999999999"]), 2, "after the last event");
    for args in [
        &["run", "lst"][..],
        &["job", "run"],
        &["run", "list", "--limit", "0"],
        &["-o", "xml", "status"],
        &["node", "show"],
    ] {
        assert_eq!(dev.run(args).code, 2, "{args:?}");
    }
}

#[test]
fn an_unreachable_server_is_3() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| run_in(dir.path(), &[&["--server", "http://127.0.0.1:1"], args].concat());
    for args in [
        &["status"][..],
        &["run", "list"],
        &["run", "logs", "last"],
        &["event", "list", "-f"],
        &["job", "run", "test", "noop"],
    ] {
        fails_with(
            &run(args),
            3,
            "cannot reach http://127.0.0.1:1: connection refused; is `downbeat server` or `downbeat dev` running?",
        );
    }
}

#[test]
fn what_does_not_exist_is_4() {
    let dev = Dev::start();
    fails_with(&dev.run(&["run", "show", "last"]), 4, "there is no run yet");
    let unknown = "00000000-0000-7000-8000-000000000000";
    for verb in ["show", "watch", "logs", "events", "cancel"] {
        fails_with(&dev.run(&["run", verb, unknown]), 4, unknown);
    }
    fails_with(&dev.run(&["run", "show", "abc"]), 4, "starts with `abc`");
    for verb in ["show", "drain", "undrain", "delete"] {
        fails_with(&dev.run(&["node", verb, "nowhere"]), 4, "nowhere");
    }
    fails_with(&dev.run(&["--cluster", "nowhere", "node", "list"]), 4, "nowhere");

    let id = dev.submit(&["--target", "node:node-1", "test", "noop"]);
    assert_eq!(dev.run(&["run", "watch", &id]).code, 0);
    for (part, words) in [
        (["--node", "nope"], "nope"),
        (["--node", "node-2"], "node `node-2` is not part of run"),
        (["--step", "9"], "the run has no step `9`"),
        (["--step", "nope"], "the run has no step `nope`"),
    ] {
        let done = dev.run(&["run", "logs", &id, part[0], part[1]]);
        fails_with(&done, 4, words);
        assert_eq!(done.stderr.lines().count(), 1, "{done:?}");
    }
}

#[test]
fn a_refusal_or_conflict_is_5() {
    let dev = Dev::start();
    fails_with(
        &dev.run(&["job", "run", "--target", "group:nobody", "test", "noop"]),
        5,
        "group `nobody`; groups: dev",
    );
    let id = dev.submit(&["--target", "all", "test", "noop", "--idempotency-key", "k"]);
    assert_eq!(dev.run(&["run", "watch", &id]).code, 0);
    fails_with(&dev.run(&["run", "cancel", &id]), 5, "has ended");

    let taken = dev.http();
    let memory = ["server", "--store", "memory:", "--http", taken, "--grpc", "127.0.0.1:0"];
    fails_with(&run_in(dev.dir.path(), &memory), 5, taken);

    let same_file =
        ["server", "--store", "sqlite:data/downbeat.db", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"];
    let second = |more: &[&str]| run_in(dev.dir.path(), &[&same_file, more].concat());
    fails_with(&second(&[]), 5, "in use by another server");
    let done = second(&["--log-format", "json"]);
    assert_eq!(done.code, 5, "{done:?}");
    let last: serde_json::Value = serde_json::from_str(done.stderr.lines().last().unwrap()).unwrap();
    assert_eq!((&last["level"], &last["exit_code"]), (&"ERROR".into(), &5.into()));
    assert!(last["message"].as_str().unwrap().contains("in use by another server"), "{last}");
}

#[test]
fn bad_settings_stop_the_start_with_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| run_in(dir.path(), args);
    for (args, words) in [
        (
            &["server", "--lease-ttl", "soon"][..],
            "bad value of `lease_ttl` (--lease-ttl): `soon` is not a duration",
        ),
        (&["server", "--store", "mysql://x"], "mysql"),
        (&["server", "--log-level", "loud"], "bad value of `log_level`"),
        (&["agent", "--slots", "none"], "bad value of `slots` (--slots)"),
        (&["agent", "--log-level", "error", "--allow", "exce"], "exce"),
        (&["agent", "--server", "https://127.0.0.1:4681"], "requires TLS"),
        (&["agent", "--pass-env", "NOTIFY_SOCKET"], "never passed on"),
        (
            &["server", "--store", "postgres://joe:secret@db.invalid/x"],
            "set sslmode=require (TLS) or sslmode=disable",
        ),
        (&["server", "--config", "no.toml"], "no.toml does not exist"),
    ] {
        let done = run(args);
        fails_with(&done, 2, words);
        assert_eq!(done.stderr.lines().count(), 1, "{done:?}");
    }
    fs::write(dir.path().join("downbeat.toml"), "[server]\nstroe = \"x\"\n").unwrap();
    fails_with(
        &run(&["server", "--print-config"]),
        2,
        "unknown key `stroe` in section [server] of downbeat.toml; did you mean `store`?",
    );
}

#[test]
fn validate_needs_no_server() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(
        dir.path().join("bad.yaml"),
        "name: deploy\ntarget: group:web\nstrategy: fast\ntasks:\n  - name: a\n    backend: exec\n    action: run\n    params: {comand: x}\n    \
         depends_on: [b]\n  - backend: exce\n    action: run\n    timeout: soon\n",
    )
    .unwrap();
    let validate =
        |more: &[&str]| run_in(dir.path(), &[&["job", "validate", "-f", "bad.yaml"], more].concat());
    let done = validate(&[]);
    assert_eq!(done.code, 2);
    insta::assert_snapshot!(done.stderr);
    let done = validate(&["-o", "json"]);
    assert_eq!(done.code, 2);
    let document: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(document["valid"], false);
    assert_eq!(document["errors"][0]["line"], 3);
}

#[test]
fn of_several_servers_the_next_one_is_asked_when_one_is_away() {
    let dev = Dev::start();
    let both = format!("127.0.0.1:1,{}", dev.url());
    dev.run(&["status", "--server", &both]).ok();
    dev.run(&["job", "run", "--server", &both, "--target", "all", "--wait", "test", "noop"]).ok();
    dev.run(&["job", "run", "--server", &both, "--target", "all", "--watch", "test", "noop"]).ok();
    fails_with(
        &dev.run(&["status", "--server", "127.0.0.1:1,127.0.0.1:2"]),
        3,
        "cannot reach http://127.0.0.1:2",
    );
}

#[test]
fn the_agents_port_says_at_once_where_rest_is() {
    let dev = Dev::start_with(&["--nodes", "1"]);
    let url = format!("http://{}", dev.grpc());
    for args in [["job", "run", "--target", "all", "test", "noop"].as_slice(), &["node", "list"]] {
        let done = dev.run(&[&["--server", &url], args].concat());
        assert_ne!(done.code, 0, "{done:?}");
        assert!(
            done.stderr.contains("this is the agents' port (gRPC); REST is on the --http port"),
            "{done:?}"
        );
    }
}
