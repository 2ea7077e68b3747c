//! A fault about a session is not final. Registrations and leases decide whether the agent and its work continue.

use std::sync::Arc;
use std::time::Duration;

use downbeat_agent::{Error, Handle};
use downbeat_core::execution::Verdict;
use downbeat_core::ids::ClusterId;
use downbeat_proto::message::Fault;
use uuid::Uuid;

use crate::delivery::died_with_results;
use crate::fake::{Seen, Server, alive, eventually, held, shell, sleep, start, unique};

fn superseded() -> Option<Fault> {
    Some(Fault::Superseded("a newer agent registered".to_owned()))
}

/// An agent with long-running work.
async fn busy(server: &Arc<Server>, data: &std::path::Path) -> (Handle, u128) {
    let (agent, number) = (start(server, data), unique());
    server.give([shell(number, "sleep 1000")]);
    server.until("it began", |state| (!state.started.is_empty()).then_some(())).await;
    (agent, number)
}

#[tokio::test]
async fn an_agent_that_a_heartbeat_calls_superseded_registers_again_and_goes_on_when_it_is_taken() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let (mut agent, number) = busy(&server, data.path()).await;
    server.change(|state| {
        state.estranged = superseded();
        state.heartbeats.clear();
    });
    server.until("registered again", |state| (state.registered.len() == 2).then_some(())).await;
    server.until("it goes on", |state| state.heartbeats.first().cloned()).await;
    assert!(!alive(number).is_empty(), "with its work");
    agent.kill().await;
}

#[tokio::test]
async fn an_agent_that_a_heartbeat_calls_superseded_ends_its_work_when_another_has_the_node() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let (mut agent, number) = busy(&server, data.path()).await;
    server.change(|state| {
        state.estranged = superseded();
        state.refuse_registering = Some(Fault::Occupied("it is online as another installation".to_owned()));
    });
    eventually("its work is ended", || alive(number).is_empty()).await;
    server.change(|state| state.refuse_registering = None);
    server.until("registered again", |state| (state.registered.len() == 2).then_some(())).await;
    agent.kill().await;
}

#[tokio::test]
async fn a_server_from_before_that_says_superseded_is_not_registered_with_again() {
    let (server, data) = (Server::with(|server| server.is_old = true), tempfile::tempdir().unwrap());
    let (mut agent, _) = busy(&server, data.path()).await;
    server.change(|state| state.estranged = superseded());
    assert!(matches!(agent.wait().await.unwrap_err(), Error::Superseded(_)));
    assert_eq!(server.state.lock().unwrap().registered.len(), 1, "or two agents would take the node in turn");
}

#[tokio::test]
async fn a_cluster_that_was_created_again_ends_the_agent_when_its_leases_are_over_and_gets_no_ghost() {
    let server = Server::with(|server| server.lease_ttl = Duration::from_millis(300));
    let data = tempfile::tempdir().unwrap();
    let (mut agent, _) = busy(&server, data.path()).await;
    server.change(|state| {
        state.estranged = Some(Fault::Unknown("node".to_owned()));
        state.cluster = Some(ClusterId(Uuid::from_u128(7)));
    });
    let error = agent.wait().await.unwrap_err();
    assert!(matches!(error, Error::OtherCluster { .. }), "{error}");
    assert_eq!(server.state.lock().unwrap().registered.len(), 1);
}

#[tokio::test]
async fn results_are_delivered_first_when_the_server_that_takes_the_agent_is_one_from_before() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let number = unique();
    died_with_results(&server, data.path(), &[number]).await;
    server.change(|state| {
        state.hellos_until_old = Some(1);
        state.lose_registers = 1;
    });
    let agent = start(&server, data.path());
    server.until("registered again", |state| (state.registered.len() == 2).then_some(())).await;
    let seen = server.state.lock().unwrap().seen.clone();
    let report = Seen::Report(vec![held(number).execution.0.as_u128()]);
    let place = |wanted: &Seen| seen.iter().position(|one| one == wanted);
    assert!(place(&report).is_some_and(|at| Some(at) < place(&Seen::Register)), "{seen:?}");
    agent.drain_and_stop().await.unwrap();
}

#[tokio::test]
async fn leases_that_a_store_has_never_heard_of_are_neither_ended_nor_renewed() {
    let server = Server::with(|server| server.lease_ttl = Duration::from_millis(300));
    let data = tempfile::tempdir().unwrap();
    let agent = start(&server, data.path());
    let (exclusive, patient) = (unique(), unique());
    let mut work = sleep(exclusive, "1h");
    work.stop_on_disconnect = true;
    server.give([work, sleep(patient, "1h")]);
    server.until("both began", |state| (state.started.len() == 2).then_some(())).await;
    server.change(|state| state.unheard = vec![held(exclusive), held(patient)]);
    // Another store may have leased the first one again, so it ends itself. The other one continues.
    assert_eq!(server.result(exclusive).await.outcome.verdict, Verdict::Failed);
    server.change(|state| state.stop.push(held(patient)));
    assert_eq!(server.result(patient).await.outcome.verdict, Verdict::Cancelled);
    agent.drain_and_stop().await.unwrap();
}
