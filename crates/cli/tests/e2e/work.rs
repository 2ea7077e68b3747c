//! Compares `node work` with the running processes.

use downbeat_testbed::{Dev, processes, until};
use serde_json::json;

#[test]
fn a_node_shows_what_it_holds_under_the_name_that_its_process_has() {
    let dev = Dev::start_with(&["--nodes", "1"]);
    let work = || dev.run(&["node", "work", "node-1", "-o", "json"]).json();
    assert_eq!((&work()["held"], &work()["slots"]["free"]), (&json!([]), &json!(4)));
    let run = dev.submit(&["exec", "run", "--command", "sleep 600"]);
    let shown = until("it to run", || Some(work()).filter(|work| work["held"][0]["status"] == "running"));
    let held = &shown["held"][0];
    assert_eq!((&held["run"], &held["step"], &held["attempt"]), (&json!(run), &json!(0), &json!(1)));
    assert_eq!(shown["slots"], json!({"total": 4, "free": 3}));
    let name = held["name"].as_str().unwrap();
    assert_eq!(processes::of_attempt(name), 1, "{name}");
    let page = dev.run(&["node", "work", "node-1"]).ok();
    assert!(page.contains("3 of 4 free") && page.contains(name) && page.contains("EXPIRES IN"), "{page}");
    // Heartbeats renew the lease, so it does not expire.
    let expires = held["expires_at"].clone();
    until("a renewal", || (work()["held"][0]["expires_at"] != expires).then_some(()));

    dev.run(&["run", "cancel", &run]).ok();
    let shown = until("its end", || Some(work()).filter(|work| work["held"] == json!([])));
    assert_eq!((&shown["totals"]["cancelled"], &shown["slots"]["free"]), (&json!(1), &json!(4)));
    assert_eq!(processes::of_attempt(name), 0);
    let unknown = dev.run(&["node", "work", "nobody"]);
    assert_eq!(unknown.code, 4, "{unknown:?}");
}
