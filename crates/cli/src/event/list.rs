//! `event list`: what was recorded, and with `-f` what is being recorded.

use std::time::Duration;

use clap::Args;
use downbeat_api::{DeletedNode, Event, EventList, List, NodeSummary};
use downbeat_core::limits;
use tokio::time::sleep;

use crate::client::Client;
use crate::exit::{Code, Failure};
use crate::out::{Format, Out};
use crate::render::EventLines;

/// Between attempts to take up a stream again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Attempts in a row after which the server is taken as gone.
const MOST_RETRIES: u32 = 60;

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Go on with what happens, until Ctrl-C
    #[arg(short, long)]
    follow: bool,
    /// Only events after this number; without it the latest, or with -f what happens from now on
    #[arg(long, value_name = "SEQ")]
    since: Option<u64>,
    /// At most this many; without it 100
    #[arg(long, value_name = "N", conflicts_with = "follow", value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: Option<u32>,
}

pub(super) async fn run(args: ListArgs, client: &Client, out: Out) -> Result<(), Failure> {
    let mut query: Vec<(&str, String)> =
        args.since.map(|since| ("since", since.to_string())).into_iter().collect();
    let lines = lines(client, out).await?;
    if args.follow {
        return follow(&["events"], query, lines, client, out).await;
    }
    query.push(("follow", "0".to_owned()));
    query.extend(args.limit.map(|limit| ("limit", limit.to_string())));
    let events: EventList = client.get(&["events"], &query).await?;
    out.result(&events, || told(&events.data, lines))?;
    if events.pagination.has_more && out.format() == Format::Table {
        out.note(&format!("there is more: --since {}", events.pagination.next));
    }
    Ok(())
}

/// Lines that know the nodes by name, for people.
async fn lines(client: &Client, out: Out) -> Result<EventLines, Failure> {
    if out.format() != Format::Table {
        return Ok(EventLines::default());
    }
    let nodes: Vec<NodeSummary> = client.all_pages(&["nodes"]).await?;
    let mut names: Vec<_> = nodes.into_iter().map(|node| (node.id, node.hostname)).collect();
    // A server from before has none.
    let query = [("limit", limits::PAGE_MOST.to_string())];
    if let Ok(deleted) = client.get::<List<DeletedNode>>(&["deleted-nodes"], &query).await {
        names.splice(0..0, deleted.data.into_iter().map(|node| (node.id, node.hostname)));
    }
    Ok(EventLines::new(names))
}

/// One line per event.
pub(crate) fn told(events: &[Event], mut lines: EventLines) -> String {
    if events.is_empty() {
        return "no events\n".to_owned();
    }
    events.iter().map(|event| lines.line(event) + "\n").collect()
}

/// Prints a stream of events until the server says that it is over. A connection that breaks is taken up again where
/// it was, so that nothing is missing and nothing comes twice.
pub(crate) async fn follow(
    path: &[&str],
    query: Vec<(&str, String)>,
    mut lines: EventLines,
    client: &Client,
    out: Out,
) -> Result<(), Failure> {
    let mut last: Option<String> = None;
    let mut failures = 0;
    loop {
        match client.feed(path, &query, last.as_deref()).await {
            Err(failure)
                if failure.code == Code::Unreachable && last.is_some() && failures < MOST_RETRIES =>
            {
                failures += 1;
            }
            Err(failure) => return Err(failure),
            Ok(mut feed) => {
                failures = 0;
                while let Ok(Some(message)) = feed.next().await {
                    if message.name == "end" {
                        return Ok(());
                    }
                    let event: Event = message.decode()?;
                    out.item(&event, || lines.line(&event))?;
                    last = message.id.or(last);
                }
            }
        }
        sleep(RETRY_PAUSE).await;
    }
}
