//! Owns the system calls that create a process which shares the memory of its suspended parent, and their few lines of
//! machine code.

use std::ffi::c_int;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;

use crate::child::Plan;

/// The child needs some hundred bytes; builds without optimisation, a few thousand.
const STACK_BYTES: usize = 32 * 1024;

const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
const FLAGS: u64 = (libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD).cast_unsigned() as u64;

pub(crate) const IS_SUPPORTED: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));

/// The child's stack: a part of the suspended parent's own stack.
#[repr(C, align(16))]
pub(crate) struct Stack(MaybeUninit<[u8; STACK_BYTES]>);

impl Stack {
    pub(crate) fn new() -> Self {
        Self(MaybeUninit::uninit())
    }
}

/// The kernel's `struct clone_args`, as of version 5.7.
#[repr(C)]
#[derive(Debug, Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// The function that a child runs.
type Entry = unsafe extern "C" fn(*mut Plan) -> !;

/// Returns in the parent only, after the child has executed a program or ended. Fails with an error number.
///
/// # Safety
/// All signals are blocked. `entry` makes system calls only, and `plan` is all that it needs.
pub(crate) unsafe fn vfork(
    cgroup: Option<c_int>,
    stack: &mut Stack,
    entry: Entry,
    plan: *mut Plan,
) -> Result<(i32, OwnedFd), i32> {
    let mut pidfd: c_int = -1;
    let (bottom, top) = (stack.0.as_mut_ptr().addr(), stack.0.as_mut_ptr().addr() + STACK_BYTES);
    let result = match cgroup {
        Some(cgroup) => {
            let args = CloneArgs {
                flags: FLAGS | CLONE_INTO_CGROUP,
                pidfd: (&raw mut pidfd).addr() as u64,
                exit_signal: u64::from(libc::SIGCHLD.cast_unsigned()),
                stack: bottom as u64,
                stack_size: STACK_BYTES as u64,
                cgroup: u64::from(cgroup.cast_unsigned()),
                ..CloneArgs::default()
            };
            let call = [(&raw const args).expose_provenance(), size_of::<CloneArgs>(), 0];
            (&raw mut pidfd).expose_provenance();
            // SAFETY: the caller's.
            unsafe { call_and_run(libc::SYS_clone3, call, entry, plan) }
        }
        // Containers that deny the newer call allow the older one.
        None => {
            let flags = FLAGS | u64::from(libc::SIGCHLD.cast_unsigned());
            let call = [flags as usize, top, (&raw mut pidfd).expose_provenance()];
            // SAFETY: the caller's.
            unsafe { call_and_run(libc::SYS_clone, call, entry, plan) }
        }
    };
    match i32::try_from(result) {
        Ok(pid) if pid > 0 => {
            // SAFETY: the kernel made it for this process.
            let pidfd = unsafe { OwnedFd::from_raw_fd(ptr::read_volatile(&raw const pidfd)) };
            Ok((pid, pidfd))
        }
        Ok(errno) => Err(-errno),
        Err(_) => Err(libc::EINVAL),
    }
}

/// Makes the system call. In the child, which wakes up on a stack of its own, it calls `entry`, which does not return.
///
/// # Safety
/// As for `vfork`; `call` are valid arguments of a call that creates a process with a stack.
#[cfg(target_arch = "x86_64")]
unsafe fn call_and_run(number: i64, call: [usize; 3], entry: Entry, plan: *mut Plan) -> isize {
    let result;
    // SAFETY: the kernel keeps all registers but rax, rcx and r11, in parent and child. The stack's end is a multiple of
    // 16, as a call wants it.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") number as isize => result,
            in("rdi") call[0],
            in("rsi") call[1],
            in("rdx") call[2],
            in("r10") 0usize,
            in("r8") 0usize,
            in("r12") plan,
            in("r13") entry,
            out("rcx") _,
            out("r11") _,
        );
    }
    result
}

#[cfg(target_arch = "aarch64")]
unsafe fn call_and_run(number: i64, call: [usize; 3], entry: Entry, plan: *mut Plan) -> isize {
    let result;
    // SAFETY: the kernel keeps all registers but x0, in parent and child. The stack's end is a multiple of 16.
    unsafe {
        std::arch::asm!(
            "svc #0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, x10",
            "blr x11",
            "brk #1",
            "2:",
            in("x8") number,
            inlateout("x0") call[0] => result,
            in("x1") call[1],
            in("x2") call[2],
            in("x3") 0usize,
            in("x4") 0usize,
            in("x10") plan,
            in("x11") entry,
        );
    }
    result
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn call_and_run(_: i64, _: [usize; 3], _: Entry, _: *mut Plan) -> isize {
    -(libc::ENOSYS as isize)
}

/// Sets the mask of this thread; returns the former one. Not glibc's function, which leaves out two signals of its own.
pub(crate) fn set_signal_mask(mask: u64) -> u64 {
    let mut former: u64 = 0;
    // SAFETY: the kernel's set of signals is eight bytes.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const mask,
            &raw mut former,
            size_of::<u64>(),
        );
    }
    former
}
