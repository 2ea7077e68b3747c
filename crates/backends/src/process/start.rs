//! Owns the start of one process: its environment, its streams, its control group.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Once, OnceLock};

use downbeat_spawn::{Command, Error, Started, Step, spawn};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::stat::{Mode, umask};
use tokio::net::unix::pipe::{Receiver, Sender};

use super::cgroup::Cgroup;
use super::child::Child;
use super::means::Means;
use super::open_files::open_files_of_children;
use super::orphans;
use super::run::Program;
use crate::backend::{Call, Identity};
use crate::environment::{DEFAULT_PATH, EXECUTION, OUTPUT};

/// The umask of work, independent of the agent's own, which a service may set stricter.
const UMASK: u32 = 0o022;
/// Another agent may remove an empty group before the process is started in it.
const GROUP_ATTEMPTS: usize = 3;

#[derive(Debug)]
pub(super) struct Process {
    pub(super) child: Child,
    pub(super) stdin: Option<Sender>,
    pub(super) stdout: Receiver,
    pub(super) stderr: Receiver,
    /// The group that it was started in.
    pub(super) cgroup: Option<Cgroup>,
}

/// The child's ends of its streams. Without input it reads from `/dev/null`.
struct Ends {
    input: Option<OwnedFd>,
    output: OwnedFd,
    errors: OwnedFd,
}

pub(super) fn start(program: &Program, call: &Call, means: &Means) -> Result<Process, Error> {
    let streams = |error| Error { step: Step::Streams, error };
    let (stdout, output) = reader().map_err(streams)?;
    let (stderr, errors) = reader().map_err(streams)?;
    let (stdin, input) = match program.stdin {
        Some(_) => writer().map(|(ours, theirs)| (Some(ours), Some(theirs))).map_err(streams)?,
        None => (None, None),
    };
    let ends = Ends { input, output, errors };
    let env = environment(program, call);
    let _starting = orphans::starting();
    let (child, cgroup) = if means.clone {
        let (started, cgroup) = cloned(program, &env, &ends, call.identity, means)?;
        (Child::cloned(started), cgroup)
    } else {
        (standard(program, &env, ends), None)
    };
    let child = child.map_err(|error| Error { step: Step::Execute, error })?;
    Ok(Process { child, stdin, stdout, stderr, cgroup })
}

/// Returns all variables of the process, each once.
pub(super) fn environment(program: &Program, call: &Call) -> BTreeMap<OsString, OsString> {
    let mut env: BTreeMap<OsString, OsString> =
        call.environment.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    env.extend(program.env.iter().map(|(name, value)| (name.into(), value.into())));
    env.insert(EXECUTION.into(), call.identity.to_string().into());
    if let Some(file) = &call.values {
        env.insert(OUTPUT.into(), file.into());
    }
    env
}

/// Returns the possible paths of a program, in the order in which they are tried.
pub(super) fn candidates(name: &str, path: Option<&OsStr>) -> Vec<OsString> {
    if name.contains('/') {
        return vec![name.into()];
    }
    let path = path.unwrap_or(OsStr::new(DEFAULT_PATH));
    std::env::split_paths(path).map(|dir| dir.join(name).into_os_string()).collect()
}

fn cloned(
    program: &Program,
    env: &BTreeMap<OsString, OsString>,
    ends: &Ends,
    identity: Identity,
    means: &Means,
) -> Result<(Started, Option<Cgroup>), Error> {
    let text = |text: &OsStr, step| {
        CString::new(text.as_bytes()).map_err(|error| Error { step, error: io::Error::from(error) })
    };
    let all = |texts: Vec<OsString>| {
        texts.iter().map(|one| text(one, Step::Execute)).collect::<Result<Vec<_>, _>>()
    };
    let programs = all(candidates(&program.name, env.get(OsStr::new("PATH")).map(OsString::as_os_str)))?;
    let args = [&program.name].into_iter().chain(&program.args);
    let args = all(args.map(OsString::from).collect())?;
    let env = all(env.iter().map(variable).collect())?;
    let dir = program.working_dir.as_deref().map(Path::as_os_str);
    let dir = dir.map(|dir| text(dir, Step::Directory)).transpose()?;
    let null = null().map_err(|error| Error { step: Step::Streams, error })?;
    let outside = Command {
        programs: &programs,
        args: &args,
        env: &env,
        dir: dir.as_deref(),
        stdio: [ends.input.as_ref().map_or(null, AsFd::as_fd), ends.output.as_fd(), ends.errors.as_fd()],
        cgroup: None,
        umask: UMASK,
        open_files: open_files_of_children(),
        // Without a group, a process can only be recognized for certain as a descendant: orphans stay in the tree.
        adopts: true,
    };
    for _ in 0..GROUP_ATTEMPTS {
        let Some(group) = means.group_to_be_born_in(identity) else { break };
        let Ok(dir) = group.open() else { continue };
        let error = match spawn(&Command { cgroup: Some(dir.as_fd()), adopts: false, ..outside }) {
            Ok(started) => return Ok((started, Some(group))),
            Err(error) => error,
        };
        let _ = group.remove();
        match Errno::from_raw(error.error.raw_os_error().unwrap_or_default()) {
            _ if error.step != Step::Clone => return Err(error),
            Errno::ENODEV | Errno::ENOENT => {}
            // An old kernel, a filter, missing permission, or a group that refuses processes.
            Errno::ENOSYS
            | Errno::EINVAL
            | Errno::E2BIG
            | Errno::EPERM
            | Errno::EACCES
            | Errno::EBADF
            | Errno::EBUSY
            | Errno::EOPNOTSUPP => means.no_births(&error),
            _ => return Err(error),
        }
    }
    Ok((spawn(&outside)?, None))
}

fn variable((name, value): (&OsString, &OsString)) -> OsString {
    let mut variable = OsString::with_capacity(name.len() + value.len() + 1);
    [name.as_os_str(), OsStr::new("="), value].into_iter().for_each(|part| variable.push(part));
    variable
}

/// Starts the process with the standard library, which cannot set the umask of a child: it becomes the agent's own. The
/// agent's private files are created with their modes.
fn standard(program: &Program, env: &BTreeMap<OsString, OsString>, ends: Ends) -> io::Result<Child> {
    static SET_UMASK: Once = Once::new();
    SET_UMASK.call_once(|| {
        umask(Mode::from_bits_truncate(UMASK));
    });
    let mut command = tokio::process::Command::new(&program.name);
    command
        .args(&program.args)
        .env_clear()
        .envs(env)
        .stdin(ends.input.map_or_else(Stdio::null, Stdio::from))
        .stdout(ends.output)
        .stderr(ends.errors)
        .process_group(0);
    if let Some(dir) = &program.working_dir {
        command.current_dir(dir);
    }
    Child::standard(command.spawn()?)
}

/// Opened once, for all processes.
fn null() -> io::Result<BorrowedFd<'static>> {
    static NULL: OnceLock<File> = OnceLock::new();
    if NULL.get().is_none() {
        let _ = NULL.set(File::open("/dev/null")?);
    }
    NULL.get().map(AsFd::as_fd).ok_or_else(|| io::Error::other("/dev/null is not open"))
}

fn reader() -> io::Result<(Receiver, OwnedFd)> {
    let (ours, theirs) = io::pipe()?;
    let ours = not_blocking(ours.into())?;
    Ok((Receiver::from_owned_fd_unchecked(ours)?, theirs.into()))
}

fn writer() -> io::Result<(Sender, OwnedFd)> {
    let (theirs, ours) = io::pipe()?;
    let ours = not_blocking(ours.into())?;
    Ok((Sender::from_owned_fd_unchecked(ours)?, theirs.into()))
}

/// Only this end: the process expects its own to block.
fn not_blocking(end: OwnedFd) -> io::Result<OwnedFd> {
    fcntl(&end, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_without_a_slash_are_looked_for_in_the_search_path_of_the_process() {
        let paths = |name, path: Option<&str>| candidates(name, path.map(OsStr::new));
        assert_eq!(paths("ls", Some("/a:/b/c")), ["/a/ls", "/b/c/ls"]);
        assert_eq!(paths("ls", Some("")), ["ls"], "an empty entry is the working directory");
        assert_eq!(paths("ls", None).len(), DEFAULT_PATH.split(':').count());
        assert_eq!(paths("./ls", Some("/a")), ["./ls"]);
        assert_eq!(paths("/x/ls", Some("/a")), ["/x/ls"]);
    }
}
