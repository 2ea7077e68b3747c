//! The backend `apt` with a program that stands in for apt-get.

mod support;

use downbeat_backends::{Apt, Finish};
use downbeat_core::execution::Verdict;
use serde_json::json;
use support::Bench;

const OPTIONS: [&str; 12] = [
    "-q",
    "-y",
    "-o",
    "Dpkg::Use-Pty=0",
    "-o",
    "Dpkg::Options::=--force-confold",
    "-o",
    "DPkg::Lock::Timeout=600",
    "-o",
    "APT::Cmd::Pattern-Only=true",
    "-o",
    "APT::Update::Error-Mode=any",
];

#[tokio::test]
async fn packages_come_after_the_end_of_options_and_nobody_is_asked() {
    let bench = Bench::new();
    let stand_in = bench.stand_in("apt-get");
    let apt = Apt { ledger: bench.ledger.clone(), program: stand_in.program.clone() };
    for (action, params, expected) in [
        ("install", json!({"package": "curl"}), &["install", "--", "curl"][..]),
        ("install", json!({"package": ["g++", "vim=2:9.0-1"]}), &["install", "--", "g++", "vim=2:9.0-1"]),
        ("remove", json!({"package": "curl"}), &["remove", "--", "curl"]),
        ("remove", json!({"package": "curl", "purge": false}), &["remove", "--", "curl"]),
        ("remove", json!({"package": "curl", "purge": true}), &["purge", "--", "curl"]),
        ("update", json!({}), &["update"]),
        ("upgrade", json!({}), &["upgrade"]),
    ] {
        assert_eq!(bench.run(&apt, action, params.clone()).await, Finish::succeeded());
        let seen = stand_in.seen().unwrap();
        assert_eq!(seen.argv[1..], [&OPTIONS[..], expected].concat(), "{action} {params}");
        assert_eq!(seen.environment["DEBIAN_FRONTEND"], "noninteractive");
        assert_eq!(seen.environment["APT_LISTCHANGES_FRONTEND"], "none");
        assert_eq!(seen.input, "");
    }
}

#[tokio::test]
async fn the_exit_code_of_apt_get_is_reported() {
    let bench = Bench::new();
    let stand_in = bench.stand_in("apt-get");
    stand_in.exits_with(100);
    let apt = Apt { ledger: bench.ledger.clone(), program: stand_in.program.clone() };
    let finish = bench.run(&apt, "update", json!({})).await;
    assert_eq!(finish, Finish::failed(Some(100), "exited with code 100"));
    assert_eq!(bench.stdout(), "said\n");
}

#[tokio::test]
async fn cancelling_ends_apt_get() {
    let bench = Bench::new();
    let stand_in = bench.stand_in("apt-get");
    stand_in.waits();
    let apt = Apt { ledger: bench.ledger.clone(), program: stand_in.program.clone() };
    let finish = bench.cancel_when_ready(&apt, "upgrade", json!({})).await;
    assert_eq!(finish.verdict, Verdict::Cancelled);
    assert_eq!(bench.alive(), 0);
}
