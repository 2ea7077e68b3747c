//! The backend `systemd` with a program that stands in for systemctl.

mod support;

use downbeat_backends::{Finish, Systemd};
use downbeat_core::execution::Verdict;
use serde_json::json;
use support::Bench;

#[tokio::test]
async fn every_action_is_systemctls_own_with_the_unit_after_the_end_of_options() {
    let bench = Bench::new();
    let stand_in = bench.stand_in("systemctl");
    let systemd = Systemd { ledger: bench.ledger.clone(), program: stand_in.program.clone() };
    for action in ["start", "stop", "restart", "reload", "enable", "disable", "status"] {
        for unit in ["nginx", r"dev-disk-by\x2duuid@a.service"] {
            assert_eq!(bench.run(&systemd, action, json!({"unit": unit})).await, Finish::succeeded());
            assert_eq!(stand_in.args(), ["--no-pager", "--no-ask-password", "--full", action, "--", unit]);
        }
    }
}

#[tokio::test]
async fn the_status_of_what_is_not_active_fails_with_systemctls_code() {
    let bench = Bench::new();
    let stand_in = bench.stand_in("systemctl");
    stand_in.exits_with(3);
    let systemd = Systemd { ledger: bench.ledger.clone(), program: stand_in.program.clone() };
    let finish = bench.run(&systemd, "status", json!({"unit": "nginx"})).await;
    assert_eq!(finish, Finish::failed(Some(3), "exited with code 3"));
    assert_eq!(bench.stdout(), "said\n");
}

#[tokio::test]
async fn cancelling_ends_systemctl() {
    let bench = Bench::new();
    let stand_in = bench.stand_in("systemctl");
    stand_in.waits();
    let systemd = Systemd { ledger: bench.ledger.clone(), program: stand_in.program.clone() };
    let finish = bench.cancel_when_ready(&systemd, "restart", json!({"unit": "nginx"})).await;
    assert_eq!(finish.verdict, Verdict::Cancelled);
    assert_eq!(bench.alive(), 0);
}
