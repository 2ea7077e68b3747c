//! `bench`: measures a server, its store and its agents on this machine.

use clap::Args;

use crate::exit::Failure;
use crate::out::Out;

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {}

#[expect(clippy::unused_async, reason = "the loads are async")]
pub(crate) async fn run(_args: BenchArgs, _out: Out) -> Result<(), Failure> {
    Err(Failure::bad_input("there is no load yet"))
}
