//! `run events`.

use clap::Args;
use downbeat_api::{EventList, NodeSummary, Plan, RunSummary, Where};
use downbeat_core::limits;

use super::Which;
use crate::client::Client;
use crate::event;
use crate::exit::Failure;
use crate::out::{Format, Out};
use crate::render::EventLines;

#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    #[command(flatten)]
    run: Which,
    /// Go on with what happens, until the run has ended
    #[arg(short, long)]
    follow: bool,
    /// Only events after this number
    #[arg(long, value_name = "SEQ")]
    since: Option<u64>,
}

pub(super) async fn run(args: EventsArgs, client: &Client, out: Out) -> Result<(), Failure> {
    let id = args.run.resolve(client).await?;
    let lines = match out.format() {
        Format::Table => {
            let plan: Plan = client.get(&["runs", id.as_str(), "plan"], &[]).await?;
            let mut names: Vec<_> = plan.nodes.into_iter().map(|node| (node.id, node.hostname)).collect();
            // Any node may have what is placed.
            if plan.steps.iter().any(|step| matches!(step.place, Where::Placed(_))) {
                let run: RunSummary = client.get(&["runs", id.as_str()], &[]).await?;
                let path = ["clusters", &run.cluster.to_string(), "nodes"];
                let nodes: Vec<NodeSummary> = client.all_pages(&path).await?;
                names.extend(nodes.into_iter().map(|node| (node.id, node.hostname)));
            }
            EventLines::new(names)
        }
        Format::Json | Format::Yaml => EventLines::default(),
    };
    let path = ["runs", id.as_str(), "events"];
    let mut query: Vec<(&str, String)> =
        args.since.map(|since| ("since", since.to_string())).into_iter().collect();
    if args.follow {
        query.push(("follow", "1".to_owned()));
        return event::follow(&path, query, lines, client, out).await;
    }
    query.push(("limit", limits::PAGE_MOST.to_string()));
    let events: EventList = client.get(&path, &query).await?;
    out.result(&events, || event::told(&events.data, lines))?;
    if events.pagination.has_more && out.format() == Format::Table {
        out.note(&format!("there is more: --since {}", events.pagination.next));
    }
    Ok(())
}
