//! `run list`.

use clap::Args;
use downbeat_api::request;
use downbeat_client::Client;
use jiff::Timestamp;

use crate::exit::Result;
use crate::out::Out;
use crate::render::{run_table, shown_of};

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only runs that are pending, running, completed, failed or cancelled; several, comma-separated
    #[arg(long, value_name = "STATUS")]
    status: Option<String>,
    /// Only runs of this job
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Skip this many of the newest runs
    #[arg(long, value_name = "N", default_value_t = 0)]
    offset: u64,
}

pub(super) async fn run(args: ListArgs, client: &Client, out: Out) -> Result {
    let request = request::runs()
        .with("limit", args.limit)
        .with("offset", args.offset)
        .with("cluster", client.cluster().unwrap_or("default"))
        .with_any("status", args.status)
        .with_any("job", args.job);
    let runs = client.ask(request).await?;
    out.result(&runs, || run_table(&runs.data, Timestamp::now(), out.width()))?;
    if runs.pagination.has_more && out.is_terminal() {
        let shown = shown_of(runs.data.len(), runs.pagination.total);
        out.note(&format!("{shown} runs shown; --limit and --offset show others"));
    }
    Ok(())
}
