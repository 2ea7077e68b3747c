//! Which agents may register as a node, the effects of deleting a node, and the faults that agents get.

use std::collections::VecDeque;
use std::time::Duration;

use downbeat_core::execution::{Outcome, Verdict};
use downbeat_core::ids::{ClusterId, NodeId, ServerId, SessionId};
use downbeat_core::node::Description;
use downbeat_core::work::Origin;
use downbeat_core::{Span, Timestamp};
use downbeat_proto::message::{
    Assignment, Fault, Finished, Free, Heartbeat, HeartbeatAnswer, Hello, InstanceId, LeaseRef, PROTOCOL,
    Poll, Receipt, Register, Report, WorkKind,
};
use downbeat_server::Settings;
use downbeat_store::ServerRecord;
use downbeat_testbed::DEADLINE;
use downbeat_testbed::in_process::{Setup, noop, send, settings};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use uuid::Uuid;

/// An agent in one of its sessions.
struct Life {
    register: Register,
    poll: u64,
    /// Assignments that arrived together with the one that was returned.
    ready: VecDeque<Assignment>,
}

/// Hostname, instance (`None` for an old agent) and session number.
fn life(hostname: &str, instance: &str, life: u64) -> Life {
    let catalogue = downbeat_core::backend::Catalogue::builtin();
    let description = Description {
        hostname: hostname.to_owned(),
        groups: Vec::new(),
        labels: [].into(),
        capabilities: [].into(),
        backends: catalogue.backends().to_vec(),
        slots: 2,
        version: "test".to_owned(),
    };
    let register = Register {
        cluster: ClusterId::DEFAULT,
        node: NodeId::derive(ClusterId::DEFAULT, hostname),
        session: SessionId(Uuid::new_v4()),
        description,
        instance: InstanceId(instance.as_bytes().to_vec()),
        undelivered: Vec::new(),
        life,
    };
    Life { register, poll: 0, ready: VecDeque::new() }
}

impl Life {
    async fn join(&self, setup: &Setup) -> Result<(), Fault> {
        setup.server.link().register(self.register.clone()).await.map(|_| ())
    }

    async fn beat_with(
        &self,
        setup: &Setup,
        held: Vec<LeaseRef>,
        leaving: bool,
    ) -> Result<Vec<LeaseRef>, Fault> {
        self.ask(setup, held, leaving).await.map(|answer| answer.refused)
    }

    async fn ask(&self, setup: &Setup, held: Vec<LeaseRef>, leaving: bool) -> Result<HeartbeatAnswer, Fault> {
        let (node, session, problems) = (self.register.node, self.register.session, Vec::new());
        let beat = Heartbeat { node, session, held, leaving, problems };
        setup.server.link().heartbeat(beat).await
    }

    async fn beat(&self, setup: &Setup) -> Result<(), Fault> {
        self.beat_with(setup, Vec::new(), false).await.map(drop)
    }

    async fn take(&mut self, setup: &Setup) -> Assignment {
        let wait = async {
            loop {
                if let Some(assignment) = self.ready.pop_front() {
                    return assignment;
                }
                self.poll += 1;
                let (node, session, poll) = (self.register.node, self.register.session, self.poll);
                let (free, wait) = (Free { fleet: 1, placed: 2, debug: None }, Duration::from_secs(5));
                let poll = Poll { node, session, free, poll, resync: None, wait };
                let answer = setup.server.link().poll(poll).await.unwrap();
                self.ready.extend(answer.assignments);
            }
        };
        tokio::time::timeout(DEADLINE, wait).await.expect("there is work")
    }

    async fn finish(&self, setup: &Setup, work: &Assignment) -> Result<Vec<Receipt>, Fault> {
        self.finish_all(setup, &[work]).await
    }

    async fn finish_all(&self, setup: &Setup, works: &[&Assignment]) -> Result<Vec<Receipt>, Fault> {
        let now = Timestamp::now();
        let outcome = Outcome {
            verdict: Verdict::Succeeded,
            exit_code: Some(0),
            error: None,
            outputs: Default::default(),
            started_at: now,
            finished_at: now,
            received_at: None,
        };
        let finished = works.iter().map(|work| {
            let (of, outcome) = (work.of.parent(), outcome.clone());
            Finished { held: held(work), of, outcome, output: Vec::new() }
        });
        let finished = finished.collect();
        let (node, session, free) = (self.register.node, self.register.session, Free::default());
        let report =
            Report { node, session, started: Vec::new(), finished, free, poll: 0, takes_work: false };
        setup.server.link().report(report).await.map(|answer| answer.receipts)
    }
}

fn held(work: &Assignment) -> LeaseRef {
    LeaseRef { execution: work.execution, token: work.token }
}

fn placed() -> Value {
    json!({"tasks": [{"backend": "test", "action": "noop", "placement": {}}]})
}

async fn delete(setup: &Setup, path: &str) -> (StatusCode, Value) {
    let answer = send(setup.request(Method::DELETE, path)).await;
    (answer.status, answer.body)
}

/// Returns the error of the first execution of a run that ended with this status.
async fn ended_reason(setup: &Setup, run: &str) -> String {
    setup.ended(run).await;
    let executions = setup.ok(&format!("/runs/{run}/executions")).await;
    executions["data"][0]["error"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_node_that_is_alive_is_taken_only_by_its_own_installation() {
    let setup = Setup::new().await;
    let first = life("web-01", "one", 1);
    first.join(&setup).await.unwrap();
    first.join(&setup).await.expect("its answer may have been lost");
    for (instance, number) in [("two", 9), ("", 0)] {
        match life("web-01", instance, number).join(&setup).await {
            Err(Fault::Occupied(why)) => {
                assert!(why.starts_with("web-01 is online as installation"), "{why}");
            }
            other => panic!("{other:?}"),
        }
    }
    first.beat(&setup).await.expect("nobody has taken its node");
    let second = life("web-01", "one", 2);
    second.join(&setup).await.expect("it has restarted");
    assert!(matches!(first.beat(&setup).await, Err(Fault::Superseded(_))));
    // A call of the former session that was delayed.
    assert!(matches!(first.join(&setup).await, Err(Fault::Superseded(_))));
    second.beat(&setup).await.unwrap();
}

#[tokio::test]
async fn a_node_whose_agent_said_goodbye_is_free_and_who_had_it_waits_for_it() {
    let setup = Setup::new().await;
    let (first, clone) = (life("web-01", "one", 1), life("web-01", "two", 1));
    first.join(&setup).await.unwrap();
    first.beat_with(&setup, Vec::new(), true).await.unwrap();
    clone.join(&setup).await.unwrap();
    assert!(matches!(first.beat(&setup).await, Err(Fault::Occupied(_))), "it does not end for that");
    assert!(matches!(first.join(&setup).await, Err(Fault::Occupied(_))));
    clone.beat_with(&setup, Vec::new(), true).await.unwrap();
    first.join(&setup).await.unwrap();
}

#[tokio::test]
async fn agents_from_before_take_their_nodes_as_they_did() {
    let setup = Setup::new().await;
    let (first, second, upgraded) = (life("web-01", "", 0), life("web-01", "", 0), life("web-01", "one", 1));
    first.join(&setup).await.unwrap();
    second.join(&setup).await.unwrap();
    assert!(matches!(first.beat(&setup).await, Err(Fault::Superseded(_))));
    upgraded.join(&setup).await.unwrap();
    assert!(matches!(second.join(&setup).await, Err(Fault::Occupied(_))));
}

#[tokio::test]
async fn an_unknown_agent_gets_the_response_to_register() {
    let setup = Setup::new().await;
    let agent = life("web-01", "one", 1);
    assert!(matches!(agent.beat(&setup).await, Err(Fault::Unknown(_))));
    let answer = agent.finish(&setup, &foreign()).await;
    assert!(matches!(answer, Err(Fault::Unknown(_))), "its results are not refused: {answer:?}");
}

/// A lease that another store granted.
fn foreign() -> Assignment {
    Assignment {
        execution: downbeat_core::ids::ExecutionId(Uuid::new_v4()),
        token: downbeat_core::ids::LeaseToken(Uuid::new_v4()),
        of: Origin::Step { run: "run".into(), step: 0, item: None },
        attempt: 1,
        kind: WorkKind::Placed,
        backend: "test".to_owned(),
        action: "noop".to_owned(),
        params: Default::default(),
        timeout: Duration::from_secs(1),
        stop_on_disconnect: false,
        outputs: Vec::new(),
    }
}

#[tokio::test]
async fn what_the_store_has_never_heard_of_is_neither_refused_nor_renewed_nor_in_the_way_of_the_rest() {
    let setup = Setup::new().await;
    let mut agent = life("web-01", "one", 1);
    agent.join(&setup).await.unwrap();
    let (run, foreign) = (setup.submit(&noop()).await, foreign());
    let own = agent.take(&setup).await;
    let answer = agent.ask(&setup, vec![held(&own), held(&foreign)], false).await.unwrap();
    assert_eq!((answer.refused, answer.unheard), (vec![], vec![held(&foreign)]));
    assert!(matches!(agent.finish(&setup, &foreign).await, Err(Fault::Unknown(_))));
    let both = agent.finish_all(&setup, &[&foreign, &own]).await;
    assert!(matches!(both, Err(Fault::Unknown(_))), "{both:?}");
    assert_eq!(setup.ended(&run).await["status"], "completed", "the other result is recorded");
    // An old agent does not know this fault.
    let old = life("web-02", "", 0);
    old.join(&setup).await.unwrap();
    assert_eq!(old.beat_with(&setup, vec![held(&foreign)], false).await.unwrap(), [held(&foreign)]);
}

#[tokio::test]
async fn what_the_store_has_never_heard_of_is_refused_when_a_leases_term_is_over() {
    let mut settings = downbeat_testbed::in_process::settings("memory:", "one");
    settings.lease_ttl = Span(Duration::from_millis(200));
    let setup = Setup::with(settings).await;
    let (agent, foreign) = (life("web-01", "one", 1), foreign());
    agent.join(&setup).await.unwrap();
    let wait =
        async { while agent.beat_with(&setup, vec![held(&foreign)], false).await.unwrap().is_empty() {} };
    tokio::time::timeout(DEADLINE, wait).await.expect("it is refused");
    assert_eq!(agent.finish(&setup, &foreign).await.unwrap(), [Receipt::Refused]);
}

#[tokio::test]
async fn a_token_counts_only_for_the_node_that_it_was_given_to() {
    let setup = Setup::new().await;
    let (mut owner, other) = (life("web-01", "one", 1), life("web-02", "two", 1));
    owner.join(&setup).await.unwrap();
    let run = setup.submit(&noop()).await;
    let work = owner.take(&setup).await;
    other.join(&setup).await.unwrap();
    assert_eq!(other.finish(&setup, &work).await.unwrap(), [Receipt::Refused]);
    assert_eq!(setup.ok(&format!("/runs/{run}")).await["finished_at"], Value::Null);
    assert_eq!(owner.finish(&setup, &work).await.unwrap(), [Receipt::Recorded]);
    assert_eq!(other.finish(&setup, &work).await.unwrap(), [Receipt::Refused]);
    assert_eq!(owner.finish(&setup, &work).await.unwrap(), [Receipt::Recorded], "again");
    setup.ended(&run).await;
}

#[tokio::test]
async fn results_that_a_new_session_announces_are_not_lost_and_the_rest_is() {
    let setup = Setup::new().await;
    let mut first = life("web-01", "one", 1);
    first.join(&setup).await.unwrap();
    let runs = [setup.submit(&placed()).await, setup.submit(&placed()).await];
    let works = [first.take(&setup).await, first.take(&setup).await];
    let mut second = life("web-01", "one", 2);
    second.register.undelivered = vec![held(&works[0])];
    second.join(&setup).await.unwrap();
    assert_eq!(second.beat_with(&setup, vec![held(&works[1])], false).await.unwrap(), [held(&works[1])]);
    assert_eq!(second.beat_with(&setup, vec![held(&works[0])], false).await.unwrap(), []);
    // The lost execution is retried, the announced one is not.
    let again = second.take(&setup).await;
    assert_eq!((again.of.run().as_str(), again.attempt), (works[1].of.run().as_str(), 2));
    assert_eq!(second.finish(&setup, &works[0]).await.unwrap(), [Receipt::Recorded]);
    assert_eq!(second.finish(&setup, &works[1]).await.unwrap(), [Receipt::Refused]);
    assert_eq!(second.finish(&setup, &again).await.unwrap(), [Receipt::Recorded]);
    for run in runs {
        assert_eq!(setup.ended(&run).await["status"], "completed");
    }
}

#[tokio::test]
async fn what_a_new_session_announces_no_more_is_lost() {
    let setup = Setup::new().await;
    let mut first = life("web-01", "one", 1);
    first.join(&setup).await.unwrap();
    let run = setup.submit(&noop()).await;
    let work = first.take(&setup).await;
    let mut second = life("web-01", "one", 2);
    second.register.undelivered = vec![held(&work)];
    second.join(&setup).await.unwrap();
    assert_eq!(setup.ok(&format!("/runs/{run}")).await["finished_at"], Value::Null);
    let mut third = life("web-01", "one", 3);
    third.join(&setup).await.unwrap();
    // `noop` is idempotent: it is retried.
    let again = third.take(&setup).await;
    assert_eq!((again.attempt, third.finish(&setup, &again).await.unwrap()), (2, vec![Receipt::Recorded]));
    setup.ended(&run).await;
}

#[tokio::test]
async fn what_an_agent_that_leaves_does_not_hold_is_lost_at_once() {
    let setup = Setup::new().await;
    let mut agent = life("web-01", "one", 1);
    agent.join(&setup).await.unwrap();
    let runs = [setup.submit(&placed()).await, setup.submit(&placed()).await];
    let works = [agent.take(&setup).await, agent.take(&setup).await];
    let mut other = life("web-02", "two", 1);
    other.join(&setup).await.unwrap();
    // It has the result of the first one.
    agent.beat_with(&setup, vec![held(&works[0])], true).await.unwrap();
    let again = other.take(&setup).await;
    assert_eq!((again.of.run().as_str(), again.attempt), (works[1].of.run().as_str(), 2));
    other.finish(&setup, &again).await.unwrap();
    let mut next = life("web-01", "one", 2);
    next.register.undelivered = vec![held(&works[0])];
    next.join(&setup).await.unwrap();
    assert_eq!(next.finish(&setup, &works[0]).await.unwrap(), [Receipt::Recorded]);
    for run in runs {
        assert_eq!(setup.ended(&run).await["status"], "completed");
    }
}

#[tokio::test]
async fn a_node_that_is_online_is_deleted_only_by_force() {
    let setup = Setup::new().await;
    let agent = life("web-01", "one", 1);
    agent.join(&setup).await.unwrap();
    let (status, body) = delete(&setup, "/nodes/web-01").await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert_eq!(body["detail"], "web-01 is online; stop its agent first, or use --force");
    agent.beat(&setup).await.unwrap();
    let (status, body) = delete(&setup, "/nodes/web-01?force=1").await;
    assert_eq!((status, &body["hostname"]), (StatusCode::OK, &json!("web-01")));
    assert_eq!(delete(&setup, "/nodes/web-01").await, (StatusCode::OK, body), "once more changes nothing");
    assert_eq!(setup.get("/nodes/web-01").await.status, StatusCode::NOT_FOUND);
    assert_eq!(delete(&setup, "/nodes/web-02").await.0, StatusCode::NOT_FOUND);
    // Its agent is refused each time; after a restart it registers as a node again.
    assert!(matches!(agent.beat(&setup).await, Err(Fault::NotFound(_))));
    assert!(matches!(agent.join(&setup).await, Err(Fault::NotFound(_))));
    let next = life("web-01", "one", 2);
    next.join(&setup).await.unwrap();
    assert!(matches!(agent.beat(&setup).await, Err(Fault::NotFound(_))));
    next.beat_with(&setup, Vec::new(), true).await.unwrap();
    assert_eq!(delete(&setup, "/nodes/web-01").await.0, StatusCode::OK, "it is not online any more");
    assert_eq!(setup.ok("/deleted-nodes").await["pagination"]["total"], 2);
}

#[tokio::test]
async fn what_a_deleted_node_has_is_lost_and_sent_to_another() {
    let setup = Setup::new().await;
    let mut agent = life("web-01", "one", 1);
    agent.join(&setup).await.unwrap();
    let run = setup.submit(&placed()).await;
    let work = agent.take(&setup).await;
    let mut other = life("web-02", "two", 1);
    other.join(&setup).await.unwrap();
    delete(&setup, "/nodes/web-01?force=1").await;
    let again = other.take(&setup).await;
    assert_eq!((again.of.run().as_str(), again.attempt), (run.as_str(), 2));
    assert!(matches!(agent.finish(&setup, &work).await, Err(Fault::NotFound(_))));
    other.finish(&setup, &again).await.unwrap();
    assert_eq!(setup.ended(&run).await["status"], "completed");
    let executions = setup.ok(&format!("/runs/{run}/executions")).await;
    let first = &executions["data"][0];
    assert_eq!((&first["node"], &first["status"]), (&json!("web-01"), &json!("lost")), "{first:#}");
    assert_eq!(first["error"], "node web-01 was deleted", "{first:#}");
}

#[tokio::test]
async fn what_waits_for_a_deleted_node_fails() {
    let setup = Setup::new().await;
    let mut agent = life("web-01", "one", 1);
    agent.join(&setup).await.unwrap();
    let two = json!({"target": "all", "tasks": [
        {"backend": "test", "action": "noop", "delivery": "at_most_once"},
        {"backend": "test", "action": "noop"},
    ]});
    let held_by_it = setup.submit(&two).await;
    agent.take(&setup).await;
    let waiting = setup.submit(&noop()).await;
    delete(&setup, "/nodes/web-01?force=1").await;
    for run in [&held_by_it, &waiting] {
        let view = setup.ended(run).await;
        assert_eq!(view["status"], "failed", "{view:#}");
    }
    assert_eq!(ended_reason(&setup, &held_by_it).await, "node web-01 was deleted");
    assert_eq!(setup.post("/runs", &noop()).await.status, StatusCode::CONFLICT, "there is no node left");
}

#[tokio::test]
async fn what_a_deleted_node_had_is_not_sent_to_it_again() {
    let setup = Setup::new().await;
    let mut first = life("web-01", "one", 1);
    first.join(&setup).await.unwrap();
    let runs = [setup.submit(&noop()).await, setup.submit(&noop()).await];
    first.take(&setup).await;
    // The first run's step is lost and waits for the node again. The node holds the second run's step.
    let mut second = life("web-01", "one", 2);
    second.join(&setup).await.unwrap();
    second.take(&setup).await;
    delete(&setup, "/nodes/web-01?force=1").await;
    for run in &runs {
        let view = setup.ended(run).await;
        assert_eq!(view["status"], "failed", "{view:#}");
        let executions = setup.ok(&format!("/runs/{run}/executions")).await;
        let last = executions["data"].as_array().and_then(|attempts| attempts.last()).unwrap();
        assert_eq!(last["error"], "node web-01 was deleted", "{executions:#}");
    }
}

#[tokio::test]
async fn a_waiting_poll_ends_when_its_node_is_deleted() {
    let setup = Setup::new().await;
    let agent = life("web-01", "one", 1);
    agent.join(&setup).await.unwrap();
    let poll = |poll| {
        let (node, session) = (agent.register.node, agent.register.session);
        let (free, wait) = (Free { fleet: 1, placed: 2, debug: None }, DEADLINE);
        let link = setup.server.link();
        Box::pin(async move { link.poll(Poll { node, session, free, poll, resync: None, wait }).await })
    };
    let (mut one, mut other) = (poll(1), poll(2));
    // Once one agent has replaced the other, the other one waits.
    let waiting = tokio::select! {
        _ = &mut one => other,
        _ = &mut other => one,
    };
    let (_, result) = tokio::join!(delete(&setup, "/nodes/web-01?force=1"), waiting);
    assert!(matches!(result, Err(Fault::NotFound(_))), "{result:?}");
    assert!(matches!(poll(3).await, Err(Fault::NotFound(_))), "a later poll gets the same");
}

#[tokio::test]
async fn an_agent_of_a_cluster_that_does_not_exist_is_not_found() {
    let setup = Setup::new().await;
    let hello =
        |cluster: &str| Hello { cluster: cluster.to_owned(), version: String::new(), protocol: PROTOCOL };
    let link = setup.server.link();
    let east = ClusterId(Uuid::from_u128(7));
    for name_or_id in ["east", &east.to_string()] {
        let answer = link.hello(hello(name_or_id)).await;
        let expected = Fault::NoCluster(format!("cluster `{name_or_id}` does not exist"));
        assert_eq!(answer.unwrap_err(), expected);
    }
    let mut agent = life("web-01", "one", 1);
    (agent.register.cluster, agent.register.node) = (east, NodeId::derive(east, "web-01"));
    assert!(matches!(agent.join(&setup).await, Err(Fault::NoCluster(_))));
}

#[tokio::test]
async fn problems_of_a_node_are_shown_until_its_agent_says_none() {
    let setup = Setup::new().await;
    let agent = life("web-01", "one", 1);
    agent.join(&setup).await.unwrap();
    let say = async |problems: &[&str]| {
        let (node, session) = (agent.register.node, agent.register.session);
        let problems = problems.iter().map(|&problem| problem.to_owned()).collect();
        let beat = Heartbeat { node, session, held: Vec::new(), leaving: false, problems };
        setup.server.link().heartbeat(beat).await.unwrap();
    };
    let events = async || setup.ok("/events?follow=0").await["data"].as_array().unwrap().len();
    let before = events().await;
    say(&["the disk is full"]).await;
    say(&["the disk is full"]).await;
    assert_eq!(events().await, before + 1, "only what is new is recorded");
    assert_eq!(setup.ok("/nodes/web-01").await["problems"], json!(["the disk is full"]));
    assert_eq!(setup.ok("/nodes").await["data"][0]["problems"], json!(["the disk is full"]));
    assert_eq!(setup.ok("/status").await["nodes_with_problems"], 1);
    say(&[]).await;
    assert_eq!(setup.ok("/nodes/web-01").await["problems"], json!([]));
    assert_eq!(setup.ok("/status").await["nodes_with_problems"], 0);
}

#[tokio::test]
async fn while_an_older_server_lives_agents_deliver_results_before_they_register() {
    let quick = Settings { server_stale_after: Span::from_secs(1), ..settings("memory:", "one") };
    let setup = Setup::with(quick).await;
    let keeps = async || {
        let (cluster, version) = ("default".to_owned(), "test".to_owned());
        let hello = Hello { cluster, version, protocol: PROTOCOL };
        setup.server.link().hello(hello).await.unwrap().keeps_undelivered
    };
    assert!(keeps().await);
    let older = async || {
        let now = Timestamp::now();
        let record = ServerRecord {
            id: ServerId(Uuid::from_u128(7)),
            name: "older".to_owned(),
            http: String::new(),
            grpc: String::new(),
            version: "0.0.1".to_owned(),
            started_at: now,
            seen_at: now,
            level: downbeat_core::level::NODES - 1,
        };
        setup.server.service().views().put_server(&record).await.unwrap();
    };
    let registered = async {
        while keeps().await {
            older().await;
            tokio::task::yield_now().await;
        }
        // It was removed.
        while !keeps().await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, registered).await.expect("the server looks at the others");
}
