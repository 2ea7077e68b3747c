//! Owns what a replica gets in the place of lease tokens, which never leave the server: whoever holds one may speak for
//! the execution. The same token has the same mask, so the guards of a copy work; no token follows from its mask.

use downbeat_core::execution::{Execution, Lease, State};
use downbeat_core::ids::LeaseToken;
use downbeat_core::{Change, Event};
use uuid::Uuid;

fn mask(token: &mut LeaseToken) {
    *token = LeaseToken(Uuid::new_v5(&Uuid::NAMESPACE_OID, token.0.as_bytes()));
}

fn mask_lease(lease: &mut Lease) {
    mask(&mut lease.token);
}

pub(super) fn mask_execution(execution: &mut Execution) {
    match &mut execution.state {
        State::Leased { lease, .. }
        | State::Running { lease, .. }
        | State::Succeeded { lease, .. }
        | State::Lost { lease, .. } => mask_lease(lease),
        State::Failed { lease, .. } | State::Cancelled { lease, .. } => {
            if let Some(lease) = lease {
                mask_lease(lease);
            }
        }
        State::Pending { .. } | State::Skipped { .. } => {}
    }
}

pub(super) fn mask_event(event: &mut Event) {
    match &mut event.change {
        Change::ExecutionsAdded { executions, .. } => executions.iter_mut().for_each(mask_execution),
        Change::ExecutionLeased { lease, .. } => mask_lease(lease),
        Change::ExecutionStarted { token, .. }
        | Change::ExecutionFinished { token, .. }
        | Change::ExecutionLost { token, .. } => mask(token),
        Change::NodeRegistered { .. }
        | Change::NodeMoved { .. }
        | Change::NodeDrainSet { .. }
        | Change::NodeProblemsSet { .. }
        | Change::NodeDeleted { .. }
        | Change::RunCreated { .. }
        | Change::RunTaken { .. }
        | Change::RunCancelRequested { .. }
        | Change::RunPauseSet { .. }
        | Change::RunAdmitted { .. }
        | Change::ExecutionCancelRequested { .. }
        | Change::ExecutionGivenUp { .. }
        | Change::ExecutionSkipped { .. }
        | Change::RunMoved { .. }
        | Change::Unknown { .. } => {}
    }
}
