//! Machines leave nothing behind, however their tests end.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use downbeat_testbed::{processes::is_alive, until};

use crate::host::{name, root, script};

#[test]
fn a_machine_ends_with_the_process_that_started_it_also_when_that_is_killed() {
    let mut owner = Command::new("bash")
        .args(["-c", "\"$0\" start \"$1\" \"$2\"; read"])
        .arg(script())
        .args([root(), name()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut leader = String::new();
    BufReader::new(owner.stdout.take().expect("it is piped")).read_line(&mut leader).unwrap();
    let leader: i32 = leader.trim().parse().expect("the machine is up");
    assert!(is_alive(leader));
    owner.kill().unwrap();
    owner.wait().unwrap();
    until("the end of the machine", || (!is_alive(leader)).then_some(()));
}
