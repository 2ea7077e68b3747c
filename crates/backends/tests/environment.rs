//! Which variables reach the programs that backends start. This process has many more, for example cargo's.

mod support;

use std::collections::BTreeSet;

use downbeat_backends::{
    Apt, Backend, Declared, DeclaredBackend, Environment, Exec, Finish, JOB_VARIABLES, Rke2, Systemd,
};
use serde_json::{Value, json};
use support::{Bench, StandIn};

/// The agent's own variables, and which of them it passes.
fn environment(pass: &[&str]) -> Environment {
    let own = [
        ("PATH", "/usr/bin:/bin"),
        ("HOME", "/h"),
        ("AWS_SECRET_ACCESS_KEY", "canary"),
        ("NOTIFY_SOCKET", "x"),
    ];
    let pass: Vec<String> = pass.iter().map(|name| (*name).to_owned()).collect();
    Environment::of(own.map(|(name, value)| (name.into(), value.into())), &pass)
}

async fn names(
    bench: &Bench,
    backend: &dyn Backend,
    action: &str,
    given: Value,
    program: &StandIn,
) -> BTreeSet<String> {
    assert_eq!(bench.run(backend, action, given).await, Finish::succeeded(), "{action}");
    let seen = program.seen().expect("it was called").environment;
    assert!(!seen.values().any(|value| value == "canary"), "{seen:?}");
    seen.into_keys().collect()
}

#[tokio::test]
async fn programs_get_a_clean_environment_whichever_backend_starts_them() {
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some(), "this process has something to hide");
    let mut bench = Bench::new();
    bench.environment = environment(&[]);
    let program = bench.stand_in("program");
    let own = |more: &[&str]| -> BTreeSet<String> {
        ["PATH", "HOME", "DOWNBEAT_EXECUTION"].iter().chain(more).map(|name| (*name).to_owned()).collect()
    };
    let (ledger, path) = (bench.ledger.clone(), program.program.clone());

    let exec = Exec { ledger: ledger.clone() };
    let given = json!({"command": [path], "env": {"COLOUR": "blue"}});
    assert_eq!(names(&bench, &exec, "run", given, &program).await, own(&["COLOUR"]));

    let apt = Apt { ledger: ledger.clone(), program: path.clone() };
    let expected = own(&["DEBIAN_FRONTEND", "APT_LISTCHANGES_FRONTEND"]);
    assert_eq!(names(&bench, &apt, "update", json!({}), &program).await, expected);

    let systemd = Systemd { ledger: ledger.clone(), program: path.clone() };
    for action in ["status", "restart"] {
        assert_eq!(names(&bench, &systemd, action, json!({"unit": "nginx"}), &program).await, own(&[]));
    }

    let rke2 = Rke2 { ledger: ledger.clone(), systemctl: path.clone(), installer: Some(path.clone()) };
    assert_eq!(names(&bench, &rke2, "install", json!({}), &program).await, own(&["INSTALL_RKE2_TYPE"]));

    let declared = json!({"actions": {"now": {"argv": [path], "env": {"FIXED": "yes"}}}});
    let declared = DeclaredBackend { declared: Declared::read("backup", &declared).unwrap(), ledger };
    assert_eq!(names(&bench, &declared, "now", json!({}), &program).await, own(&["FIXED"]));
}

#[tokio::test]
async fn a_task_may_say_what_the_agent_passes_differently() {
    let mut bench = Bench::new();
    bench.environment = environment(&["AWS_*"]);
    let program = bench.stand_in("program");
    let exec = Exec { ledger: bench.ledger.clone() };
    let given =
        json!({"command": [program.program], "env": {"AWS_SECRET_ACCESS_KEY": "own", "HOME": "/elsewhere"}});
    assert_eq!(bench.run(&exec, "run", given).await, Finish::succeeded());
    let seen = program.seen().unwrap().environment;
    assert_eq!((seen["AWS_SECRET_ACCESS_KEY"].as_str(), seen["HOME"].as_str()), ("own", "/elsewhere"));
}

#[tokio::test]
async fn all_variables_that_a_job_gets_from_downbeat_are_known_by_name() {
    let mut bench = Bench::new();
    bench.environment = environment(&[]);
    bench.values = Some(bench.root().join("values"));
    let program = bench.stand_in("program");
    let exec = Exec { ledger: bench.ledger.clone() };
    assert_eq!(bench.run(&exec, "run", json!({"command": [program.program]})).await, Finish::succeeded());
    let seen = program.seen().unwrap().environment;
    let ours: BTreeSet<&str> =
        seen.keys().map(String::as_str).filter(|name| name.starts_with("DOWNBEAT_")).collect();
    assert_eq!(ours, BTreeSet::from(JOB_VARIABLES));
}
