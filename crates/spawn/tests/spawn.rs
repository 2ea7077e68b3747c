//! Real processes, with a control group and without: both ways run the same tests.

use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{PipeReader, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use downbeat_spawn::{Command, OpenFiles, Started, Step, spawn};

const DEADLINE: Duration = Duration::from_secs(60);

/// A control group of version 2, removed with this.
struct Group {
    path: PathBuf,
    dir: File,
}

impl Group {
    /// Returns `None` if no hierarchy of version 2 is writable.
    fn new() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let own = fs::read_to_string("/proc/self/cgroup").unwrap();
        let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default().to_owned();
        let name = format!("spawn-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].into_iter().find_map(|root| {
            Path::new(root).join("cgroup.controllers").exists().then_some(())?;
            let path = Path::new(root).join(&own).join(&name);
            fs::create_dir(&path).ok()?;
            let dir = File::open(&path).unwrap();
            Some(Self { path, dir })
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}

/// Runs a test body without a group, and within one if there is any.
fn both(body: impl Fn(Option<&Group>)) {
    body(None);
    if let Some(group) = Group::new() {
        body(Some(&group));
    }
}

fn texts(texts: &[&str]) -> Vec<CString> {
    texts.iter().map(|text| CString::new(*text).unwrap()).collect()
}

fn path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// The settings that a test varies.
#[derive(Default)]
struct Given<'a> {
    programs: Vec<CString>,
    args: Vec<CString>,
    env: Vec<CString>,
    dir: Option<&'a CStr>,
    group: Option<&'a Group>,
    open_files: Option<OpenFiles>,
    adopts: bool,
}

impl<'a> Given<'a> {
    fn shell(script: &str, group: Option<&'a Group>) -> Self {
        Self { programs: texts(&["/bin/sh"]), args: texts(&["sh", "-c", script]), group, ..Self::default() }
    }

    fn start_with(&self, stdio: [BorrowedFd<'_>; 3]) -> Result<Started, downbeat_spawn::Error> {
        spawn(&Command {
            programs: &self.programs,
            args: &self.args,
            env: &self.env,
            dir: self.dir,
            stdio,
            cgroup: self.group.map(|group| group.dir.as_fd()),
            umask: 0o027,
            open_files: self.open_files,
            adopts: self.adopts,
        })
    }

    fn start(&self) -> Result<(Started, PipeReader), downbeat_spawn::Error> {
        let null = File::open("/dev/null").unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        Ok((self.start_with([null.as_fd(), writer.as_fd(), writer.as_fd()])?, reader))
    }

    /// Runs it to its end.
    fn run(&self) -> (ExitStatus, String) {
        let (started, mut output) = self.start().unwrap();
        let mut text = String::new();
        output.read_to_string(&mut text).unwrap();
        (ended(&started), text)
    }

    fn failed(&self) -> (Step, Option<i32>) {
        let error = self.start().unwrap_err();
        (error.step, error.error.raw_os_error())
    }
}

fn ended(started: &Started) -> ExitStatus {
    let begun = Instant::now();
    loop {
        if let Some(status) = started.try_wait().unwrap() {
            return status;
        }
        assert!(begun.elapsed() < DEADLINE, "it does not end");
        std::thread::yield_now();
    }
}

#[test]
fn arguments_environment_directory_and_streams_arrive_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    both(|group| {
        let script = "printf '%s|' \"$@\"; echo; pwd; cat; echo oops >&2; exec /usr/bin/env";
        let given = Given {
            args: texts(&["sh", "-c", script, "zero", "a b", "$HOME", "*", ""]),
            env: texts(&["COLOUR=dark blue", "PATH=/usr/bin:/bin"]),
            dir: Some(&path(&dir)),
            ..Given::shell("", group)
        };
        let (mut reader, writer) = std::io::pipe().unwrap();
        let (input, feed) = std::io::pipe().unwrap();
        let errors = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut &feed, b"typed\n").unwrap();
        drop(feed);
        let started = given.start_with([input.as_fd(), writer.as_fd(), errors.as_fd()]).unwrap();
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(ended(&started).code(), Some(0));
        let mut lines: Vec<&str> = text.lines().collect();
        lines.retain(|line| !["PWD=", "OLDPWD=", "SHLVL=", "_="].iter().any(|own| line.starts_with(own)));
        assert_eq!(
            lines,
            ["a b|$HOME|*||", dir.to_str().unwrap(), "typed", "COLOUR=dark blue", "PATH=/usr/bin:/bin"]
        );
        assert_eq!(errors.metadata().unwrap().len(), 5);
    });
}

#[test]
fn streams_may_be_the_parents_own_in_any_order() {
    let dir = tempfile::tempdir().unwrap();
    let link = |fd: u32| fs::read_link(format!("/proc/self/fd/{fd}")).unwrap();
    both(|group| {
        let file = dir.path().join("links");
        let script = format!("for fd in 0 1 2; do readlink /proc/$$/fd/$fd; done 9>&1 >{}", file.display());
        let given = Given { env: texts(&["PATH=/usr/bin:/bin"]), ..Given::shell(&script, group) };
        let (input, output, errors) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
        let started = given.start_with([output.as_fd(), errors.as_fd(), input.as_fd()]).unwrap();
        assert_eq!(ended(&started).code(), Some(0));
        let links = fs::read_to_string(&file).unwrap();
        let links: Vec<&str> = links.lines().collect();
        // The shell's output is the file by then.
        let expected = [link(1), file.clone(), link(0)];
        assert_eq!(links, expected.each_ref().map(|link| link.to_str().unwrap()));
    });
}

#[test]
fn no_other_file_of_the_parent_is_open_in_the_child() {
    let dir = tempfile::tempdir().unwrap();
    let kept = File::create(dir.path().join("kept-by-the-parent")).unwrap();
    both(|group| {
        let script = "for fd in /proc/$$/fd/*; do readlink $fd; done";
        let (_, text) = Given { env: texts(&["PATH=/usr/bin:/bin"]), ..Given::shell(script, group) }.run();
        assert!(text.contains("/dev/null"), "{text}");
        assert!(!text.contains("kept-by-the-parent") && !text.contains("pidfd"), "{text}");
        assert!(group.is_none_or(|group| !text.contains(group.path.to_str().unwrap())), "{text}");
    });
    drop(kept);
}

#[test]
fn exit_codes_and_signals_are_reported() {
    both(|group| {
        assert_eq!(Given::shell("exit 0", group).run().0.code(), Some(0));
        assert_eq!(Given::shell("exit 7", group).run().0.code(), Some(7));
        for signal in [9, 15, 11, 34, 64] {
            let (status, _) = Given::shell(&format!("kill -{signal} $$"), group).run();
            assert_eq!((status.code(), status.signal()), (None, Some(signal)));
        }
    });
}

#[test]
fn what_fails_is_named_with_its_step() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str, mode: u32| {
        let file = dir.path().join(name);
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        path(&file)
    };
    let (plain, empty) = (file("plain", "text", 0o600), file("empty", "", 0o700));
    let script = file("script", "#!/nope/interpreter\n", 0o700);
    both(|group| {
        let program = |programs: &[&CStr]| Given {
            programs: programs.iter().map(|program| (*program).to_owned()).collect(),
            args: texts(&["x"]),
            group,
            ..Given::default()
        };
        assert_eq!(program(&[]).failed(), (Step::Execute, Some(2)), "ENOENT");
        assert_eq!(program(&[c"/no/such"]).failed(), (Step::Execute, Some(2)), "ENOENT");
        assert_eq!(program(&[&script]).failed(), (Step::Execute, Some(2)), "ENOENT");
        assert_eq!(program(&[&plain]).failed(), (Step::Execute, Some(13)), "EACCES");
        assert_eq!(program(&[&plain, c"/no/such"]).failed(), (Step::Execute, Some(13)), "EACCES");
        assert_eq!(program(&[&empty]).failed(), (Step::Execute, Some(8)), "ENOEXEC");
        assert_eq!(program(&[c"/no/such", &plain, c"/bin/true"]).run().0.code(), Some(0));
        let within = |dir| Given { dir: Some(dir), ..Given::shell("true", group) };
        assert_eq!(within(c"/no/such").failed(), (Step::Directory, Some(2)), "ENOENT");
        assert_eq!(within(&plain).failed(), (Step::Directory, Some(20)), "ENOTDIR");
        let too_many = OpenFiles { soft: 2, hard: 1 };
        let given = Given { open_files: Some(too_many), ..Given::shell("true", group) };
        assert_eq!(given.failed(), (Step::Limits, Some(22)), "EINVAL");
    });
    let file = File::open("/dev/null").unwrap();
    let null = file.as_fd();
    let given = Given::shell("true", None);
    let command = Command {
        programs: &given.programs,
        args: &given.args,
        env: &[],
        dir: None,
        stdio: [null; 3],
        cgroup: Some(null),
        umask: 0,
        open_files: None,
        adopts: false,
    };
    assert_eq!(spawn(&command).unwrap_err().step, Step::Clone, "no directory of control groups");
}

#[test]
fn the_child_is_inside_its_control_group_from_the_start() {
    let Some(group) = Group::new() else { return };
    let given = Given {
        programs: texts(&["/bin/cat"]),
        args: texts(&["cat", "/proc/self/cgroup"]),
        group: Some(&group),
        ..Given::default()
    };
    let (status, text) = given.run();
    assert_eq!(status.code(), Some(0));
    let name = group.path.file_name().unwrap().to_str().unwrap();
    assert!(text.lines().any(|line| line.starts_with("0::/") && line.ends_with(name)), "{text}");
    // This process has not moved, and the group is empty once the child has ended.
    assert!(!fs::read_to_string("/proc/self/cgroup").unwrap().contains(name));
    fs::remove_dir(&group.path).unwrap();
}

#[test]
fn signals_limits_umask_and_group_are_the_childs_own() {
    // Not the queued signals: all programs of the user share that number.
    let own = || -> Vec<String> {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let is_set = |line: &&str| ["SigBlk", "SigIgn", "SigCgt"].iter().any(|name| line.starts_with(name));
        status.lines().filter(is_set).map(str::to_owned).collect()
    };
    let before = own();
    both(|group| {
        let script = "grep -E '^Sig(Blk|Ign)' /proc/self/status; umask; ulimit -Sn; \
                      read -r _ _ _ _ pgrp _ </proc/$$/stat; [ $pgrp = $$ ] && echo leader";
        let open_files = Some(OpenFiles { soft: 111, hard: 222 });
        let given = Given { open_files, env: texts(&["PATH=/usr/bin:/bin"]), ..Given::shell(script, group) };
        let (status, text) = given.run();
        assert_eq!(status.code(), Some(0), "{text}");
        let none = "0000000000000000";
        let expected = format!("SigBlk:\t{none}\nSigIgn:\t{none}\n0027\n111\nleader\n");
        assert_eq!(text, expected);
    });
    assert_eq!(before, own(), "the parent's signals are as they were");
}

#[test]
fn a_child_that_adopts_becomes_the_parent_of_orphans() {
    both(|group| {
        let script = "orphan=$( (setsid sh -c 'echo $$; exec sleep 1000 >/dev/null 2>&1' &) ); \
                      read -r _ _ _ parent _ </proc/$orphan/stat; kill $orphan; \
                      [ $parent = $$ ] && echo adopted || echo lost";
        for (adopts, expected) in [(true, "adopted\n"), (false, "lost\n")] {
            let env = texts(&["PATH=/usr/bin:/bin"]);
            let given = Given { adopts, env, ..Given::shell(script, group) };
            assert_eq!(given.run().1, expected);
        }
    });
}

#[test]
fn a_thousand_are_started_by_many_threads_at_once() {
    both(|group| {
        std::thread::scope(|scope| {
            for thread in 0..20 {
                scope.spawn(move || {
                    for number in 0..50 {
                        let code = (thread * 50 + number) % 251;
                        let given = Given::shell(&format!("echo {code}; exit {code}"), group);
                        let (status, text) = given.run();
                        assert_eq!((status.code(), text), (Some(code), format!("{code}\n")));
                    }
                });
            }
        });
    });
}
