//! Clients that wait for a run: their cost for the server, the reasons they print, and Ctrl-C.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use downbeat_testbed::{Dev, Done, Process, until};
use nix::sys::signal::Signal;

/// Until the process handles SIGINT: before that it would just be killed by it.
pub(crate) fn until_it_handles_ctrl_c(process: &Process) {
    const SIGINT_BIT: u64 = 1 << (Signal::SIGINT as u64 - 1);
    let status = format!("/proc/{}/status", process.id());
    until("the process to handle SIGINT", || {
        let status = std::fs::read_to_string(&status).ok()?;
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?.trim().to_owned();
        (u64::from_str_radix(&caught, 16).unwrap() & SIGINT_BIT != 0).then_some(())
    });
}

#[test]
fn ctrl_c_while_waiting_exits_with_130_and_the_run_goes_on() {
    let dev = Dev::start();
    let sleep = ["--target", "all", "test", "sleep", "--duration", "1h"];
    let id = dev.submit(&sleep);
    let job = |how: &'static str| [&["job", "run", how][..], &sleep].concat();
    let waiters: [Vec<&str>; 6] = [
        vec!["run", "watch", &id],
        vec!["run", "watch", &id, "-o", "json"],
        vec!["run", "logs", &id, "-f"],
        job("--wait"),
        job("--watch"),
        [&["-o", "json"][..], &job("--wait")].concat(),
    ];
    for args in waiters {
        let waiting = dev.spawn(&args);
        until_it_handles_ctrl_c(&waiting);
        waiting.signal(Signal::SIGINT);
        let done = waiting.wait();
        assert_eq!(done.code, 130, "{args:?}: {done:?}");
        assert!(done.stderr.contains("the run continues; `downbeat run watch "), "{args:?}: {done:?}");
    }
    assert_eq!(dev.run_status(&id), "running");
}

/// How often the server was asked for a run.
fn reads_of_runs(dev: &Dev) -> u64 {
    let address = dev.http();
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let reads = text.lines().filter(|line| {
        line.starts_with("downbeat_http_requests_total{method=\"GET\",path=\"/api/v1/runs/{id}\",")
    });
    reads.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64).sum()
}

#[test]
fn a_large_run_is_read_a_few_times_however_much_happens_to_it() {
    let dev = Dev::start();
    let items: Vec<String> = (0..1_100).map(|item| item.to_string()).collect();
    let file = dev.write(
        "many.yaml",
        &format!("tasks: [{{name: each, for_each: [{}], backend: test, action: noop}}]\n", items.join(", ")),
    );
    let file = file.to_str().unwrap();

    let before = reads_of_runs(&dev);
    let started = Instant::now();
    assert_eq!(dev.run(&["job", "run", "-f", file, "--wait"]).code, 0);
    let reads = reads_of_runs(&dev) - before;
    // The first and the last, and glances for reasons to wait.
    let most = 2 + glances(started.elapsed().as_secs());
    assert!((2..=most).contains(&reads), "--wait: {reads} reads in {:?}", started.elapsed());

    let before = reads_of_runs(&dev);
    let started = Instant::now();
    let watched = dev.run(&["job", "run", "-f", file, "--watch"]);
    assert_eq!(watched.code, 0, "{watched:?}");
    assert!(watched.stdout.contains("step 0 each: 1100/1100 succeeded"), "{watched:?}");
    let reads = reads_of_runs(&dev) - before;
    // The first, and reasons to wait after each second in which something was pending.
    let most = 1 + started.elapsed().as_secs();
    assert!((1..=most).contains(&reads), "--watch: {reads} reads in {:?}", started.elapsed());
}

/// Returns how often `--wait` asks for the reasons in so many seconds: after 3 s, after 6 s more, and so on; at last every
/// 30 s.
fn glances(seconds: u64) -> u64 {
    let pauses = [3, 6, 12, 24].into_iter().chain(std::iter::repeat(30));
    let times = pauses.scan(0, |sum, pause| {
        *sum += pause;
        Some(*sum)
    });
    times.take_while(|time| *time <= seconds).count() as u64
}

/// A server and a node that has been killed and is stale.
fn silent_node() -> (Dev, String) {
    let dev = Dev::server(|server| {
        server.with_env(&[
            ("DOWNBEAT_HEARTBEAT_INTERVAL", "500ms"),
            ("DOWNBEAT_NODE_STALE_AFTER", "1500ms"),
            ("DOWNBEAT_NODE_OFFLINE_AFTER", "10m"),
        ])
    });
    let agent = dev.agent("web-30");
    agent.start();
    let status = || dev.run(&["node", "list", "-o", "json"]).json()["data"][0]["status"].clone();
    until("the node to be online", || (status() == "online").then_some(()));
    agent.kill();
    until("the node to be stale", || (status() == "stale").then_some(()));
    (dev, "silent for ".to_owned())
}

#[test]
fn a_step_that_waits_for_a_silent_node_says_so() {
    let (dev, silent) = silent_node();
    let noop = ["--target", "all", "test", "noop"];
    // At once, when it is submitted.
    let submitted = dev.run(&[&["job", "run"][..], &noop].concat());
    assert!(submitted.stdout.contains(" started; `downbeat run watch "), "{submitted:?}");
    assert!(submitted.stderr.contains("web-30 is stale: its steps wait for it"), "{submitted:?}");

    let show = dev.run(&["run", "show", "last"]).ok();
    let row = show.lines().find(|line| line.contains("pending") && line.contains("web-30"));
    assert!(row.is_some_and(|row| row.contains(&format!("waits for web-30, {silent}"))), "{show}");

    let sentence = format!("step 0 test noop waits for web-30, {silent}");
    let id = dev.run(&["run", "list", "-o", "json"]).json()["data"][0]["id"].as_str().unwrap().to_owned();
    let mut watching = dev.spawn(&["run", "watch", &id]);
    watching.stdout().find(&sentence);
    let mut waiting = dev.spawn(&[&["job", "run", "--wait"][..], &noop].concat());
    waiting.stderr().find(&sentence);

    let standing = dev.run(&["run", "show", &id, "-o", "json"]).json();
    assert_eq!(standing["waiting"][0]["nodes"][0]["cause"], "silent", "{standing}");
}

#[test]
fn waiting_for_a_task_that_fits_no_node_says_so() {
    let dev = Dev::start_with(&["--nodes", "1"]);
    let mut waiting = dev.spawn(&["job", "run", "--wait", "docker", "run", "--image", "alpine"]);
    let line = waiting.stderr().find("waits: no node fits now");
    assert!(line.contains("node-1: lacks backend `docker`"), "{line}");
    waiting.signal(Signal::SIGINT);
    assert_eq!(waiting.wait().code, 130);
}

fn logs(dev: &Dev, args: &[&str]) -> Done {
    dev.run(&[&["run", "logs", "last"][..], args].concat())
}

#[test]
fn logs_tell_streams_attempts_and_items_apart() {
    let dev = Dev::start();
    let file = dev.write(
        "mixed.yaml",
        "tasks:\n  - name: part\n    for_each: [a, b]\n    backend: exec\n    action: shell\n    \
         retry: {max: 1, delay: 10ms}\n    params: {command: 'printf \"no newline\"; sleep 0.3; echo err >&2; exit 3'}\n",
    );
    assert_eq!(dev.run(&["job", "run", "-f", file.to_str().unwrap(), "--wait"]).code, 1);
    let one = logs(&dev, &["--item", "1"]).ok();
    assert_eq!(one, "no newline\nerr\n--- attempt 2 of step 0 (part) ---\nno newline\nerr\n");
    let all = logs(&dev, &[]).ok();
    assert!(
        all.lines().any(|line| line.starts_with("part[0] node-") && line.ends_with(" err| err")),
        "{all}"
    );
    assert!(all.lines().any(|line| line.contains(" attempt 2 | no newline")), "{all}");

    let unknown = logs(&dev, &["--item", "99"]);
    assert_eq!(unknown.code, 4, "{unknown:?}");
    assert!(
        unknown.stderr.contains("there is no item 99: step 0 (part) has 2 items, numbers 0 to 1"),
        "{unknown:?}"
    );
    // The page of the run says where it failed, and what it wrote.
    let show = dev.run(&["run", "show", "last"]).ok();
    assert!(show.contains("exited with code 3: err"), "{show}");
    assert!(show.contains(" --step 0 --item 0   # its output"), "{show}");
    assert!(!show.contains("--failed-only"), "it has no nodes of its own: {show}");
}
