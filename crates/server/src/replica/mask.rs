//! Masks lease tokens, which never leave the server: the holder of a token may act for the execution. Equal
//! tokens have equal masks, so the guards of a copy work; a mask does not reveal its token.

use downbeat_core::Event;
use downbeat_core::execution::Execution;
use downbeat_core::ids::LeaseToken;
use uuid::Uuid;

fn mask(token: &mut LeaseToken) {
    *token = LeaseToken(Uuid::new_v5(&Uuid::NAMESPACE_OID, token.0.as_bytes()));
}

pub(super) fn mask_execution(execution: &mut Execution) {
    if let Some(lease) = execution.state.lease_mut() {
        mask(&mut lease.token);
    }
}

pub(super) fn mask_event(event: &mut Event) {
    event.change.tokens_mut().for_each(mask);
}
