//! `dev`: a server and some agents in one process, to try things out.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use downbeat_agent::{Agent, Error as AgentError, Grpc, Handle, Settings as AgentSettings, reap_orphans};
use downbeat_core::backend::all_that_need_allow;
use downbeat_core::node::{NodeRecord, NodeStatus};
use downbeat_server::{Caller, Force, Server, Settings};
use futures_util::future::{join_all, select_all};
use tokio::time::{Instant, sleep};

use super::guard::GUARD;
use super::ready::{Ready, announce};
use super::start::{agent_ended, server_ended};
use super::stop::Stop;
use super::{logging, started};
use crate::exit::{Code, Failure, Result};
use crate::out::Out;
use crate::settings::LogFormat;

/// Short: nobody wants to wait when trying things out.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// The slots of each node; fixed, so that examples behave the same on every machine.
const SLOTS: u32 = 4;
/// The label that holds the number of a node.
const NUMBER: &str = "number";
/// Nodes of the same process register within milliseconds, unless something is wrong.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(30);
const LOOK_PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug, Args)]
pub(crate) struct DevArgs {
    /// Data directory; the next start continues with it
    #[arg(long, value_name = "DIR", default_value = "./downbeat-data/dev")]
    data: PathBuf,
    /// Address of the REST API
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:4680")]
    http: SocketAddr,
    /// Address for agents
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:4681")]
    grpc: SocketAddr,
    /// Number of nodes
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=1000))]
    nodes: u32,
    /// Groups of every node, comma-separated
    #[arg(long, value_name = "GROUPS", default_value = "dev", value_delimiter = ',')]
    groups: Vec<String>,
    /// Log level (error, warn, info, debug, trace) or a filter
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    log_level: String,
    /// Write the addresses to this file when everything is up
    #[arg(long, value_name = "PATH", hide = true)]
    ready_file: Option<PathBuf>,
}

pub(crate) async fn run(args: DevArgs, out: Out) -> Result {
    logging::start(&args.log_level, LogFormat::Text)?;
    let mut stop = Stop::listen()?;
    tokio::spawn(reap_orphans());
    let store = format!("sqlite:{}", args.data.join("downbeat.db").display());
    let server = started(Settings {
        store,
        http: args.http,
        grpc: args.grpc,
        name: "dev".to_owned(),
        ..Settings::default()
    })
    .await?;
    let hostnames: Vec<String> = (1..=args.nodes).map(|number| format!("node-{number}")).collect();
    let started = hostnames.iter().zip(1..).map(|(name, number)| start_agent(&args, &server, name, number));
    let mut agents: Vec<Handle> = started.collect();

    tokio::select! {
        registered = wait_until_registered(&server, &hostnames) => registered?,
        failure = first_failure(&mut agents) => return Err(failure),
        () = stop.requested() => return end(&mut stop, &mut agents, server).await,
    }
    delete_old_nodes(&server, &hostnames).await;
    let ready = Ready::of(&server, hostnames);
    announce(&ready, args.ready_file.as_deref(), out, || banner(&ready, &args.groups, &args.data))?;

    tokio::select! {
        failure = first_failure(&mut agents) => {
            server.stop().await;
            return Err(failure);
        }
        ended = server.failed() => return Err(server_ended(&ended)),
        () = stop.requested() => {}
    }
    out.note("stopping");
    end(&mut stop, &mut agents, server).await
}

fn start_agent(args: &DevArgs, server: &Server, hostname: &str, number: u32) -> Handle {
    let groups = args.groups.iter().map(|group| group.trim()).filter(|group| !group.is_empty());
    let settings = AgentSettings {
        servers: vec![server.grpc_addr().to_string()],
        hostname: hostname.to_owned(),
        groups: groups.map(str::to_owned).collect(),
        labels: [(NUMBER.to_owned(), number.to_string())].into(),
        slots: SLOTS,
        allow: all_that_need_allow().map(str::to_owned).collect(),
        guard: Some(GUARD.into()),
        drain_timeout: DRAIN_TIMEOUT,
        ..AgentSettings::new(args.data.join(hostname))
    };
    Agent::start(settings, Arc::new(Grpc))
}

async fn wait_until_registered(server: &Server, hostnames: &[String]) -> Result {
    let give_up_at = Instant::now() + REGISTER_TIMEOUT;
    let started_at = server.service().started_at();
    loop {
        let nodes = server.service().views().nodes(None).await;
        let nodes = nodes
            .map_err(|error| Failure::new(Code::Unreachable, format!("cannot look for nodes: {error}")))?;
        let online = |hostname: &String| {
            // The store may contain a node of the same name from an earlier start.
            nodes.iter().any(|node| {
                node.description.hostname == *hostname
                    && node.status == NodeStatus::Online
                    && node.registered_at >= started_at
            })
        };
        if hostnames.iter().all(online) {
            return Ok(());
        }
        if Instant::now() > give_up_at {
            return Err(Failure::bug("the nodes did not register"));
        }
        sleep(LOOK_PAUSE).await;
    }
}

/// Deletes nodes of an earlier start with more nodes: runs on all nodes must not wait for them.
async fn delete_old_nodes(server: &Server, hostnames: &[String]) {
    let Ok(nodes) = server.service().views().nodes(None).await else { return };
    // An agent that was started by hand may have such a name, but not also the label.
    let is_ours = |node: &NodeRecord| {
        let number = node.description.labels.get(NUMBER);
        number.is_some_and(|number| node.description.hostname == format!("node-{number}"))
    };
    let gone =
        nodes.into_iter().filter(|node| is_ours(node) && !hostnames.contains(&node.description.hostname));
    for node in gone {
        // Their process has ended, so they are online only in the store, if at all.
        if let Err(error) = server.service().delete_node(&Caller::named("dev"), node.id, Force::On).await {
            tracing::warn!(hostname = node.description.hostname, %error, "cannot delete a node of an earlier start");
        }
    }
}

/// Waits until an agent fails. Without agents, waits forever.
async fn first_failure(agents: &mut Vec<Handle>) -> Failure {
    loop {
        if agents.is_empty() {
            return std::future::pending().await;
        }
        let (ended, index, _) = select_all(agents.iter_mut().map(|agent| Box::pin(agent.wait()))).await;
        match ended {
            Ok(()) => return Failure::bug("an agent ended unexpectedly"),
            // Its node was deleted; the other agents continue.
            Err(AgentError::NotFound(_)) => drop(agents.swap_remove(index)),
            Err(error) => return agent_ended(&error),
        }
    }
}

/// Stops gracefully; a second signal kills everything that runs.
async fn end(stop: &mut Stop, agents: &mut [Handle], server: Server) -> Result {
    match stop.unless_forced(drain_all(agents, server)).await {
        Ok(()) => Ok(()),
        Err(forced) => {
            join_all(agents.iter_mut().map(Handle::kill)).await;
            Err(forced.into())
        }
    }
}

/// Agents first: the server still accepts their last results.
async fn drain_all(agents: &mut [Handle], server: Server) {
    agents.iter().for_each(Handle::drain);
    for agent_end in join_all(agents.iter_mut().map(Handle::wait)).await {
        if let Err(error) = agent_end {
            tracing::warn!(%error, "an agent ended with an error");
        }
    }
    server.stop().await;
}

fn banner(ready: &Ready, groups: &[String], data: &Path) -> String {
    let at =
        if ready.url == "http://127.0.0.1:4680" { String::new() } else { format!(" --server {}", ready.url) };
    let nodes = match ready.nodes.as_slice() {
        [] => "none".to_owned(),
        [only] => only.clone(),
        [first, .., last] => format!("{} ({first} to {last})", ready.nodes.len()),
    };
    let allowed = all_that_need_allow().collect::<Vec<_>>().join(", ");
    let (url, grpc, data, groups) = (&ready.url, ready.grpc, data.display(), groups.join(","));
    format!(
        "downbeat dev is up\n  \
           UI      {url}/ui/\n  \
           REST    {url}/api/v1/docs\n  \
           agents  {grpc}\n  \
           nodes   {nodes}, groups {groups}\n  \
           allowed {allowed}\n  \
           data    {data}\n\n\
         continue in another terminal:\n  \
           downbeat job run{at} --target all --watch exec run --command 'uptime -p'\n  \
           downbeat run list{at}\n  \
           downbeat status{at}\n\n\
         Ctrl-C stops it\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_banner_says_how_to_go_on() {
        let ready = Ready {
            http: "127.0.0.1:5000".parse().unwrap(),
            grpc: "127.0.0.1:5001".parse().unwrap(),
            url: "http://127.0.0.1:5000".to_owned(),
            nodes: vec!["node-1".to_owned(), "node-2".to_owned(), "node-3".to_owned()],
            pid: 1,
            store_is_new: true,
        };
        insta::assert_snapshot!(banner(&ready, &["dev".to_owned()], Path::new("./downbeat-data/dev")));
    }
}
