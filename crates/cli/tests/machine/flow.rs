//! Steps over several machines, checked with the machines' own records and their order.

use downbeat_testbed::until;
use serde_json::Value;

use crate::host::Host;
use crate::site::Site;

const HELLO: &str = "downbeat-hello";
const HOLD: &str = "run/downbeat-hello.hold";
const ENABLED: &str = "etc/systemd/system/multi-user.target.wants/downbeat-hello.service";

const ROLL_OUT: &str = "
tasks:
  - tasks:
      - {backend: apt, action: update}
      - {backend: apt, action: install, params: {package: downbeat-hello}}
      - {backend: systemd, action: enable, params: {unit: downbeat-hello}}
  - {backend: systemd, action: start, params: {unit: downbeat-hello}}
";

/// When the package lists were read, the package was configured, the unit enabled and the service started.
fn times(host: &Host) -> [u64; 4] {
    let lists = std::fs::read_dir(host.path("var/lib/apt/lists")).unwrap().flatten();
    let mut names = lists.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let list = names.find(|name| name.ends_with("_Packages")).expect("apt read its lists");
    let messages = host.journal(HELLO);
    let when = |words: &str| messages.iter().find(|(_, message)| message == words).expect(words).0;
    [
        host.changed(&format!("var/lib/apt/lists/{list}")).expect("the list is there"),
        when("hello 1.0 configured"),
        host.changed(ENABLED).expect("the unit is enabled"),
        when("hello 1.0 started"),
    ]
}

fn status<'v>(view: &'v Value, step: &str, host: &Host) -> &'v str {
    view["results"][step][&host.name]["status"].as_str().unwrap_or("-")
}

#[test]
fn a_pipeline_runs_ahead_on_a_fast_machine_and_the_step_after_it_waits_for_all() {
    let site = Site::of(2);
    let [fast, slow] = &site.hosts[..] else { unreachable!() };
    slow.write(HOLD, "");
    let run = site.submit_file(ROLL_OUT);
    until("the slow machine to be in the middle of its install", || {
        (!slow.processes("downbeat-hello.postinst").is_empty()).then_some(())
    });
    until("the fast machine to be ahead", || {
        (status(&site.show(&run), "2", fast) == "succeeded").then_some(())
    });
    assert_eq!(status(&site.show(&run), "1", slow), "running");
    assert_eq!(
        fast.messages(HELLO),
        ["hello 1.0 configured"],
        "not started: the other machine is not yet there"
    );
    slow.remove(HOLD);
    let view = site.ended(&run);
    assert_eq!(view["status"], "completed", "{view:#}");

    for host in [fast, slow] {
        until("the service", || host.messages(HELLO).contains(&"hello 1.0 started".to_owned()).then_some(()));
        assert_eq!(host.package(HELLO), "install ok installed 1.0");
        assert_eq!(host.messages(HELLO), ["hello 1.0 configured", "hello 1.0 started"], "each once");
        assert!(times(host).is_sorted(), "{}: {:?}", host.name, times(host));
    }
    let [fast, slow] = [times(fast), times(slow)];
    assert!(fast[2] < slow[1], "the fast one did not wait within the pipeline: {fast:?} {slow:?}");
    assert!(fast[3] > slow[2], "nor began before the other had ended it: {fast:?} {slow:?}");
}

#[test]
fn what_fails_on_one_machine_is_undone_on_all() {
    let site = Site::of(2);
    let [good, bad] = &site.hosts[..] else { unreachable!() };
    bad.write(
        "etc/systemd/system/downbeat-hello.service.d/bad.conf",
        "[Service]\nType=oneshot\nExecStart=\nExecStart=/bin/false\n",
    );
    let run = site.submit_file(&format!(
        "{ROLL_OUT}
  - condition: on_failure
    tasks:
      - {{backend: apt, action: remove, params: {{package: downbeat-hello}}}}
"
    ));
    let view = site.ended(&run);
    assert_eq!(view["status"], "failed", "{view:#}");
    assert_eq!((status(&view, "3", good), status(&view, "3", bad)), ("succeeded", "failed"), "{view:#}");
    for host in [good, bad] {
        assert_eq!(status(&view, "4", host), "succeeded", "{view:#}");
        assert_eq!(host.package(HELLO), "deinstall ok config-files 1.0");
    }
    assert_eq!(
        good.messages(HELLO),
        ["hello 1.0 configured", "hello 1.0 started", "hello 1.0 stopped"],
        "it was stopped before it was removed"
    );
}
