//! The `downbeat` program. The library of this crate does all the work.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    downbeat_cli::main()
}
