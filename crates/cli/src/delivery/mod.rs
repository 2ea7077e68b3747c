//! `delivery …`: messages about runs.

use clap::{Args, Subcommand};
use downbeat_api::request;
use downbeat_client::{Body, Client};
use downbeat_core::delivery::DeliveryStatus;
use jiff::Timestamp;

use crate::exit::Result;
use crate::later;
use crate::out::Out;
use crate::render::{delivery_page, delivery_table};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// List webhooks and notifications, the newest first
    List(ListArgs),
    /// Show a delivery with what is sent
    Show(Which),
    /// Send a delivery again that was delivered or given up
    Send(Which),
    /// A verb that does not exist, with its arguments
    #[command(external_subcommand)]
    Unknown(Vec<String>),
}

#[derive(Debug, Args)]
pub(crate) struct Which {
    /// Id of the delivery
    id: String,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only deliveries about this run
    #[arg(long, value_name = "RUN")]
    run: Option<String>,
    /// Only deliveries about runs of this job
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// Only those that are pending, delivered or failed
    #[arg(long, value_name = "STATUS", value_parser = DeliveryStatus::ALL.map(DeliveryStatus::as_str), hide_possible_values = true)]
    status: Option<String>,
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
}

pub(crate) async fn run(verb: Verb, client: &Client, out: Out) -> Result {
    match verb {
        Verb::List(args) => list(args, client, out).await,
        Verb::Show(which) => {
            let delivery = client.ask(request::delivery(&which.id)).await?;
            out.result(&delivery, || delivery_page(&delivery, Timestamp::now(), out.width()))
        }
        Verb::Send(which) => {
            let delivery = client.send(request::send_delivery(&which.id), Body::Empty, None).await?;
            out.result(&delivery, || format!("{} to {} is sent again", delivery.action, delivery.destination))
        }
        Verb::Unknown(words) => Err(later::unknown(Some("delivery"), &words)),
    }
}

async fn list(args: ListArgs, client: &Client, out: Out) -> Result {
    let request = request::deliveries()
        .with("limit", args.limit)
        .with_any("cluster", client.cluster())
        .with_any("run", args.run)
        .with_any("job", args.job)
        .with_any("status", args.status);
    let deliveries = client.ask(request).await?;
    out.result(&deliveries, || delivery_table(&deliveries.data, Timestamp::now(), out.width()))?;
    if deliveries.pagination.has_more {
        out.note(&format!("{} deliveries shown; --limit shows more", deliveries.data.len()));
    }
    Ok(())
}
