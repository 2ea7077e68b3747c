//! `event list`: recorded events, and with `-f` also new ones.

use clap::Args;
use downbeat_api::request::Request;
use downbeat_api::{Event, EventList, Gap, request};
use downbeat_client::{Client, Error, Start};
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
    /// Only events of this node, by hostname or id
    #[arg(long)]
    node: Option<String>,
    /// Only events of runs of this job
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// Only events of these kinds, such as run_created,run_moved
    #[arg(long, value_name = "KIND,..")]
    kind: Option<String>,
    /// At most this many; default 100
    #[arg(long, value_name = "N", conflicts_with = "follow", value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: Option<u32>,
}

pub(super) async fn run(args: ListArgs, client: &Client, out: Out) -> Result {
    let request = request::events()
        .with_any("since", args.since)
        .with_any("cluster", client.cluster())
        .with_any("node", args.node)
        .with_any("job", args.job)
        .with_any("kind", args.kind);
    let lines = lines(client, out).await?;
    if args.follow {
        return follow(request, lines, client, out).await;
    }
    list(request.with("follow", 0).with_any("limit", args.limit), lines, client, out).await
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

/// Prints a page of events; if the first of them are no longer kept, notes that and prints those that are.
pub(crate) async fn list(
    request: Request<EventList>,
    mut lines: EventLines,
    client: &Client,
    out: Out,
) -> Result {
    let events = match client.ask(request.clone()).await {
        Err(error) => match first_kept(&error) {
            Some(first) => {
                note_gap(first, out);
                client.ask(request.since(first - 1)).await?
            }
            None => return Err(error.into()),
        },
        Ok(events) => events,
    };
    out.result(&events, || match events.data.as_slice() {
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
    let mut stream = client.stream(request.clone());
    loop {
        let message = match stream.next().await {
            Ok(Some(message)) => message,
            Ok(None) => return Ok(()),
            Err(error) => match first_kept(&error) {
                Some(first) => {
                    note_gap(first, out);
                    stream = client.stream(request.clone().since(first - 1));
                    continue;
                }
                None => return Err(error.into()),
            },
        };
        if message.name == Gap::NAME {
            note_gap(message.decode::<Gap>()?.first, out);
            continue;
        }
        let event: Event = message.decode()?;
        out.item(&event, || lines.line(&event))?;
    }
}

/// Returns the number of the first kept event if a request was refused because earlier ones are gone.
fn first_kept(error: &Error) -> Option<u64> {
    match error {
        Error::Problem(problem) => problem.first,
        _ => None,
    }
}

fn note_gap(first: u64, out: Out) {
    out.note(&format!("events before {first} are no longer kept"));
}
