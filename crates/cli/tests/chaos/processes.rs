//! Finds processes: the children of one, and those that executions of a site left.

use std::fs;

use crate::support::is_alive;

fn all() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

pub(crate) fn children(parent: i32) -> Vec<i32> {
    let is_child = |pid: &i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let rest = stat.rsplit_once(") ").map(|(_, rest)| rest.to_owned()).unwrap_or_default();
        rest.split(' ').nth(1).and_then(|text| text.parse().ok()) == Some(parent)
    };
    all().filter(is_child).collect()
}

/// The processes that carry out executions of a site: pid, and `execution.attempt`.
pub(crate) fn of_executions(site: &str) -> Vec<(i32, String)> {
    let mine = format!("DOWNBEAT_TEST_SITE={site}");
    let mut found = Vec::new();
    for pid in all() {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let environment = String::from_utf8_lossy(&environment);
        let mut variables = environment.split('\0');
        if !variables.clone().any(|variable| variable == mine) || !is_alive(pid) {
            continue;
        }
        if let Some(execution) = variables.find_map(|variable| variable.strip_prefix("DOWNBEAT_EXECUTION=")) {
            found.push((pid, execution.to_owned()));
        }
    }
    found
}
