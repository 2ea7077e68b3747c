//! Owns a headless Chromium, ended with the test.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use downbeat_testbed::until;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tempfile::TempDir;

/// Every name below `example` is this machine: pages have real names, and names can be rebound.
const NAMES: &str = "MAP *.example 127.0.0.1";

#[derive(Debug)]
pub(crate) struct Chromium {
    child: Child,
    _profile: TempDir,
}

fn command(profile: &TempDir) -> Command {
    let found = Command::new("chromium").arg("--version").output();
    assert!(found.is_ok_and(|found| found.status.success()), "needs Chromium: run `make chromium` as root");
    let mut command = Command::new("chromium");
    command
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .args(["--disable-dev-shm-usage", "--no-proxy-server"])
        .arg(format!("--host-resolver-rules={NAMES}"))
        .arg(format!("--user-data-dir={}", profile.path().display()))
        // It starts processes of its own; all of them end together.
        .process_group(0)
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    command
}

impl Chromium {
    /// Opens a page, and stays.
    pub(crate) fn open(url: &str) -> Self {
        let profile = tempfile::tempdir().unwrap();
        let child = command(&profile).arg(url).stdout(Stdio::null()).spawn().unwrap();
        Self { child, _profile: profile }
    }

    /// The page as it is when its scripts have ended.
    pub(crate) fn dump(url: &str) -> String {
        let profile = tempfile::tempdir().unwrap();
        let mut command = command(&profile);
        command.args(["--virtual-time-budget=20000", "--dump-dom", url]).stdout(Stdio::piped());
        let mut this = Self { child: command.spawn().unwrap(), _profile: profile };
        let stdout = this.child.stdout.take().unwrap();
        let reader = std::thread::spawn(move || std::io::read_to_string(stdout).unwrap());
        until("the page", || this.child.try_wait().unwrap());
        drop(this);
        reader.join().unwrap()
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        let _ = killpg(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), Signal::SIGKILL);
        let _ = self.child.wait();
    }
}
