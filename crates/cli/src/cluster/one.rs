//! `cluster create`, `list`, `show` and `update`.

use clap::Args;
use downbeat_api::request;
use downbeat_client::{Body, Client};
use downbeat_core::cluster::OnRegister;
use jiff::Timestamp;
use serde_json::json;

use super::Which;
use crate::exit::{Failure, Result};
use crate::out::Out;
use crate::render::{cluster_page, cluster_table, quoted, shown_of};

#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    #[command(flatten)]
    which: Which,
    /// A text for people
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// What a node does with the standing tasks when its agent starts again: reset does all again, resume keeps what
    /// succeeded
    #[arg(long, value_name = "reset|resume", value_parser = OnRegister::ALL.map(OnRegister::as_str), hide_possible_values = true)]
    on_register: Option<String>,
}

pub(super) async fn create(args: CreateArgs, client: &Client, out: Out) -> Result {
    let mut body = json!({"name": args.which.name});
    set(&mut body, "description", args.description);
    set(&mut body, "on_register", args.on_register);
    let cluster = client.send(request::create_cluster(), Body::Json(body.to_string()), None).await?;
    out.result(&cluster, || {
        let name = quoted(&cluster.name);
        format!(
            "cluster {name} is created; add nodes with `downbeat agent --server HOST:4681 --cluster {name}`"
        )
    })
}

fn set(body: &mut serde_json::Value, field: &str, value: Option<impl serde::Serialize>) {
    if let Some(value) = value {
        body[field] = json!(value);
    }
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Skip this many clusters
    #[arg(long, value_name = "N", default_value_t = 0)]
    offset: u64,
}

pub(super) async fn list(args: ListArgs, client: &Client, out: Out) -> Result {
    let request = request::clusters().with("limit", args.limit).with("offset", args.offset);
    let clusters = client.ask(request).await?;
    out.result(&clusters, || cluster_table(&clusters.data, Timestamp::now(), out.width()))?;
    if clusters.pagination.has_more {
        let shown = shown_of(clusters.data.len(), clusters.pagination.total);
        out.note(&format!("{shown} clusters shown; --offset and --limit show others"));
    }
    Ok(())
}

pub(super) async fn show(name: &str, client: &Client, out: Out) -> Result {
    let cluster = client.ask(request::cluster(name)).await?;
    out.result(&cluster, || cluster_page(&cluster, Timestamp::now(), out.width()))
}

#[derive(Debug, Args)]
pub(crate) struct UpdateArgs {
    #[command(flatten)]
    which: Which,
    /// The new name; agents that are started with the old one do not find the cluster any more
    // The name of the field keeps it apart from the name of the cluster.
    #[arg(long = "name", value_name = "NAME", id = "new_name")]
    new_name: Option<String>,
    /// A text for people
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// What a node does with the standing tasks when its agent starts again: reset does all again, resume keeps what
    /// succeeded
    #[arg(long, value_name = "reset|resume", value_parser = OnRegister::ALL.map(OnRegister::as_str), hide_possible_values = true)]
    on_register: Option<String>,
}

pub(super) async fn update(args: UpdateArgs, client: &Client, out: Out) -> Result {
    let mut body = json!({});
    set(&mut body, "name", args.new_name);
    set(&mut body, "description", args.description);
    set(&mut body, "on_register", args.on_register);
    if body == json!({}) {
        return Err(Failure::bad_input(
            "nothing to change; write --name, --description or --on-register with a new value",
        ));
    }
    let request = request::update_cluster(&args.which.name);
    let cluster = client.send(request, Body::Json(body.to_string()), None).await?;
    out.result(&cluster, || cluster_page(&cluster, Timestamp::now(), out.width()))
}
