//! Mistakes that a new user makes: each results in one line with advice, and the right exit code.

use downbeat_testbed::{Dev, Done};

#[test]
fn every_mistake_is_answered_in_one_line_that_helps() {
    let dev = Dev::start();
    dev.write(
        "pipe.yaml",
        "target: all\ntasks:\n  - {backend: exec, action: run, params: {command: 'ls | wc -l'}}\n",
    );
    dev.write("empty.yaml", "");
    dev.write("none.yaml", "tasks:\n");
    dev.write("tabs.yaml", "tasks:\n\t- {backend: test, action: noop}\n");
    dev.write("list.yaml", "- {backend: test, action: noop}\n");
    dev.write("script.sh", "#!/bin/sh\necho hi\n");
    dev.write(
        "later.yaml",
        "schedule: '* * * * *'\non_failure: {tasks: []}\ntasks:\n  - {backend: test, action: noop, retries: 3}\n",
    );
    dev.write("command.yaml", "tasks:\n  - {backend: exec, action: run, command: uptime}\n");
    dev.write("path.yaml", "tasks:\n  - {backend: file, action: absent, params: {path: tmp/a}}\n");
    dev.write("zone.yaml", "target: zone=b\ntasks:\n  - {backend: test, action: noop}\n");
    dev.write("cluster.yaml", "cluster: default\ntarget: all\ntasks:\n  - {backend: test, action: noop}\n");
    dev.write(
        "params.yaml",
        "target: node:node-1\nparams: {n: soon}\ntasks:\n  - {backend: test, action: sleep, params: {duration: '{{ \
         params.n }}'}}\n",
    );
    let run = ["job", "run", "--target", "all"];
    let mistakes: Vec<Vec<&str>> = vec![
        // Commands.
        vec!["job", "apply", "-f", "pipe.yaml"],
        vec!["job", "list", "etl"],
        vec!["job", "run", "etl"],
        vec!["job", "run", "pipe.yaml"],
        vec!["job", "run", "exec"],
        vec!["schedule", "preview", "--cron", "0 0 30 2 *"],
        vec!["schedule", "preview", "--cron", "* * * *"],
        vec!["schedule", "preview", "--cron", "@daily", "--timezone", "Europe/Berln"],
        vec!["schedule", "preview", "--file", "pipe.yaml"],
        vec!["top"],
        vec!["login"],
        vec!["logs", "last"],
        vec!["jbo", "run"],
        vec!["node", "lsit"],
        vec!["nodes"],
        vec!["run", "show"],
        vec!["node", "list", "--limit", "0"],
        vec!["node", "list", "--statsu", "online"],
        vec!["status", "-o", "xml"],
        // Targets and names.
        [&run[..2], &["--target", "group:dve", "test", "noop"]].concat(),
        [&run[..2], &["--target", "node:node1", "test", "noop"]].concat(),
        [&run[..2], &["--target", "zone=b", "test", "noop"]].concat(),
        [&run[..2], &["--target", "label.nubmer = 1", "test", "noop"]].concat(),
        [&run[..2], &["--target", "web", "test", "noop"]].concat(),
        vec!["node", "show", "node1"],
        vec!["node", "drain", "nod-1"],
        vec!["run", "show", "abcdefgh"],
        vec!["run", "logs", "nothing"],
        vec!["--cluster", "defualt", "node", "list"],
        vec!["node", "list", "--status", "up"],
        // Params.
        [&run[..], &["exec", "run", "uptime"]].concat(),
        [&run[..], &["exec", "run", "--cmd", "uptime"]].concat(),
        [&run[..], &["exce", "run", "--command", "uptime"]].concat(),
        [&run[..], &["exec", "exec", "--command", "uptime"]].concat(),
        [&run[..], &["file", "absent", "--path", "tmp/a"]].concat(),
        [&run[..], &["systemd", "restart", "--unit", "/etc/x"]].concat(),
        [&run[..], &["test", "sleep", "--duration", "10"]].concat(),
        [&run[..], &["test", "noop", "--timeout", "10"]].concat(),
        [&run[..], &["test", "noop", "--timeout", "100d"]].concat(),
        // Files.
        vec!["job", "run", "-f", "missing.yaml"],
        vec!["job", "run", "-f", "."],
        vec!["job", "run", "-f", "empty.yaml"],
        vec!["job", "run", "-f", "none.yaml"],
        vec!["job", "run", "-f", "tabs.yaml"],
        vec!["job", "run", "-f", "list.yaml"],
        vec!["job", "run", "-f", "script.sh"],
        vec!["job", "run", "-f", "command.yaml"],
        vec!["job", "run", "-f", "path.yaml"],
        vec!["job", "run", "-f", "zone.yaml"],
        vec!["job", "run", "-f", "params.yaml"],
        vec!["job", "run", "-f", "params.yaml", "--param", "m=1s"],
        vec!["--cluster", "other", "job", "run", "-f", "cluster.yaml"],
        vec!["--cluster", "other", "job", "plan", "-f", "pipe.yaml"],
        vec!["job", "validate", "-f", "later.yaml"],
        // Servers.
        vec!["--server", "http://127.0.0.1:1", "status"],
        vec!["--server", "ftp://host", "status"],
        vec!["--server", "https://host:4680", "status"],
        vec!["--server", "", "status", "--server", "http://"],
        // Settings.
        vec!["server", "--heartbeat-interval", "1ms"],
        vec!["server", "--node-stale-after", "1s"],
        vec!["server", "--lease-ttl", "11s"],
        vec!["server", "--output-max", "1"],
        vec!["server", "--http", "localhost"],
        vec!["agent", "--log-level", "error", "--only", "exec"],
        vec!["agent", "--label", "=x"],
        vec!["agent", "--log-level", "error", "--allow", "exce"],
    ];
    for words in mistakes {
        let done = dev.run(&words);
        let stderr = &done.stderr;
        assert!(matches!(done.code, 2..=5), "{words:?}: {done:?}");
        assert!(stderr.starts_with("error: "), "{words:?}: {done:?}");
        assert_eq!(done.stdout, "", "{words:?}: {done:?}");
        // One line, or a list of several mistakes.
        assert!(stderr.lines().skip(1).all(|line| line.starts_with("  ")), "{words:?}: {stderr}");
    }
}

#[test]
fn a_command_that_needs_a_shell_is_noted_and_runs_as_it_was_written() {
    let dev = Dev::start_with(&["--nodes", "1"]);
    let note =
        "no shell reads `|` here, the program gets it as it is; `exec shell` runs a command in a shell";
    let words = ["job", "run", "--target", "all", "-o", "json", "exec", "run", "--command", "echo a | b"];
    let done = dev.run(&words);
    assert_eq!((done.code, done.stderr.trim_end()), (0, note), "{done:?}");
    dev.write(
        "pipe.yaml",
        "target: all\ntasks:\n  - {backend: exec, action: run, params: {command: 'echo a | b'}}\n",
    );
    let placed = format!("pipe.yaml:3:52: tasks[0].params.command: {note}");
    for words in [&["job", "run", "-f", "pipe.yaml"][..], &["job", "validate", "-f", "pipe.yaml"]] {
        let done = dev.run(words);
        assert_eq!((done.code, done.stderr.contains(&placed)), (0, true), "{done:?}");
    }
    let plan = dev.run(&["job", "plan", "-f", "pipe.yaml"]);
    assert!(plan.stdout.contains(&format!("note: tasks[0].params.command: {note}")), "{plan:?}");
}

#[test]
fn drained_nodes_are_named_as_left_out() {
    let dev = Dev::start_with(&["--nodes", "2"]);
    dev.write("all.yaml", "target: all\ntasks:\n  - {backend: test, action: noop}\n");
    dev.run(&["node", "drain", "node-2"]).ok();
    let plan = dev.run(&["job", "plan", "-f", "all.yaml"]);
    assert!(plan.stdout.contains("left out  node-2 (drained)"), "{plan:?}");
    let done = dev.run(&["job", "run", "-f", "all.yaml", "--wait"]);
    assert_eq!((done.code, done.stderr.trim_end()), (0, "left out: node-2 (drained)"), "{done:?}");
    assert!(dev.run(&["run", "show", "last"]).stdout.contains("left out  node-2 (drained)"));
}

#[test]
fn the_cluster_is_named_by_flag_or_environment_for_job_files_too() {
    let dev = Dev::start_with(&["--nodes", "1"]);
    dev.write("all.yaml", "target: all\ntasks:\n  - {backend: test, action: noop}\n");
    let words = ["job", "run", "-f", "all.yaml", "--wait"];
    dev.run(&[&["--cluster", "default"], &words[..]].concat()).ok();
    let named = |cluster: &str| Done::of(dev.command(&words).env("DOWNBEAT_CLUSTER", cluster));
    assert_eq!(named("default").code, 0);
    let refused = named("other");
    assert_eq!(refused.code, 4, "{refused:?}");
    assert!(refused.stderr.contains("there is no cluster `other`"), "{refused:?}");
}

#[test]
fn dev_with_fewer_nodes_forgets_those_that_it_no_longer_has() {
    let mut dev = Dev::start_with(&["--nodes", "3"]);
    assert_eq!(dev.stop().code, 0);
    dev.replace("--nodes", "1".to_owned());
    dev.serve();
    let nodes = dev.run(&["node", "list", "-o", "json"]).json();
    assert_eq!((&nodes["pagination"]["total"], &nodes["data"][0]["hostname"]), (&1.into(), &"node-1".into()));
    let done = dev.run(&["job", "run", "--target", "all", "--wait", "test", "noop"]);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
}
