//! `run logs`: what a run's processes wrote.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::Args;
use downbeat_core::limits;
use downbeat_server::http::view::{List, Run, RunChunk};
use tokio::time::sleep;

use super::Which;
use super::lines::{Lines, Prefix};
use crate::client::Client;
use crate::exit::{Code, Failure};
use crate::out::{Format, Out};

/// Between attempts to take up a stream again, and how many in a row.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
const MOST_RETRIES: u32 = 60;

#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    #[command(flatten)]
    run: Which,
    /// Only of this node, by hostname or id
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// Only of this step, by its number
    #[arg(long, value_name = "STEP")]
    step: Option<u32>,
    /// Go on as it is written, until the run has ended
    #[arg(short, long)]
    follow: bool,
}

pub(super) async fn run(args: LogsArgs, client: &Client, out: Out) -> Result<(), Failure> {
    let id = args.run.resolve(client).await?;
    let run: Run = client.get(&["runs", id.as_str()], &[]).await?;
    let mut query: Vec<(&str, String)> = Vec::new();
    query.extend(args.node.as_ref().map(|node| ("node", node.clone())));
    query.extend(args.step.map(|step| ("step", step.to_string())));
    let path = ["runs", id.as_str(), "output"];
    let lines = Lines::new(if args.node.is_none() && nodes(&run) > 1 { Prefix::Node } else { Prefix::None });
    if args.follow {
        query.push(("follow", "1".to_owned()));
        followed(&path, &query, lines, client, out).await
    } else {
        listed(&path, &query, lines, client, out).await
    }
}

/// How many nodes have or may have written something.
fn nodes(run: &Run) -> usize {
    let with_results = run.results.values().flat_map(|results| results.keys());
    run.expected.iter().chain(with_results).filter(|node| *node != "-").collect::<BTreeSet<_>>().len()
}

async fn listed(
    path: &[&str],
    query: &[(&str, String)],
    mut lines: Lines,
    client: &Client,
    out: Out,
) -> Result<(), Failure> {
    let mut whole: Option<List<RunChunk>> = None;
    let mut offset = 0;
    loop {
        let mut query = query.to_vec();
        query.push(("limit", limits::PAGE_MOST.to_string()));
        query.push(("offset", offset.to_string()));
        let page: List<RunChunk> = client.get(path, &query).await?;
        let has_more = page.pagination.has_more;
        offset += page.data.len() as u64;
        if out.format() == Format::Table {
            for chunk in &page.data {
                out.raw(&lines.push(chunk))?;
            }
        } else {
            match &mut whole {
                None => whole = Some(page),
                Some(whole) => {
                    whole.data.extend(page.data);
                    whole.pagination.has_more = has_more;
                    whole.pagination.limit = u32::try_from(whole.data.len()).unwrap_or(u32::MAX);
                }
            }
        }
        if !has_more {
            break;
        }
    }
    out.raw(&lines.finish())?;
    whole.map_or(Ok(()), |whole| out.result(&whole, String::new))
}

/// A connection that breaks is taken up again; what was printed before is known by its offsets.
async fn followed(
    path: &[&str],
    query: &[(&str, String)],
    mut lines: Lines,
    client: &Client,
    out: Out,
) -> Result<(), Failure> {
    let mut failures = 0;
    let mut connected = false;
    loop {
        match client.feed(path, query, None).await {
            Err(failure) if failure.code == Code::Unreachable && connected && failures < MOST_RETRIES => failures += 1,
            Err(failure) => return Err(failure),
            Ok(mut feed) => {
                (connected, failures) = (true, 0);
                while let Ok(Some(message)) = feed.next().await {
                    if message.name == "end" {
                        return out.raw(&lines.finish());
                    }
                    let chunk: RunChunk = message.decode()?;
                    if !lines.is_new(&chunk) {
                        continue;
                    }
                    let text = lines.push(&chunk);
                    if out.format() == Format::Table {
                        out.raw(&text)?;
                    } else {
                        out.item(&chunk, String::new)?;
                    }
                }
            }
        }
        sleep(RETRY_PAUSE).await;
    }
}
