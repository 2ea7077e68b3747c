//! Packages: dpkg's log matches the jobs, also when apt fails, is cancelled or was interrupted.

use downbeat_testbed::until;

use crate::host::Host;
use crate::site::Site;

const HELLO: &str = "downbeat-hello";
const HOLD: &str = "run/downbeat-hello.hold";
const CONFIGURATION: &str = "etc/downbeat-hello.conf";
const POSTINST: &str = "downbeat-hello.postinst";

/// Returns a machine that has the package lists.
fn updated() -> Site {
    let site = Site::of(1);
    site.task(&["apt", "update"]).ok();
    site
}

/// Waits until a package is being configured, which goes on until the hold is gone.
fn being_configured(host: &Host) {
    until("the package to be configured", || (!host.processes(POSTINST).is_empty()).then_some(()));
}

fn nothing_of_apt_runs(host: &Host) {
    for words in ["apt-get", "dpkg", POSTINST] {
        let found = host.processes(words);
        assert!(found.is_empty(), "still running: {found:?}");
    }
}

#[test]
fn a_package_is_installed_upgraded_and_removed() {
    let site = Site::of(1);
    let host = site.host();
    // Before the first update nothing is known.
    site.task(&["apt", "install", "--package", HELLO]).failed(100);
    site.task(&["apt", "update"]).ok();
    let output = site.task(&["apt", "install", "--package", HELLO]).ok();
    assert!(output.contains("hello 1.0 is being configured"), "{output}");
    assert_eq!(host.package(HELLO), "install ok installed 1.0");
    assert!(host.dpkg_log(HELLO).contains(&"status installed downbeat-hello:all 1.0".to_owned()));

    host.publish("second");
    site.task(&["apt", "upgrade"]).ok();
    assert_eq!(host.package(HELLO), "install ok installed 1.0", "apt does not know the new one");
    site.task(&["apt", "update"]).ok();
    site.task(&["apt", "upgrade"]).ok();
    assert_eq!(host.package(HELLO), "install ok installed 2.0");
    assert_eq!(host.read(CONFIGURATION), "greeting of 2.0\n");

    site.task(&["apt", "remove", "--package", HELLO]).ok();
    assert_eq!(host.package(HELLO), "deinstall ok config-files 2.0");
    site.task(&["apt", "remove", "--package", HELLO, "--purge", "true"]).ok();
    assert_eq!(host.package(HELLO), "");
    site.task(&["apt", "remove", "--package", HELLO]).ok();
}

#[test]
fn a_package_that_is_there_is_not_installed_again() {
    let site = updated();
    site.task(&["apt", "install", "--package", HELLO]).ok();
    let log = site.host().dpkg_log(HELLO);
    site.task(&["apt", "install", "--package", HELLO]).ok();
    assert_eq!(site.host().dpkg_log(HELLO), log);
}

#[test]
fn a_version_can_be_asked_for() {
    let site = Site::of(1);
    site.host().publish("second");
    site.task(&["apt", "update"]).ok();
    site.task(&["apt", "install", "--package", "downbeat-hello=1.0"]).ok();
    assert_eq!(site.host().package(HELLO), "install ok installed 1.0");
}

#[test]
fn configuration_that_was_changed_on_the_host_survives_an_upgrade() {
    let site = updated();
    let host = site.host();
    site.task(&["apt", "install", "--package", HELLO]).ok();
    host.write(CONFIGURATION, "a greeting of our own\n");
    host.publish("second");
    site.task(&["apt", "update"]).ok();
    site.task(&["apt", "upgrade"]).ok();
    assert_eq!(host.package(HELLO), "install ok installed 2.0");
    assert_eq!(host.read(CONFIGURATION), "a greeting of our own\n");
}

#[test]
fn an_unknown_package_installs_nothing() {
    let site = updated();
    let words = ["apt", "install", "--package", HELLO, "--package", "downbeat-nonesuch"];
    let output = site.task(&words).failed(100);
    assert!(output.contains("Unable to locate package downbeat-nonesuch"), "{output}");
    assert_eq!(site.host().package(HELLO), "");
    // Nor is it taken for a pattern.
    site.task(&["apt", "install", "--package", "downbeat.hello"]).failed(100);
    assert_eq!(site.host().package(HELLO), "");
}

#[test]
fn a_source_that_is_away_fails_an_update() {
    let site = Site::of(1);
    site.host().publish("nowhere");
    let output = site.task(&["apt", "update"]).failed(100);
    assert!(output.contains("/repo/current"), "{output}");
}

#[test]
fn a_package_that_cannot_be_configured_says_why_and_can_be_removed() {
    let site = updated();
    let output = site.task(&["apt", "install", "--package", "downbeat-broken"]).failed(100);
    assert!(output.contains("downbeat-broken cannot be configured"), "{output}");
    assert!(output.contains("returned error exit status 3"), "{output}");
    assert_eq!(site.host().package("downbeat-broken"), "install ok half-configured 1.0");
    site.task(&["apt", "remove", "--package", "downbeat-broken"]).ok();
    site.task(&["apt", "install", "--package", HELLO]).ok();
}

#[test]
fn a_cancelled_install_leaves_nothing_running_and_the_next_one_completes_it() {
    let site = updated();
    let host = site.host();
    host.write(HOLD, "");
    let run = site.submit(&["apt", "install", "--package", HELLO]);
    being_configured(host);
    site.text(&["run", "cancel", &run]);
    assert_eq!(site.ended(&run)["status"], "cancelled");
    nothing_of_apt_runs(host);
    assert_ne!(host.package(HELLO), "install ok installed 1.0");

    host.remove(HOLD);
    site.task(&["apt", "install", "--package", HELLO]).ok();
    assert_eq!(host.package(HELLO), "install ok installed 1.0");
    assert_eq!(host.ok(&["dpkg", "--audit"]), "");
}

#[test]
fn an_install_waits_for_somebody_elses() {
    let site = updated();
    let host = site.host();
    host.write(HOLD, "");
    let mut other = host.spawn(&["apt-get", "install", "--yes", HELLO]);
    being_configured(host);
    let run = site.submit(&["apt", "install", "--package", HELLO]);
    // apt prints "Waiting for cache lock" only sometimes with `-q` (it reads an uninitialised flag). dpkg, which the
    // backend asks first, always names the lock.
    until("the run to find the lock taken", || {
        let is_refused = site.text(&["run", "logs", &run]).contains("lock was locked by another process");
        (is_refused && !host.processes("DPkg::Lock::Timeout").is_empty()).then_some(())
    });
    assert_eq!(
        host.dpkg_log(HELLO).last().map(String::as_str),
        Some("status half-configured downbeat-hello:all 1.0")
    );
    host.remove(HOLD);
    assert!(other.wait().unwrap().success(), "the other one was not disturbed");
    site.result(&run).ok();
    assert_eq!(host.messages(HELLO), ["hello 1.0 configured"], "once");
}

#[test]
fn a_package_whose_install_hung_and_timed_out_can_be_removed() {
    let site = updated();
    let host = site.host();
    host.write(HOLD, "");
    let run = site.submit_file(
        "tasks: [{backend: apt, action: install, params: {package: downbeat-hello}, timeout: 2s}]",
    );
    let result = site.result(&run);
    assert_eq!((result.status.as_str(), result.error.as_str()), ("failed", "timed out after 2s"));
    nothing_of_apt_runs(host);
    // It would hang again.
    site.task(&["apt", "remove", "--package", HELLO]).ok();
    assert_eq!(host.package(HELLO), "deinstall ok config-files 1.0");
}

#[test]
fn an_install_whose_agent_was_killed_is_done_again_by_the_next_life() {
    let site = updated();
    let host = site.host();
    host.write(HOLD, "");
    let run = site.submit(&["apt", "install", "--package", HELLO]);
    being_configured(host);
    let former = host.agent();
    host.ok(&["bash", "-c", &format!("kill -KILL {former}")]);
    until("systemd to start it again", || (![0, former].contains(&host.agent())).then_some(()));
    until("the lost attempt", || {
        let attempts = site.show(&run)["results"]["0"][&host.name]["attempts"].as_u64()?;
        (attempts == 2).then_some(())
    });
    being_configured(host);
    host.remove(HOLD);
    site.result(&run).ok();
    assert_eq!(host.package(HELLO), "install ok installed 1.0");
    assert_eq!(host.messages(HELLO), ["hello 1.0 configured"], "the first attempt was ended before it could");
}
