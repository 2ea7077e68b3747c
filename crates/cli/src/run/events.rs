//! `run events`.

use clap::Args;
use downbeat_api::{RunSummary, Where, request};
use downbeat_client::Client;
use downbeat_core::limits;

use super::Which;
use crate::event;
use crate::exit::Result;
use crate::out::{Format, Out};
use crate::render::EventLines;

#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    #[command(flatten)]
    run: Which,
    /// Continue with new events, until the run has ended
    #[arg(short, long)]
    follow: bool,
    /// Only events after this number
    #[arg(long, value_name = "SEQ")]
    since: Option<u64>,
}

pub(super) async fn run(args: EventsArgs, client: &Client, out: Out) -> Result {
    let id = args.run.resolve(client).await?;
    let lines = match out.format() {
        Format::Table => {
            let plan = client.ask(request::run_plan(&id)).await?;
            let mut names: Vec<_> = plan.nodes.into_iter().map(|node| (node.id, node.hostname)).collect();
            // Placed steps may run on any node.
            if plan.steps.iter().any(|step| matches!(step.place, Where::Placed(_))) {
                let run: RunSummary = client.ask(request::run(&id).reading()).await?;
                let nodes = client.all_pages(request::cluster_nodes(run.cluster)).await?;
                names.extend(nodes.into_iter().map(|node| (node.id, node.hostname)));
            }
            EventLines::new(names)
        }
        Format::Json | Format::Yaml => EventLines::default(),
    };
    let request = request::run_events(&id).with_any("since", args.since);
    if args.follow {
        return event::follow(request.with("follow", 1), lines, client, out).await;
    }
    event::list(request.with("limit", limits::PAGE_MOST), lines, client, out).await
}
