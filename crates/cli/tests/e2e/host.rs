//! The limits that a host sets for jobs: which backends its agent offers, which variables reach its programs.

use downbeat_testbed::{Daemon, Dev, program};

/// A node of `dev`, and one whose agent allows nothing.
fn with_a_careful_node(flags: &[&str], environment: &[(&str, &str)]) -> (Dev, Daemon) {
    let dev = Dev::start_with(&["--nodes", "1"]);
    let agent = dev.agent("careful").with(flags).with_env(environment);
    agent.start();
    dev.nodes_online(2);
    (dev, agent)
}

#[test]
fn what_could_do_anything_on_a_host_is_refused_unless_its_agent_allows_it_and_the_error_says_so() {
    let (dev, _agent) = with_a_careful_node(&[], &[]);
    for (task, backend) in [
        (&["exec", "run", "--command", "id"][..], "exec"),
        (&["file", "write", "--path", "/etc/cron.d/x", "--content", "x"], "file"),
        (&["http", "request", "--url", "http://169.254.169.254/"], "http"),
    ] {
        let refused = dev.run(&[&["job", "run", "--target", "node:careful"], task].concat());
        assert_eq!(refused.code, 5, "{refused:?}");
        let line = format!("careful: lacks backend `{backend}` (its agent runs without --allow {backend})");
        assert!(refused.stderr.contains(&line), "{refused:?}");
    }
    let stat = ["job", "run", "--target", "node:node-1", "--wait", "file", "stat", "--path", "/"];
    assert_eq!(dev.run(&stat).code, 0, "dev allows all");
}

#[test]
fn a_job_sees_nothing_of_the_agents_environment_but_what_the_settings_name() {
    let environment =
        [("AWS_SECRET_ACCESS_KEY", "canary"), ("NOTIFY_SOCKET", "/nowhere"), ("HTTPS_PROXY", "http://proxy")];
    let (dev, _agent) = with_a_careful_node(&["--allow", "exec", "--pass-env", "HTTPS_*"], &environment);
    let printed = output(&dev, "node:careful", "/usr/bin/env");
    assert!(printed.contains("PATH=") && printed.contains("HTTPS_PROXY=http://proxy"), "{printed}");
    assert!(!printed.contains("canary") && !printed.contains("NOTIFY_SOCKET"), "{printed}");
}

/// Returns the output of a command on a node.
fn output(dev: &Dev, target: &str, command: &str) -> String {
    dev.run(&["job", "run", "--target", target, "--wait", "exec", "run", "--command", command]).ok();
    dev.run(&["run", "logs", "last"]).ok()
}

#[test]
fn a_job_may_run_downbeat_itself() {
    let dev = Dev::start_with(&["--nodes", "1"]);
    let program = program().display().to_string();
    for component in ["agent", "server"] {
        let printed = output(&dev, "all", &format!("{program} {component} --print-config"));
        assert!(printed.contains(&format!("[{component}]")), "{printed}");
    }
}
