//! Fills a store with runs that ended long ago, through commits, so that their rows and events are those of real runs.

use std::sync::Arc;

use downbeat_core::Timestamp;
use downbeat_core::change::Change;
use downbeat_core::execution::{Execution, Lease, Outcome, State, Verdict};
use downbeat_core::ids::{ClusterId, ExecutionId, LeaseToken, NodeId, RunId, ServerId, SessionId};
use downbeat_core::run::{RunEnd, RunMade, RunRecord, RunState};
use downbeat_core::work::{Origin, Parent};
use downbeat_store::Store;
use serde_json::json;
use uuid::Uuid;

use super::server::cannot;
use crate::failure::{Failure, Result};

/// Executions of one run, and of one commit.
const PER_RUN: u64 = 1_000;
/// When all of them ended: longer ago than anything is kept.
const AT: &str = "2020-01-01T00:00:00Z";

/// Adds executions that succeeded long ago.
pub(super) async fn fill(location: &str, executions: u64) -> Result<()> {
    let store = downbeat_store::open(location).await.map_err(|error| cannot("open the store", &error))?;
    let server = ServerId(Uuid::from_u128(1));
    for run in 0..executions.div_ceil(PER_RUN) {
        let size = PER_RUN.min(executions - run * PER_RUN);
        commit(store.as_ref(), server, &changes(run, size, server)?).await?;
    }
    store.close().await;
    Ok(())
}

async fn commit(store: &dyn Store, server: ServerId, changes: &[Change]) -> Result<()> {
    let done = store.commit(server, changes).await.map_err(|error| cannot("fill the store", &error))?;
    match done.outcomes.into_iter().find_map(Result::err) {
        None => Ok(()),
        Some(refusal) => Err(Failure::bug(format!("cannot fill the store: {refusal}"))),
    }
}

/// Returns the whole history of a run.
fn changes(number: u64, size: u64, server: ServerId) -> Result<Vec<Change>> {
    let at: Timestamp = AT.parse().map_err(|error| cannot("read a time", &error))?;
    let run = RunId::from(format!("old-{number:09}"));
    let id = |kind: u64, index: u64| Uuid::from_u64_pair(kind << 48 | number, index);
    let definition = json!({"tasks": [{"backend": "test", "action": "noop"}]});
    let definition = serde_json::from_value(definition).map_err(|error| cannot("read a job", &error))?;
    let made = RunMade {
        id: run.clone(),
        cluster: ClusterId::DEFAULT,
        job: Some("old".to_owned()),
        definition: Arc::new(definition),
        resolved: Arc::default(),
        by: "bench".to_owned(),
        idempotency_key: None,
        request_hash: None,
        created_at: at,
        params: Default::default(),
        retry_of: None,
        no_cache: false,
        job_version: None,
    };
    let lease = |index| Lease {
        token: LeaseToken(id(2, index)),
        node: NodeId(Uuid::from_u128(2)),
        session: SessionId(Uuid::from_u128(3)),
        granted_at: at,
    };
    let execution = |index: u64| Execution {
        id: ExecutionId(id(1, index)),
        of: Origin::Step { run: run.clone(), step: u32::try_from(index).unwrap_or(u32::MAX), item: None },
        pinned: None,
        round: 1,
        attempt: 1,
        created_at: at,
        state: State::Leased { lease: lease(index), stop: false },
        params: Default::default(),
        reused: None,
        limits: None,
        cache_key: None,
        former: None,
        failed_for_good: None,
    };
    let finished = |index: u64| Change::ExecutionFinished {
        of: Parent::Run(run.clone()),
        execution: ExecutionId(id(1, index)),
        token: LeaseToken(id(2, index)),
        outcome: Outcome {
            verdict: Verdict::Succeeded,
            exit_code: Some(0),
            error: None,
            outputs: Default::default(),
            started_at: at,
            finished_at: at,
            received_at: Some(at),
        },
    };
    let record = RunRecord::new(made, server);
    let executions = (0..size).map(execution).collect();
    let mut changes = vec![
        Change::RunCreated { run: record, max_pending: None, max_open: None, firing: None },
        Change::ExecutionsAdded {
            run: run.clone(),
            epoch: 1,
            executions,
            rollout: None,
            version: None,
            sessions: Vec::new(),
            after: None,
            at,
        },
    ];
    changes.extend((0..size).map(finished));
    let path = vec![RunState::Starting, RunState::Running, RunState::Terminating, RunState::Completed];
    changes.push(Change::RunMoved {
        room: None,
        run,
        epoch: 1,
        path,
        stop: None,
        end: Some(RunEnd::default()),
        at,
    });
    Ok(changes)
}
