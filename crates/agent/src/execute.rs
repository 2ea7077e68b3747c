//! Owns one assignment from its start to its result: backend, timeout, output. Slots and leases belong to
//! `holdings`.

use std::io;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;

use downbeat_backends::{Call, Finish, OutputSink, Receive};
use downbeat_core::backend::{Params, check_params};
use downbeat_core::execution::{Outcome, cut_reason};
use downbeat_proto::message::{Finished, Started};
use futures_util::FutureExt;
use jiff::Timestamp;
use tokio::time::Instant;

use crate::guards::Guarded;
use crate::holdings::Ready;
use crate::output::Tap;
use crate::session::Outgoing;
use crate::shared::{Shared, identity};
use crate::stop::Reason;
use crate::values::Expected;

/// Executes this assignment, then each one that its slot gets.
pub(crate) fn spawn(shared: &Arc<Shared>, ready: Ready) {
    let shared = shared.clone();
    tokio::spawn(async move {
        let mut next = Some(ready);
        while let Some(ready) = next {
            let stop = ready.stop.clone();
            let finished = tokio::select! {
                biased;
                () = shared.abandon.cancelled() => return,
                finished = execute(&shared, ready) => finished,
            };
            if stop.abandons(finished.outcome.verdict) {
                return shared.abandoned(finished.held);
            }
            next = shared.ended(finished);
        }
    });
}

async fn execute(shared: &Arc<Shared>, ready: Ready) -> Finished {
    let held = ready.assignment.lease();
    let of = ready.assignment.of.parent();
    let started_at = (shared.wall)();
    tracing::debug!(
        node = %shared.node, run = %of, execution = %held.execution, attempt = ready.assignment.attempt, "started"
    );
    let buffer = shared.outputs.open(held);
    let expected = expected(shared, &ready, Tap(buffer.clone()));
    let receiver: Arc<dyn Receive> = match &expected {
        Ok(Some(expected)) => expected.listener.clone(),
        Ok(None) | Err(_) => Arc::new(Tap(buffer.clone())),
    };
    let sink = OutputSink::new(receiver, shared.wall.clone());
    let (finish, values) = match expected {
        Ok(expected) => {
            let file = expected.as_ref().map(|expected| expected.file.clone());
            // A bug of one backend costs one execution, not the agent.
            let finish = AssertUnwindSafe(attempt(shared, ready, sink.clone(), file, started_at))
                .catch_unwind()
                .await
                .unwrap_or_else(|_| Finish::failed(None, "the backend panicked; see the agent's log"));
            sink.finish();
            match expected {
                Some(expected) => expected.gather(finish, shared.disk).await,
                None => (finish, Params::new()),
            }
        }
        Err(error) => {
            (Finish::failed(None, format!("cannot prepare the file for its outputs: {error}")), Params::new())
        }
    };
    let output = buffer.close().await;
    let finished_at = (shared.wall)().max(started_at);
    tracing::debug!(node = %shared.node, run = %of, execution = %held.execution, verdict = ?finish.verdict, "ended");
    let outcome = Outcome {
        verdict: finish.verdict,
        exit_code: finish.exit_code,
        error: finish.error.map(cut_reason),
        outputs: values,
        started_at,
        finished_at,
        received_at: None,
    };
    Finished { held, of, outcome, output }
}

/// Prepares to read the outputs that the task declares, if any.
fn expected(shared: &Shared, ready: &Ready, tap: Tap) -> io::Result<Option<Expected>> {
    let assignment = &ready.assignment;
    if assignment.outputs.is_empty() {
        return Ok(None);
    }
    Expected::new(&assignment.outputs, &shared.values, identity(assignment), tap).map(Some)
}

async fn attempt(
    shared: &Arc<Shared>,
    ready: Ready,
    output: OutputSink,
    values: Option<PathBuf>,
    started_at: Timestamp,
) -> Finish {
    let Ready { assignment, stop } = ready;
    let (backend, action) = match shared.offer.action(&assignment.backend, &assignment.action) {
        Ok(found) => found,
        Err(error) => return Finish::failed(None, error),
    };
    // The agent checks again: it does not rely on the server to refuse invalid params.
    let params = match check_params(action, &assignment.params) {
        Ok(params) => params,
        Err(problems) => {
            let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
            return Finish::failed(None, problems.join("; "));
        }
    };
    let started =
        Outgoing::Started(Started { held: assignment.lease(), of: assignment.of.parent(), at: started_at });
    if assignment.stop_on_disconnect {
        tokio::select! {
            biased;
            () = stop.token().cancelled_owned() => return Finish::cancelled(None),
            () = shared.begin(assignment.lease()) => {}
        }
    }
    let guarded = assignment.stop_on_disconnect.then(|| Guarded::new(shared, assignment.lease())).flatten();
    let identity = identity(&assignment);
    let timeout = assignment.timeout;
    let begun = Instant::now();
    let work = backend.run(Call {
        action: assignment.action,
        params,
        identity,
        output,
        values,
        cancel: stop.token(),
        grace: shared.grace,
        environment: shared.environment.clone(),
        guard: guarded.as_ref().map(|guarded| guarded.guard.clone()),
    });
    tokio::pin!(work);
    // Biased: work that is done at its first poll needs no timer.
    let early = tokio::select! {
        biased;
        finish = &mut work => Some(finish),
        () = tokio::time::sleep(shared.tuning.started_after.min(timeout)) => None,
    };
    let finish = match early {
        Some(finish) => finish,
        None => {
            let _ = shared.outgoing.send(started);
            tokio::select! {
                biased;
                finish = &mut work => finish,
                () = tokio::time::sleep_until(begun + timeout) => {
                    stop.request(Reason::TimedOut(timeout));
                    work.await
                }
            }
        }
    };
    if let Some(guarded) = guarded {
        guarded.done();
    }
    stop.interpret(finish)
}
