//! `completions`: prints the script with which a shell completes our commands.

use clap::CommandFactory;
use clap_complete::{Shell, generate};

use crate::args::Cli;
use crate::exit::Result;
use crate::out::Out;

pub(crate) fn run(shell: Shell, out: Out) -> Result {
    let mut script = Vec::new();
    generate(shell, &mut Cli::command(), "downbeat", &mut script);
    out.text(&String::from_utf8_lossy(&script))
}
