//! `event list`: recorded events, and with `-f` also new ones.

use clap::Args;
use downbeat_api::request::Request;
use downbeat_api::{Event, EventList, request};
use downbeat_client::{Client, Start};
use downbeat_core::limits;

use crate::exit::Result;
use crate::out::{Format, Out};
use crate::render::EventLines;

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Continue with new events, until Ctrl-C
    #[arg(short, long)]
    follow: bool,
    /// Only events after this number; by default the latest, or with -f only new ones
    #[arg(long, value_name = "SEQ")]
    since: Option<u64>,
    /// At most this many; default 100
    #[arg(long, value_name = "N", conflicts_with = "follow", value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: Option<u32>,
}

pub(super) async fn run(args: ListArgs, client: &Client, out: Out) -> Result {
    let request = request::events().with_any("since", args.since);
    let lines = lines(client, out).await?;
    if args.follow {
        return follow(request, lines, client, out).await;
    }
    let events = client.ask(request.with("follow", 0).with_any("limit", args.limit)).await?;
    print_events(&events, lines, out)
}

/// Returns lines that show nodes by name; the other formats need no names.
async fn lines(client: &Client, out: Out) -> Result<EventLines> {
    if out.format() != Format::Table {
        return Ok(EventLines::default());
    }
    let nodes = client.all_pages(request::nodes()).await?;
    let mut names: Vec<_> = nodes.into_iter().map(|node| (node.id, node.hostname)).collect();
    // An older server does not list deleted nodes.
    let deleted = client.page(request::deleted_nodes(), limits::PAGE_MOST, &Start::default()).await;
    if let Ok(deleted) = deleted {
        names.splice(0..0, deleted.data.into_iter().map(|node| (node.id, node.hostname)));
    }
    Ok(EventLines::new(names))
}

pub(crate) fn print_events(events: &EventList, mut lines: EventLines, out: Out) -> Result {
    out.result(events, || match events.data.as_slice() {
        [] => "no events\n".to_owned(),
        events => events.iter().map(|event| lines.line(event) + "\n").collect(),
    })?;
    if events.pagination.has_more && out.format() == Format::Table {
        out.note(&format!("more events follow; use --since {}", events.pagination.next));
    }
    Ok(())
}

/// Prints a stream of events until the server ends it.
pub(crate) async fn follow(
    request: Request<EventList>,
    mut lines: EventLines,
    client: &Client,
    out: Out,
) -> Result {
    let mut stream = client.stream(request);
    while let Some(message) = stream.next().await? {
        let event: Event = message.decode()?;
        out.item(&event, || lines.line(&event))?;
    }
    Ok(())
}
