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
use super::start::agent_ended;
use super::stop::Stop;
use super::{logging, started};
use crate::exit::{Code, Failure};
use crate::out::Out;
use crate::settings::LogFormat;

/// Nobody waits for long when trying things out.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Of each node; the same on every machine, so that what is tried out here behaves alike there.
const SLOTS: u32 = 4;
/// The label that a node has its number in.
const NUMBER: &str = "number";
/// Nodes of the same process register within milliseconds, unless something is wrong.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(30);
const LOOK_PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug, Args)]
pub(crate) struct DevArgs {
    /// Where everything is kept; the next start goes on with it
    #[arg(long, value_name = "DIR", default_value = "./downbeat-data/dev")]
    data: PathBuf,
    /// Where REST is served
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:4680")]
    http: SocketAddr,
    /// Where agents dial in
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:4681")]
    grpc: SocketAddr,
    /// How many nodes
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=1000))]
    nodes: u32,
    /// Groups that every node belongs to, with commas
    #[arg(long, value_name = "GROUPS", default_value = "dev", value_delimiter = ',')]
    groups: Vec<String>,
    /// error, warn, info, debug or trace, or a filter
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    log_level: String,
    /// Write the addresses to this file when everything is up
    #[arg(long, value_name = "PATH", hide = true)]
    ready_file: Option<PathBuf>,
}

pub(crate) async fn run(args: DevArgs, out: Out) -> Result<(), Failure> {
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
    let mut agents: Vec<Handle> = hostnames
        .iter()
        .zip(1..)
        .map(|(hostname, number)| start_agent(&args, &server, hostname, number))
        .collect();

    tokio::select! {
        registered = registered(&server, &hostnames) => registered?,
        failure = first_to_end(&mut agents) => return Err(failure),
        () = stop.asked() => return end(&mut stop, &mut agents, server).await,
    }
    forget_others(&server, &hostnames).await;
    let ready = Ready::of(&server, hostnames);
    announce(&ready, args.ready_file.as_deref(), out, || banner(&ready, &args.groups, &args.data))?;

    tokio::select! {
        failure = first_to_end(&mut agents) => {
            server.stop().await;
            return Err(failure);
        }
        () = stop.asked() => {}
    }
    out.note("stopping");
    end(&mut stop, &mut agents, server).await
}

fn start_agent(args: &DevArgs, server: &Server, hostname: &str, number: u32) -> Handle {
    let settings = AgentSettings {
        servers: vec![server.grpc_addr().to_string()],
        hostname: hostname.to_owned(),
        groups: args
            .groups
            .iter()
            .map(|group| group.trim().to_owned())
            .filter(|group| !group.is_empty())
            .collect(),
        labels: [(NUMBER.to_owned(), number.to_string())].into(),
        slots: SLOTS,
        allow: all_that_need_allow().map(str::to_owned).collect(),
        guard: Some(GUARD.into()),
        drain_timeout: DRAIN_TIMEOUT,
        ..AgentSettings::new(args.data.join(hostname))
    };
    Agent::start(settings, Arc::new(Grpc))
}

/// Until all of the nodes are online.
async fn registered(server: &Server, hostnames: &[String]) -> Result<(), Failure> {
    let give_up_at = Instant::now() + REGISTER_TIMEOUT;
    let started_at = server.service().started_at();
    loop {
        let nodes = server.service().store().nodes(None).await;
        let nodes = nodes
            .map_err(|error| Failure::new(Code::Unreachable, format!("cannot look for nodes: {error}")))?;
        let online = |hostname: &String| {
            // A node of the same name may be there from the last time.
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

/// Nodes of an earlier start with more of them are gone for good: what is for all nodes must not wait for them.
async fn forget_others(server: &Server, hostnames: &[String]) {
    let Ok(nodes) = server.service().store().nodes(None).await else { return };
    // An agent of somebody else may have such a name, but not the label too.
    let is_ours = |node: &NodeRecord| {
        let number = node.description.labels.get(NUMBER);
        number.is_some_and(|number| node.description.hostname == format!("node-{number}"))
    };
    let gone =
        nodes.into_iter().filter(|node| is_ours(node) && !hostnames.contains(&node.description.hostname));
    for node in gone {
        // The process that had them has ended: they are online only in the store, if at all.
        if let Err(error) = server.service().delete_node(&Caller::named("dev"), node.id, Force::On).await {
            tracing::warn!(hostname = node.description.hostname, %error, "cannot delete a node of an earlier start");
        }
    }
}

/// Agents end by themselves only when something is wrong. Without agents nobody ever does.
async fn first_to_end(agents: &mut Vec<Handle>) -> Failure {
    loop {
        if agents.is_empty() {
            return std::future::pending().await;
        }
        let (ended, index, _) = select_all(agents.iter_mut().map(|agent| Box::pin(agent.wait()))).await;
        match ended {
            Ok(()) => return Failure::bug("an agent ended without being told to"),
            // Somebody deleted its node, and the others go on.
            Err(AgentError::NotFound(_)) => drop(agents.swap_remove(index)),
            Err(error) => return agent_ended(&error),
        }
    }
}

/// Gracefully, unless a second signal comes: then everything that runs is killed.
async fn end(stop: &mut Stop, agents: &mut [Handle], server: Server) -> Result<(), Failure> {
    match stop.or_insist(drained(agents, server)).await {
        Ok(()) => Ok(()),
        Err(insisted) => {
            join_all(agents.iter_mut().map(Handle::kill)).await;
            Err(insisted.into())
        }
    }
}

/// Agents first: what they finish is still taken.
async fn drained(agents: &mut [Handle], server: Server) {
    agents.iter().for_each(Handle::drain);
    for agent_end in join_all(agents.iter_mut().map(Handle::wait)).await {
        if let Err(error) = agent_end {
            tracing::warn!(%error, "an agent did not end well");
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
           REST    {url}/api/v1/docs\n  \
           agents  {grpc}\n  \
           nodes   {nodes}, groups {groups}\n  \
           allowed {allowed}\n  \
           data    {data}\n\n\
         go on in another terminal:\n  \
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
