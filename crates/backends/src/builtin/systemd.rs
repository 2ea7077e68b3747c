//! The backend `systemd`: units of the system's manager, with systemctl.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use downbeat_core::backend::BackendSchema;
use downbeat_core::execution::Verdict;
use tokio::process::Command;

use super::params::text;
use crate::backend::{Backend, Call, Finish};
use crate::environment::Environment;
use crate::process::{self, Ledger, Program};

const SERVICE: &str = ".service";
/// For a query that a healthy systemd responds to at once.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct Systemd {
    pub ledger: Arc<Ledger>,
    /// systemctl.
    pub program: PathBuf,
}

#[async_trait]
impl Backend for Systemd {
    fn schema(&self) -> BackendSchema {
        super::schema("systemd")
    }

    async fn run(&self, call: Call) -> Finish {
        match call.action.as_str() {
            "start" | "stop" | "restart" | "reload" | "enable" | "disable" | "status" => {}
            other => return Finish::failed(None, format!("backend `systemd` has no action `{other}`")),
        }
        let Some(unit) = text(&call.params, "unit") else {
            return Finish::failed(None, "param `unit` is missing");
        };
        if matches!(call.action.as_str(), "start" | "restart" | "reload") {
            let asked = self.is_stale(unit, &call.environment);
            let Some(is_stale) = call.cancel.run_until_cancelled(asked).await else {
                return Finish::cancelled(None);
            };
            if is_stale {
                let reload = manager(&self.program, &["daemon-reload"]);
                let finish = process::run(reload, &call, &self.ledger).await;
                if finish.verdict != Verdict::Succeeded {
                    return finish;
                }
            }
        }
        let mut program = systemctl(&self.program, &call.action, unit);
        // Otherwise the agent would wait for systemctl before it stops, and systemctl for the agent to have stopped.
        if matches!(call.action.as_str(), "stop" | "restart") && is_own(unit) {
            program.args.insert(0, "--no-block".to_owned());
        }
        process::run(program, &call, &self.ledger).await
    }
}

impl Systemd {
    /// Returns whether the unit's file has changed since systemd read it.
    async fn is_stale(&self, unit: &str, environment: &Environment) -> bool {
        let show = ["show", "--property=NeedDaemonReload", "--value", "--", unit];
        let asked = Command::new(&self.program)
            .args(manager(&self.program, &show).args)
            .env_clear()
            .envs(environment.iter())
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .output();
        // If systemctl cannot return it, the action itself will report why.
        let answer = tokio::time::timeout(PATIENCE, asked).await;
        answer.is_ok_and(|answer| answer.is_ok_and(|answer| answer.stdout.trim_ascii() == b"yes"))
    }
}

/// Returns whether a unit is the service that this process belongs to.
fn is_own(unit: &str) -> bool {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    service_of(&groups).is_some_and(|own| own == unit || own.strip_suffix(SERVICE) == Some(unit))
}

/// Returns the innermost service in the paths of control groups.
fn service_of(groups: &str) -> Option<&str> {
    let mut paths = groups.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.find_map(|path| path.rsplit('/').find(|part| part.ends_with(SERVICE)))
}

/// Without password prompts, and without cutting lines to the width of a terminal.
pub(super) fn systemctl(program: &Path, verb: &str, unit: &str) -> Program {
    manager(program, &["--full", verb, "--", unit])
}

fn manager(program: &Path, args: &[&str]) -> Program {
    let args = ["--no-pager", "--no-ask-password"].into_iter().chain(args.iter().copied());
    let args = args.map(str::to_owned).collect();
    Program { name: program.to_string_lossy().into_owned(), args, ..Program::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_of_a_process_is_found_in_its_control_groups() {
        let cases = [
            ("0::/system.slice/downbeat-agent.service\n", Some("downbeat-agent.service")),
            (
                "9:name=systemd:/system.slice/a.service\n8:pids:/\n0::/system.slice/a.service/downbeat/x.1\n",
                Some("a.service"),
            ),
            ("0::/user.slice/user-0.slice/user@0.service/app.slice/a.service\n", Some("a.service")),
            ("8:pids:/\n0::/user.slice/user-0.slice/session-1.scope\n", None),
            ("", None),
        ];
        for (groups, service) in cases {
            assert_eq!(service_of(groups), service, "{groups}");
        }
    }
}
