//! Units: services receive the actions that jobs request from systemd.

use downbeat_testbed::until;

use crate::host::Host;
use crate::site::Site;

const HELLO: &str = "downbeat-hello";

fn logs(host: &Host, expected: &[&str]) {
    let messages = until("the messages of the service", || {
        let messages = host.messages(HELLO);
        (messages.len() >= expected.len()).then_some(messages)
    });
    assert_eq!(messages, expected);
}

#[test]
fn a_unit_is_started_reloaded_restarted_and_stopped() {
    let site = Site::of(1);
    let host = site.host();
    site.task(&["apt", "update"]).ok();
    site.task(&["apt", "install", "--package", HELLO]).ok();
    let mut expected = vec!["hello 1.0 configured"];
    let unit = |action: &str| site.task(&["systemd", action, "--unit", HELLO]);

    let output = unit("status").failed(3);
    assert!(output.contains("inactive (dead)"), "{output}");
    // Twice is the same.
    unit("stop").ok();
    for _ in 0..2 {
        unit("start").ok();
    }
    expected.push("hello 1.0 started");
    logs(host, &expected);
    let output = unit("status").ok();
    assert!(output.contains("active (running)"), "{output}");
    unit("reload").ok();
    expected.push("hello 1.0 reloaded");
    logs(host, &expected);
    unit("restart").ok();
    expected.extend(["hello 1.0 stopped", "hello 1.0 started"]);
    logs(host, &expected);
    unit("stop").ok();
    expected.push("hello 1.0 stopped");
    logs(host, &expected);
    let output = unit("status").failed(3);
    assert!(output.contains("inactive (dead)"), "{output}");
    // No service is running that could reload.
    unit("reload").failed(1);
}

#[test]
fn a_unit_is_enabled_and_disabled() {
    let site = Site::of(1);
    let host = site.host();
    site.task(&["apt", "update"]).ok();
    site.task(&["apt", "install", "--package", HELLO]).ok();
    let enabled = || {
        let output = host.run(&["systemctl", "is-enabled", HELLO]);
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    for (action, state) in [("enable", "enabled"), ("disable", "disabled")] {
        for _ in 0..2 {
            site.task(&["systemd", action, "--unit", HELLO]).ok();
            assert_eq!(enabled(), state);
        }
    }
    assert_eq!(host.messages(HELLO), ["hello 1.0 configured"], "that starts nothing");
}

#[test]
fn an_unknown_unit_fails_with_systemds_own_words() {
    let site = Site::of(1);
    for (action, code) in
        [("start", 5), ("stop", 5), ("restart", 5), ("reload", 5), ("enable", 1), ("status", 4)]
    {
        let output = site.task(&["systemd", action, "--unit", "nonesuch"]).failed(code);
        assert!(output.contains("nonesuch.service"), "{action}: {output}");
    }
}

#[test]
fn a_service_that_does_not_start_fails_its_task() {
    let site = Site::of(1);
    site.host().write("etc/systemd/system/lame.service", "[Service]\nType=oneshot\nExecStart=/bin/false\n");
    let output = site.task(&["systemd", "start", "--unit", "lame"]).failed(1);
    assert!(output.contains("lame.service"), "{output}");
}

#[test]
fn a_unit_whose_file_was_changed_is_restarted_as_it_is_written_now() {
    let site = Site::of(1);
    let host = site.host();
    let write = |word: &str| {
        let unit =
            format!("[Service]\nExecStart=/bin/sh -c 'logger -t downbeat-changed {word}; exec sleep 1000'\n");
        let path = "/etc/systemd/system/downbeat-changed.service";
        site.task(&["file", "write", "--path", path, "--content", &unit]).ok();
    };
    let unit = |action: &str| site.task(&["systemd", action, "--unit", "downbeat-changed"]).ok();
    for (action, word) in [("start", "first"), ("restart", "second")] {
        write(word);
        unit(action);
        until("the messages of the service", || {
            host.messages("downbeat-changed").contains(&word.to_owned()).then_some(())
        });
    }
    assert_eq!(host.messages("downbeat-changed"), ["first", "second"]);
}
