//! Owns the users: they submit runs, ask again without a response, pause, cancel and retry runs, and drain and delete nodes.

use std::sync::Arc;
use std::time::Duration;

use downbeat_core::Dice;
use downbeat_core::backend::Catalogue;
use downbeat_core::ids::RunId;
use downbeat_core::spec::{Definition, from_json};
use downbeat_server::{Caller, Class, Drain, Error, Force, IdempotencyKey, Redo, Retry, Service, Submit};

use crate::cluster::{Cluster, Which};
use crate::jobs::{job, small_job};

pub(crate) static SIM: Caller = Caller::named("sim");

/// How long a client waits for a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Calls a random server. Returns nothing if the server does not respond in time or crashes.
pub(crate) async fn ask<T, F: Future<Output = T>>(
    cluster: &Cluster,
    what: impl FnOnce(Service) -> F,
) -> Option<T> {
    let (service, gate) = cluster.service(cluster.world.index(cluster.shape.servers))?;
    let asked = async {
        gate.pass().await;
        let answer = what(service).await;
        gate.pass().await;
        answer
    };
    gate.run(tokio::time::timeout(RESPONSE_TIMEOUT, asked)).await?.ok()
}

/// Submits one run after a random delay, and may cancel it.
pub(crate) async fn submit(
    cluster: Arc<Cluster>,
    which: Which,
    number: usize,
    within: Duration,
    cancel: bool,
) {
    let world = cluster.world.clone();
    let definition = world.draw(|dice| definition(which, cluster.shape.agents, dice));
    let keyed = world.below(5) > 0;
    tokio::time::sleep(world.up_to(within)).await;
    let run = loop {
        let submit = Submit {
            params: None,
            definition: definition.clone(),
            no_cache: false,
            idempotency_key: keyed.then(|| IdempotencyKey {
                key: format!("key-{number}"),
                former: None,
                request_hash: format!("request-{number}"),
            }),
        };
        match ask(&cluster, |service| async move { service.submit(&SIM, submit).await }).await {
            Some(Ok(submitted)) => break submitted.run.id.clone(),
            // Its nodes do not exist yet.
            Some(Err(error)) if error.class() == Class::Rejected => {
                world.log(format_args!("run {number} is refused: {error}"));
            }
            // A retry without a key could create a second run.
            Some(Err(_)) | None if !keyed => {
                world.log(format_args!("run {number} may or may not exist"));
                return;
            }
            Some(Err(error)) => world.log(format_args!("run {number} is not accepted: {error}")),
            None => {}
        }
        if cluster.may_be_deleted(which) {
            return;
        }
        tokio::time::sleep(Duration::from_secs(1) + world.up_to(Duration::from_secs(2))).await;
    };
    let shown = serde_json::to_string(&definition).unwrap_or_default();
    world.log(format_args!("run {number} is accepted: {run} {shown}"));
    world.truth(|truth| truth.accepted.push(run.clone()));
    if world.below(5) == 0 {
        tokio::time::sleep(world.up_to(within)).await;
        pause_for_a_while(&cluster, &run).await;
    }
    if cancel {
        tokio::time::sleep(world.up_to(within)).await;
        cancel_run(&cluster, &run).await;
    }
    if world.below(3) == 0 {
        retry_run(&cluster, &run).await;
    }
}

/// Waits until a run has ended, and retries it.
async fn retry_run(cluster: &Cluster, run: &RunId) {
    let world = &cluster.world;
    loop {
        let first = run.clone();
        match ask(cluster, |service| async move { service.run(&SIM, &first).await }).await {
            Some(Ok(first)) if first.live.is_ended() => break,
            // It was removed.
            Some(Err(error)) if error.class() != Class::Unavailable => return,
            _ => tokio::time::sleep(Duration::from_secs(1)).await,
        }
    }
    let redo = match world.below(3) {
        0 => Redo::Failed,
        1 => Redo::FailedNodes,
        _ => Redo::From("t0".to_owned()),
    };
    let key =
        IdempotencyKey { key: format!("retry-{run}"), former: None, request_hash: format!("{run} {redo:?}") };
    for _ in 0..20 {
        let retry = Retry { run: run.clone(), redo: redo.clone(), idempotency_key: Some(key.clone()) };
        match ask(cluster, |service| async move { service.retry(&SIM, retry).await }).await {
            Some(Ok(second)) => {
                world.log(format_args!("{run} is retried ({redo:?}) as {}", second.run.id));
                world.truth(|truth| {
                    truth.counts.retries += 1;
                    truth.accepted.push(second.run.id.clone());
                });
                return;
            }
            Some(Err(error)) if error.class() != Class::Unavailable => {
                world.log(format_args!("{run} is not retried: {error}"));
                return;
            }
            Some(Err(_)) | None => tokio::time::sleep(Duration::from_secs(1)).await,
        }
    }
}

/// Pauses a run and resumes it later, with retries until a server responds.
async fn pause_for_a_while(cluster: &Cluster, run: &RunId) {
    cluster.world.log(format_args!("{run} will be paused"));
    let paused = run.clone();
    let _ = ask(cluster, |service| async move { service.pause(&SIM, &paused).await }).await;
    tokio::time::sleep(cluster.world.up_to(Duration::from_secs(20))).await;
    // The resumption is refused if the run has ended, or if the pause never arrived.
    let resume = |service: Service, run: RunId| async move { service.resume(&SIM, &run).await };
    until_decided(cluster, run, usize::MAX, resume).await;
}

/// Repeats a request for a run until a server has decided it; returns whether it was accepted.
async fn until_decided<F: Future<Output = Result<(), Error>>>(
    cluster: &Cluster,
    run: &RunId,
    attempts: usize,
    what: impl Fn(Service, RunId) -> F,
) -> bool {
    for _ in 0..attempts {
        match ask(cluster, |service| what(service, run.clone())).await {
            Some(Ok(())) => return true,
            Some(Err(error)) if error.class() != Class::Unavailable => return false,
            Some(Err(_)) | None => tokio::time::sleep(Duration::from_secs(1)).await,
        }
    }
    false
}

async fn cancel_run(cluster: &Cluster, run: &RunId) {
    let force = if cluster.world.below(3) == 0 { Force::On } else { Force::Off };
    cluster.world.log(format_args!("{run} will be cancelled, force {force:?}"));
    let cancel = |service: Service, run: RunId| async move { service.cancel(&SIM, &run, force).await };
    if until_decided(cluster, run, 20, cancel).await {
        cluster.world.truth(|truth| truth.counts.cancels += 1);
    }
}

/// Drains a node and undrains it later, with retries until a server responds.
pub(crate) async fn drain(cluster: Arc<Cluster>, agent: usize, duration: Duration) {
    let Some(node) = cluster.node(agent) else { return };
    cluster.world.log(format_args!("n{agent} will be drained for {duration:?}"));
    let _ = ask(&cluster, |service| async move { service.set_drain(&SIM, node, Drain::On).await }).await;
    tokio::time::sleep(duration).await;
    while !matches!(
        ask(&cluster, |service| async move { service.set_drain(&SIM, node, Drain::Off).await }).await,
        Some(Ok(()))
    ) {
        if cluster.may_be_deleted(cluster.cluster_of(agent)) {
            return;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Deletes a node, online or not. Its agent stops when it is notified, and is started again.
pub(crate) async fn delete(cluster: Arc<Cluster>, agent: usize) {
    let Some(node) = cluster.node(agent) else { return };
    let force = if cluster.world.below(2) == 0 { Force::On } else { Force::Off };
    cluster.world.log(format_args!("n{agent} will be deleted, {force:?}"));
    let answer = ask(&cluster, |service| async move { service.delete_node(&SIM, node, force).await }).await;
    let deleted =
        answer.map(|answer| answer.map(|tombstone| tombstone.session).map_err(|error| error.to_string()));
    cluster.world.log(format_args!("the deletion of n{agent}: {deleted:?}"));
}

fn definition(which: Which, agents: usize, dice: &mut Dice) -> Definition {
    let job = match which {
        Which::Default => job(agents, dice),
        Which::Second => small_job(which.name(), dice),
    };
    from_json(&job, &Catalogue::builtin())
        .unwrap_or_else(|problems| panic!("a random job is invalid: {problems:?} in {job:#}"))
}
