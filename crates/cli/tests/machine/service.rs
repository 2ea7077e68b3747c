//! The agent as a service of systemd, and the effect of restarts on it and its work.

use downbeat_testbed::until;

use crate::host::Host;
use crate::site::Site;

const UNIT: &str = "downbeat-agent";

fn began(host: &Host, path: &str) {
    until("the work to begin", || host.path(path).exists().then_some(()));
}

/// A step that ends after `/run/go` exists, and one after it.
const TWO_STEPS: &str = "
tasks:
  - {backend: exec, action: shell, params: {command: 'touch /run/began; until [ -e /run/go ]; do sleep 0.1; done; echo done'}}
  - {backend: exec, action: shell, params: {command: 'echo $PPID'}}
";

#[test]
fn a_restart_of_the_agent_waits_for_its_work_and_the_run_goes_on() {
    let site = Site::of(1);
    let host = site.host();
    let run = site.submit_file(TWO_STEPS);
    began(host, "run/began");
    let former = host.agent();
    host.ok(&["systemctl", "restart", "--no-block", UNIT]);
    until("the agent to drain", || {
        host.messages("downbeat").iter().any(|line| line.contains("draining")).then_some(())
    });
    host.write("run/go", "");
    let view = site.ended(&run);
    assert_eq!(view["status"], "completed", "{view:#}");
    assert_eq!(view["results"]["0"][&host.name]["attempts"], 1, "{view:#}");
    let output = site.text(&["run", "logs", &run]);
    let now = host.agent();
    assert_ne!(former, now);
    assert_eq!(output, format!("done\n{now}\n"), "the second step is the next life's");
}

#[test]
fn work_that_does_not_end_is_ended_and_lost() {
    let site = Site::with(1, "drain_timeout = \"1s\"\n");
    let host = site.host();
    let run = site.submit_file(TWO_STEPS);
    began(host, "run/began");
    host.ok(&["systemctl", "restart", UNIT]);
    let result = site.result(&run);
    assert_eq!((result.status.as_str(), result.error.as_str()), ("lost", "the agent stopped"));
    assert!(host.processes("/run/go").is_empty(), "nothing of it still runs");
}

#[test]
fn a_killed_agent_is_started_again_and_ends_what_it_left_running() {
    let site = Site::of(1);
    let host = site.host();
    let run = site.submit_file(TWO_STEPS);
    began(host, "run/began");
    let former = host.agent();
    host.ok(&["bash", "-c", &format!("kill -KILL {former}")]);
    let view = site.ended(&run);
    assert_eq!(view["status"], "failed", "it is not idempotent: {view:#}");
    assert_eq!(view["results"]["0"][&host.name]["status"], "lost", "{view:#}");
    assert!(host.processes("/run/go").is_empty(), "nothing of it still runs");
    assert!(![0, former].contains(&host.agent()));
}

#[test]
fn a_daemon_that_a_job_started_survives_the_agents_restart() {
    let site = Site::of(1);
    let host = site.host();
    let command = "setsid sleep 4321 >/dev/null 2>&1 & echo started";
    site.task(&["exec", "shell", "--command", command]).ok();
    let former = host.agent();
    host.ok(&["systemctl", "restart", UNIT]);
    assert_ne!(host.agent(), former);
    site.task(&["ping", "ping"]);
    assert_eq!(host.processes("sleep 4321").len(), 1);
}

#[test]
fn a_job_can_restart_the_agent_that_carries_it_out() {
    let site = Site::of(1);
    let host = site.host();
    let former = host.agent();
    // The second step may reach either session, and is lost if the former session had received it. It is idempotent,
    // so it is sent again.
    let run = site.submit_file(
        "
tasks:
  - {backend: systemd, action: restart, params: {unit: downbeat-agent}}
  - {backend: test, action: echo, params: {message: after}}
",
    );
    let view = site.ended(&run);
    assert_eq!(view["status"], "completed", "{view:#}");
    assert_eq!(view["results"]["0"][&host.name]["attempts"], 1, "{view:#}");
    assert_eq!(site.text(&["run", "logs", &run]), "after\n");
    until("the next life", || (![0, former].contains(&host.agent())).then_some(()));
}
