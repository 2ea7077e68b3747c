//! `job plan`: a dry run on the server, which knows the nodes.

use clap::Args;
use downbeat_api::request;
use downbeat_client::{Body, Client};

use super::file::JobFile;
use super::params;
use crate::connect::failure_in;
use crate::exit::Result;
use crate::out::Out;
use crate::render::{Rows, plan_page};

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// Job file, YAML or JSON; `-` reads standard input
    #[arg(short, long, value_name = "FILE")]
    file: String,
    /// Where to run instead: all, group:web, node:web-01, or a selector
    #[arg(long, value_name = "TARGET")]
    target: Option<String>,
    /// A param of the job, repeatable
    #[arg(long, value_name = "NAME=VALUE")]
    param: Vec<String>,
    /// Name every node, however many there are; for a graph also show every param
    #[arg(long)]
    all: bool,
}

pub(super) async fn run(args: PlanArgs, client: &Client, out: Out) -> Result {
    let (text, name) = JobFile::read(&args.file)?.text()?;
    let params = params::read(&args.param)?;
    let request = request::plan().with_any("target", args.target).with_any("cluster", client.cluster());
    let body = Body::Definition { text, params, no_cache: false };
    let plan = client.send(request, body, None).await.map_err(|error| failure_in(error, Some(&name)))?;
    out.result(&plan, || plan_page(&plan, Rows::of(args.all), out.width()))
}
