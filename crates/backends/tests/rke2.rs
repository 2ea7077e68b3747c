//! The backend `rke2`. There is no RKE2 here: programs stand in for systemctl and for the installer.

mod support;

use downbeat_backends::{Finish, Rke2};
use downbeat_core::execution::Verdict;
use serde_json::json;
use support::Bench;

#[tokio::test]
async fn rke2_argv_as_a_stand_in_for_systemctl_and_the_installer_saw_it() {
    let bench = Bench::new();
    let (systemctl, installer) = (bench.stand_in("systemctl"), bench.stand_in("rke2-install.sh"));
    let rke2 = Rke2 {
        ledger: bench.ledger.clone(),
        systemctl: systemctl.program.clone(),
        installer: Some(installer.program.clone()),
    };
    for action in ["start", "stop", "status"] {
        for (params, unit) in [
            (json!({}), "rke2-server.service"),
            (json!({"mode": "server"}), "rke2-server.service"),
            (json!({"mode": "agent"}), "rke2-agent.service"),
        ] {
            assert_eq!(bench.run(&rke2, action, params).await, Finish::succeeded());
            assert_eq!(systemctl.args(), ["--no-pager", "--no-ask-password", "--full", action, "--", unit]);
        }
    }
    for (params, expected) in [
        (json!({}), vec![("TYPE", "server")]),
        (json!({"mode": "agent", "channel": "stable"}), vec![("CHANNEL", "stable"), ("TYPE", "agent")]),
        (
            json!({"version": "v1.31.2+rke2r1", "artifact_path": "/srv/rke2"}),
            vec![("ARTIFACT_PATH", "/srv/rke2"), ("TYPE", "server"), ("VERSION", "v1.31.2+rke2r1")],
        ),
    ] {
        assert_eq!(bench.run(&rke2, "install", params).await, Finish::succeeded());
        let seen = installer.seen().unwrap();
        assert_eq!(seen.argv.len(), 1);
        let variables: Vec<(&str, &str)> = seen
            .environment
            .iter()
            .filter_map(|(name, value)| Some((name.strip_prefix("INSTALL_RKE2_")?, value.as_str())))
            .collect();
        assert_eq!(variables, expected);
    }
    assert_eq!(systemctl.seen(), None);
}

#[tokio::test]
async fn without_an_installer_it_is_said_where_to_put_one() {
    let bench = Bench::new();
    let rke2 = Rke2 {
        ledger: bench.ledger.clone(),
        systemctl: bench.stand_in("systemctl").program,
        installer: None,
    };
    assert_eq!(
        bench.run(&rke2, "install", json!({})).await,
        Finish::failed(
            None,
            "this host has no installer of RKE2; put RKE2's install.sh at /usr/local/bin/rke2-install.sh"
        )
    );
}

#[tokio::test]
async fn cancelling_ends_the_installer() {
    let bench = Bench::new();
    let installer = bench.stand_in("rke2-install.sh");
    installer.waits();
    let systemctl = bench.stand_in("systemctl").program;
    let rke2 = Rke2 { ledger: bench.ledger.clone(), systemctl, installer: Some(installer.program.clone()) };
    let finish = bench.cancel_when_ready(&rke2, "install", json!({})).await;
    assert_eq!(finish.verdict, Verdict::Cancelled);
    assert_eq!(bench.alive(), 0);
}
