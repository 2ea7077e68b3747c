//! `event list`: what was recorded, and with `-f` what is being recorded.

use clap::Args;
use downbeat_api::request::Request;
use downbeat_api::{Event, EventList, request};
use downbeat_client::Client;

use crate::exit::Failure;
use crate::out::{Format, Out};
use crate::render::EventLines;

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
    let request = request::events().with_any("since", args.since);
    let lines = lines(client, out).await?;
    if args.follow {
        return follow(request, lines, client, out).await;
    }
    let events = client.ask(request.with("follow", 0).with_any("limit", args.limit)).await?;
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
    let nodes = client.all_pages(request::nodes()).await?;
    let mut names: Vec<_> = nodes.into_iter().map(|node| (node.id, node.hostname)).collect();
    // A server from before has none.
    if let Ok(deleted) = client.page(request::deleted_nodes(), 0).await {
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

/// Prints a stream of events until the server ends it.
pub(crate) async fn follow(
    request: Request<EventList>,
    mut lines: EventLines,
    client: &Client,
    out: Out,
) -> Result<(), Failure> {
    let mut stream = client.stream(request);
    while let Some(message) = stream.next().await? {
        let event: Event = message.decode()?;
        out.item(&event, || lines.line(&event))?;
    }
    Ok(())
}
