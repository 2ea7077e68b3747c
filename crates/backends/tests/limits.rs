//! Processes do not inherit limits and umask that the agent changed for itself.

mod support;

use std::sync::Arc;

use downbeat_backends::{Exec, Finish, Ledger, Means, raise_open_files};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::{Mode, umask};
use serde_json::json;
use support::Bench;

/// One test only: umask and limits belong to the whole process.
#[tokio::test]
async fn processes_get_the_limits_of_before_they_were_raised_and_the_usual_umask() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let soft = 512.min(hard / 2);
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    assert_eq!(raise_open_files(), Ok(hard));
    umask(Mode::from_bits_truncate(0o077));
    for means in [Means::found(), Means::found().without_groups()] {
        let bench = Bench::new();
        let ledger = Arc::new(Ledger::open_with(&bench.root().join("running"), means).unwrap());
        let script = json!({"command": "ulimit -Sn; ulimit -Hn; umask; grep SigIgn /proc/self/status"});
        assert_eq!(bench.run(&Exec { ledger }, "shell", script).await, Finish::succeeded());
        let expected = format!("{soft}\n{hard}\n0022\nSigIgn:\t0000000000000000\n");
        assert_eq!(bench.stdout(), expected);
    }
}
