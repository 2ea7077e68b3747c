//! Owns the child between its creation and the program. It shares the parent's memory, so it only makes system calls:
//! it does not allocate, lock or panic.

use std::ffi::{c_char, c_int};
use std::ptr;

use crate::clone::set_signal_mask;
use crate::command::Step;

const SIGNALS: c_int = 64;
const FIRST_FREE_FD: c_int = 3;
const EXIT_CODE: c_int = 127;

/// Everything that the child needs, created by the parent. Lists end with a null pointer.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) programs: *const *const c_char,
    pub(crate) args: *const *const c_char,
    pub(crate) env: *const *const c_char,
    pub(crate) dir: *const c_char,
    pub(crate) stdio: [c_int; 3],
    pub(crate) umask: u32,
    pub(crate) open_files: Option<libc::rlimit64>,
    pub(crate) adopts: bool,
    /// Written by the child if it cannot execute the program.
    pub(crate) failure: Option<(Step, c_int)>,
}

/// The first and only function of the child.
///
/// # Safety
/// Call it in a child of `clone::vfork`, with the plan of the suspended parent.
pub(crate) unsafe extern "C" fn run(plan: *mut Plan) -> ! {
    // SAFETY: the parent made it and is suspended.
    unsafe {
        let failure = become_program(&*plan);
        ptr::write_volatile(&raw mut (*plan).failure, Some(failure));
        libc::_exit(EXIT_CODE)
    }
}

/// Returns only after a failure.
unsafe fn become_program(plan: &Plan) -> (Step, c_int) {
    // SAFETY: system calls with numbers, and with pointers that the parent made valid.
    unsafe {
        if libc::setpgid(0, 0) == -1 {
            return (Step::Group, errno());
        }
        let mut stdio = plan.stdio;
        for fd in &mut stdio {
            // A file that is itself 0, 1 or 2 would be overwritten by another, or closed by the execution.
            if *fd < FIRST_FREE_FD {
                *fd = libc::fcntl(*fd, libc::F_DUPFD_CLOEXEC, FIRST_FREE_FD);
            }
        }
        for (target, fd) in (0..).zip(stdio) {
            if libc::dup2(fd, target) == -1 {
                return (Step::Streams, errno());
            }
        }
        libc::umask(plan.umask);
        if let Some(files) = &plan.open_files
            && libc::setrlimit64(libc::RLIMIT_NOFILE, files) == -1
        {
            return (Step::Limits, errno());
        }
        if !plan.dir.is_null() && libc::chdir(plan.dir) == -1 {
            return (Step::Directory, errno());
        }
        if plan.adopts {
            libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
        }
        // Ignored signals would stay ignored, and a handler of the parent's must not run here once they are unblocked.
        for signal in 1..=SIGNALS {
            // Not glibc's function, which may lock. All zero is the default.
            let default = [0u64; 4];
            libc::syscall(libc::SYS_rt_sigaction, signal, &raw const default, 0usize, size_of::<u64>());
        }
        set_signal_mask(0);
        (Step::Execute, execute(plan))
    }
}

/// Executes the first program that can be; as with `execvp`, a permission error counts only if no other can.
unsafe fn execute(plan: &Plan) -> c_int {
    let mut failure = libc::ENOENT;
    let mut program = plan.programs;
    // SAFETY: the list ends with a null pointer, and so do those of arguments and environment.
    unsafe {
        while !(*program).is_null() {
            libc::execve(*program, plan.args, plan.env);
            match errno() {
                libc::EACCES => failure = libc::EACCES,
                libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT => {}
                other => return other,
            }
            program = program.add(1);
        }
    }
    failure
}

/// Reads the suspended parent's errno: this child has no storage of its own.
unsafe fn errno() -> c_int {
    // SAFETY: always a valid pointer.
    unsafe { *libc::__errno_location() }
}
