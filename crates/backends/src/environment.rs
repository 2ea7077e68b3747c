//! Owns the environment that work starts with: a short list of the agent's own variables, and those that its settings
//! name. The agent's other variables, including secrets, are not passed on.

use std::ffi::{OsStr, OsString};
use std::sync::Arc;

/// Names the attempt that a process belongs to.
pub(crate) const EXECUTION: &str = "DOWNBEAT_EXECUTION";
/// Names the file in which a program sets outputs for later tasks.
pub(crate) const OUTPUT: &str = "DOWNBEAT_OUTPUT";

pub const JOB_VARIABLES: [&str; 2] = [EXECUTION, OUTPUT];

/// Variables of the agent that all work gets: search path, user, language and time zone.
const PASSED: [&str; 10] =
    ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR"];

/// Variables that a service manager sets for the agent alone. They are never passed on.
const NEVER: [&str; 12] = [
    "NOTIFY_SOCKET",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "LISTEN_PID",
    "LISTEN_PIDFDID",
    "MAINPID",
    "MANAGERPID",
    "SYSTEMD_EXEC_PID",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
];

/// For an agent without a search path.
pub(crate) const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The environment of work. Created once, when the agent starts; copies share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment(Arc<[(OsString, OsString)]>);

impl Environment {
    /// Returns the variables of this process that work gets. `pass` names more of them: `NAME`, or `PREFIX*`.
    pub fn of_process(pass: &[String]) -> Self {
        Self::of(std::env::vars_os(), pass)
    }

    /// Returns those of `variables` that work gets.
    pub fn of(variables: impl IntoIterator<Item = (OsString, OsString)>, pass: &[String]) -> Self {
        let mut passed: Vec<(OsString, OsString)> =
            variables.into_iter().filter(|(name, _)| is_passed(name, pass)).collect();
        if !passed.iter().any(|(name, value)| name == "PATH" && !value.is_empty()) {
            passed.retain(|(name, _)| name != "PATH");
            passed.push(("PATH".into(), DEFAULT_PATH.into()));
        }
        Self(passed.into())
    }

    /// Returns why an entry of `pass` is invalid.
    pub fn refused(entry: &str) -> Option<String> {
        let name = entry.strip_suffix('*').unwrap_or(entry);
        if name.contains(['=', '*', '\0', ' ']) || entry.is_empty() {
            return Some(format!("`{entry}` is not the name of a variable; write NAME or PREFIX_*"));
        }
        if is_reserved(entry) {
            return Some(format!("`{entry}` belongs to the agent and is never passed on; remove it"));
        }
        None
    }

    pub fn iter(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.0.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }
}

impl Default for Environment {
    /// A search path and nothing else.
    fn default() -> Self {
        Self::of([], &[])
    }
}

fn is_reserved(name: &str) -> bool {
    NEVER.contains(&name) || JOB_VARIABLES.contains(&name)
}

fn is_passed(name: &OsStr, pass: &[String]) -> bool {
    // A name that is not UTF-8 cannot be written in the settings.
    let Some(name) = name.to_str() else { return false };
    if is_reserved(name) {
        return false;
    }
    let matches = |pattern: &str| match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == pattern,
    };
    PASSED.into_iter().any(matches) || pass.iter().any(|pattern| matches(pattern))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(variables: &[(&str, &str)], pass: &[&str]) -> Vec<String> {
        let variables = variables.iter().map(|(name, value)| (name.into(), value.into()));
        let pass: Vec<String> = pass.iter().map(|name| (*name).to_owned()).collect();
        let passed = Environment::of(variables, &pass);
        passed.iter().map(|(name, value)| format!("{}={}", name.display(), value.display())).collect()
    }

    const AGENT: [(&str, &str); 11] = [
        ("PATH", "/bin"),
        ("HOME", "/root"),
        ("LANG", "de_DE.UTF-8"),
        ("LC_TIME", "C"),
        ("AWS_SECRET_ACCESS_KEY", "canary"),
        ("AWS_REGION", "eu"),
        ("HTTPS_PROXY", "http://joe:canary@proxy"),
        ("NOTIFY_SOCKET", "/run/systemd/notify"),
        ("INVOCATION_ID", "1"),
        ("DOWNBEAT_STORE", "postgres://joe:canary@db/x"),
        ("DOWNBEAT_EXECUTION", "another.1"),
    ];

    #[test]
    fn only_a_short_list_is_passed_unless_the_settings_name_more() {
        let usual = ["PATH=/bin", "HOME=/root", "LANG=de_DE.UTF-8", "LC_TIME=C"];
        assert_eq!(passed(&AGENT, &[]), usual);
        let more = [&usual[..], &["AWS_REGION=eu"]].concat();
        assert_eq!(passed(&AGENT, &["AWS_REGION", "AWS"]), more);
        assert_eq!(passed(&AGENT, &["AWS_*"]).len(), usual.len() + 2);
    }

    #[test]
    fn variables_for_the_agent_alone_are_never_passed() {
        let all = passed(&AGENT, &["*", "NOTIFY_SOCKET"]);
        assert_eq!(all.len(), AGENT.len() - 3, "{all:?}");
        assert!(!all.iter().any(|one| one.starts_with("NOTIFY_") || one.starts_with("DOWNBEAT_EXECUTION")));
        assert!(Environment::refused("NOTIFY_SOCKET").unwrap().contains("never passed on"));
        assert!(Environment::refused("A=b").unwrap().contains("write NAME or PREFIX_*"));
        assert_eq!(Environment::refused("AWS_*"), None);
    }

    #[test]
    fn an_agent_without_a_search_path_gives_work_the_usual_one() {
        assert_eq!(passed(&[], &[]), [format!("PATH={DEFAULT_PATH}")]);
        assert_eq!(passed(&[("PATH", "")], &[]), [format!("PATH={DEFAULT_PATH}")]);
    }
}
