//! Owns the safe side: the command to start, its result, and waiting for its end.

use std::ffi::{CStr, CString, c_char};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::OnceLock;
use std::{io, ptr};

use crate::child::{self, Plan};
use crate::clone::{self, Stack};

/// A program to start, as the leader of a process group of its own, with all signals unblocked and at their defaults.
/// Of the parent's files it gets the three streams and those that are not close-on-exec.
#[derive(Clone, Copy, Debug)]
pub struct Command<'a> {
    /// Paths of the program, tried in order as `execvp` does. A name without a slash is not searched for.
    pub programs: &'a [CString],
    /// Including the name of the program, which comes first.
    pub args: &'a [CString],
    /// `NAME=value`, all of it: nothing is inherited.
    pub env: &'a [CString],
    pub dir: Option<&'a CStr>,
    /// Input, output, errors.
    pub stdio: [BorrowedFd<'a>; 3],
    /// A directory of a cgroup v2 hierarchy, in which the process is started.
    pub cgroup: Option<BorrowedFd<'a>>,
    pub umask: u32,
    pub open_files: Option<OpenFiles>,
    /// Descendants that lose their parent become children of this process (`PR_SET_CHILD_SUBREAPER`).
    pub adopts: bool,
}

/// How many files a process may have open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFiles {
    pub soft: u64,
    pub hard: u64,
}

/// A process that executes its program. Dropping this before its end leaves a zombie.
#[derive(Debug)]
pub struct Started {
    pub pid: i32,
    /// Readable once the process has ended.
    pub(crate) pidfd: OwnedFd,
}

/// The step that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Clone,
    Group,
    Streams,
    Limits,
    Directory,
    Execute,
}

#[derive(Debug, thiserror::Error)]
#[error("{}: {error}", match step {
    Step::Clone => "cannot create a process",
    Step::Group => "cannot set its process group",
    Step::Streams => "cannot connect its streams",
    Step::Limits => "cannot set its limits",
    Step::Directory => "cannot enter the working directory",
    Step::Execute => "cannot execute the program",
})]
pub struct Error {
    pub step: Step,
    pub error: io::Error,
}

impl Error {
    fn new(step: Step, errno: i32) -> Self {
        Self { step, error: io::Error::from_raw_os_error(errno) }
    }
}

/// Returns whether `spawn` works on this kernel: it needs pidfds that can be waited for, of Linux 5.4.
pub fn is_supported() -> bool {
    static SUPPORTED: OnceLock<bool> = OnceLock::new();
    *SUPPORTED.get_or_init(|| clone::IS_SUPPORTED && has_pidfds())
}

fn has_pidfds() -> bool {
    // SAFETY: takes numbers, and returns a file of this process or an error.
    let pidfd = unsafe {
        let pidfd = libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0);
        match i32::try_from(pidfd) {
            Ok(pidfd) if pidfd >= 0 => OwnedFd::from_raw_fd(pidfd),
            _ => return false,
        }
    };
    // No process is its own child. A kernel that cannot wait for a pidfd returns EINVAL.
    let waited = Started { pid: 0, pidfd }.try_wait();
    waited.is_err_and(|error| error.raw_os_error() == Some(libc::ECHILD))
}

/// Returns once the program is being executed. The calling thread is suspended until then.
pub fn spawn(command: &Command<'_>) -> Result<Started, Error> {
    if !is_supported() {
        return Err(Error::new(Step::Clone, libc::ENOSYS));
    }
    let (programs, args, env) = (pointers(command.programs), pointers(command.args), pointers(command.env));
    let mut plan = Plan {
        programs: programs.as_ptr(),
        args: args.as_ptr(),
        env: env.as_ptr(),
        dir: command.dir.map_or(ptr::null(), CStr::as_ptr),
        stdio: command.stdio.map(|fd| fd.as_raw_fd()),
        umask: command.umask,
        open_files: command
            .open_files
            .map(|files| libc::rlimit64 { rlim_cur: files.soft, rlim_max: files.hard }),
        adopts: command.adopts,
        failure: None,
    };
    let mut stack = Stack::new();
    let cgroup = command.cgroup.map(|cgroup| cgroup.as_raw_fd());
    let signals = Signals::block();
    // SAFETY: `plan`, all that it points to and `stack` outlive the child's use of them: this thread goes on only when
    // the child has executed its program or ended. Signals are blocked, so no handler runs in the child.
    let cloned = unsafe { clone::vfork(cgroup, &mut stack, child::run, &raw mut plan) };
    drop(signals);
    let (pid, pidfd) = cloned.map_err(|errno| Error::new(Step::Clone, errno))?;
    let started = Started { pid, pidfd };
    // SAFETY: a valid reference; volatile because the compiler has not seen who wrote it.
    match unsafe { ptr::read_volatile(&raw const plan.failure) } {
        None => Ok(started),
        Some((step, errno)) => {
            // It ends at once, and no other code waits for it.
            let _ = started.wait(0);
            Err(Error::new(step, errno))
        }
    }
}

impl Started {
    /// Returns how it ended; `None` while it runs. Call it until it has ended, and not after.
    pub fn try_wait(&self) -> io::Result<Option<ExitStatus>> {
        self.wait(libc::WNOHANG)
    }

    fn wait(&self, flags: i32) -> io::Result<Option<ExitStatus>> {
        let id = self.pidfd.as_raw_fd().cast_unsigned();
        loop {
            let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
            // SAFETY: the kernel fills the memory, or leaves it zero, which is a valid value as well.
            let (waited, info) = unsafe {
                let waited = libc::waitid(libc::P_PIDFD, id, info.as_mut_ptr(), libc::WEXITED | flags);
                (waited, info.assume_init())
            };
            if waited == 0 {
                // SAFETY: these fields are there for a child that ended, and zero if none did.
                let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
                return Ok((pid != 0).then(|| exit_status(info.si_code, status)));
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

/// The status as `wait` has it.
fn exit_status(code: i32, status: i32) -> ExitStatus {
    ExitStatus::from_raw(match code {
        libc::CLD_EXITED => (status & 0xff) << 8,
        libc::CLD_DUMPED => status | 0x80,
        _ => status,
    })
}

/// Returns a list as in C, with a null pointer at its end. Valid for as long as the texts are.
fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
}

/// Blocks all signals of this thread until it is dropped.
struct Signals {
    former: u64,
}

impl Signals {
    fn block() -> Self {
        Self { former: clone::set_signal_mask(u64::MAX) }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        clone::set_signal_mask(self.former);
    }
}
