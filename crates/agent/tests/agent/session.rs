//! The session: its order, its end, and continuing when servers fail.

use std::sync::Arc;
use std::time::Duration;

use downbeat_agent::{Agent, Error};
use downbeat_core::execution::Verdict;
use downbeat_core::ids::{ClusterId, NodeId};
use downbeat_proto::message::{Fault, Free};

use crate::fake::{Dial, Seen, Server, held, last_held, noop, settings, sleep, start, unique, work};

#[tokio::test]
async fn a_node_registers_describes_itself_and_does_what_it_is_given() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let agent = start(&server, data.path());
    let number = unique();
    server.give([noop(number)]);
    let finished = server.result(number).await;
    assert_eq!((finished.outcome.verdict, finished.outcome.exit_code), (Verdict::Succeeded, Some(0)));
    assert!(finished.outcome.finished_at >= finished.outcome.started_at);
    server.until("nothing is held", |state| last_held(state).is_empty().then_some(())).await;
    {
        let state = server.state.lock().unwrap();
        assert_eq!(state.seen[..2], [Seen::Hello, Seen::Register]);
        assert!(state.started.is_empty(), "short work reports its start with its end");
        let register = &state.registered[0];
        assert_eq!(register.node, NodeId::derive(ClusterId::DEFAULT, "node-1"));
        let names: Vec<&str> =
            register.description.backends.iter().map(|backend| backend.name.as_str()).collect();
        // The others depend on the host.
        assert_eq!(names[..3], ["test", "ping", "exec"]);
        for capability in ["cpu", "memory_bytes", "os", "arch", "kernel"] {
            assert!(register.description.capabilities.contains_key(capability), "{capability}");
        }
    }
    agent.drain_and_stop().await.unwrap();
}

#[tokio::test]
async fn work_that_takes_a_while_says_that_it_began_and_is_held() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let agent = start(&server, data.path());
    let number = unique();
    server.give([sleep(number, "1h")]);
    server.until("it began", |state| state.started.iter().find(|s| s.held == held(number)).cloned()).await;
    server.until("it is held", |state| last_held(state).contains(&held(number)).then_some(())).await;
    server.change(|state| state.stop.push(held(number)));
    assert_eq!(server.result(number).await.outcome.verdict, Verdict::Cancelled);
    agent.drain_and_stop().await.unwrap();
}

#[tokio::test]
async fn what_the_node_does_not_offer_or_the_schema_refuses_fails_and_says_why() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let agent = start(&server, data.path());
    let (unknown, wrong) = (unique(), unique());
    server.give([
        work(unknown, "docker", "run", &serde_json::json!({})),
        work(wrong, "test", "echo", &serde_json::json!({"mesage": "x"})),
    ]);
    let error = server.result(unknown).await.outcome.error.unwrap();
    assert_eq!(error, "node `node-1` does not offer backend `docker`");
    let finished = server.result(wrong).await;
    assert_eq!(finished.outcome.verdict, Verdict::Failed);
    assert!(finished.outcome.error.unwrap().contains("message"));
    agent.drain_and_stop().await.unwrap();
}

#[tokio::test]
async fn a_lost_answer_is_asked_for_again_with_all_that_did_arrive() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let agent = start(&server, data.path());
    let (running, lost) = (unique(), unique());
    server.give([sleep(running, "1h")]);
    server.until("it began", |state| (!state.started.is_empty()).then_some(())).await;
    server.change(|state| {
        state.lose_polls = 1;
        state.work.push(noop(lost));
    });
    let resync =
        server.until("a poll that resyncs", |state| state.polls.iter().find_map(|p| p.resync.clone())).await;
    assert_eq!(resync, [held(running)]);
    server.give([noop(lost), sleep(running, "1h")]);
    server.result(lost).await;
    server.change(|state| state.stop.push(held(running)));
    server.result(running).await;
    {
        let state = server.state.lock().unwrap();
        assert_eq!(
            state.finished.iter().filter(|f| f.held == held(running)).count(),
            1,
            "sent twice, done once"
        );
        assert!(state.polls.last().unwrap().resync.is_none(), "an answer that arrived ends the resync");
        let numbers: Vec<u64> = state.polls.iter().map(|poll| poll.poll).collect();
        assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
    }
    agent.drain_and_stop().await.unwrap();
}

#[tokio::test]
async fn work_arrives_with_the_receipt_of_a_result() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let agent = start(&server, data.path());
    let (first, second) = (unique(), unique());
    server.change(|state| state.work_for_report.push(noop(second)));
    server.give([noop(first)]);
    server.result(second).await;
    {
        let state = server.state.lock().unwrap();
        assert!(state.reports.iter().all(|report| report.takes_work));
        assert!(state.polls.iter().all(|poll| poll.resync.is_none()), "{:?}", state.polls);
        let finished: Vec<_> = state.finished.iter().map(|finished| finished.held).collect();
        assert_eq!(finished, [held(first), held(second)]);
    }
    agent.drain_and_stop().await.unwrap();
}

#[tokio::test]
async fn work_that_was_lost_with_the_response_to_a_report_is_asked_for_again() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let agent = start(&server, data.path());
    let (first, lost) = (unique(), unique());
    server.change(|state| {
        state.lose_reports = 1;
        state.work_for_report.push(noop(lost));
    });
    server.give([noop(first)]);
    let resync =
        server.until("a poll that resyncs", |state| state.polls.iter().find_map(|p| p.resync.clone())).await;
    assert!(!resync.contains(&held(lost)), "{resync:?}");
    server.give([noop(lost)]);
    server.result(lost).await;
    {
        let state = server.state.lock().unwrap();
        // The result is sent again, and does not offer the slots of the poll from before.
        let (once, again) = (&state.reports[0], &state.reports[1]);
        assert_eq!(once.finished, again.finished);
        assert!(again.poll > once.poll, "{} and {}", once.poll, again.poll);
    }
    agent.drain_and_stop().await.unwrap();
}

#[tokio::test]
async fn a_draining_agent_takes_nothing_new_and_ends_when_its_work_has() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let mut agent = start(&server, data.path());
    let number = unique();
    let marker = data.path().join("go");
    let script = format!("while [ ! -e {} ]; do sleep 0.01; done", marker.display());
    server.give([crate::fake::shell(number, &script)]);
    server.until("it began", |state| (!state.started.is_empty()).then_some(())).await;
    agent.drain();
    server
        .until("slots are taken back", |state| {
            state
                .reports
                .last()
                .is_some_and(|r| r.free == Free { debug: Some(0), ..Free::default() })
                .then_some(())
        })
        .await;
    assert!(server.state.lock().unwrap().finished.is_empty());
    std::fs::write(marker, "").unwrap();
    agent.wait().await.unwrap();
    assert_eq!(server.result(number).await.outcome.verdict, Verdict::Succeeded);
}

#[tokio::test]
async fn work_that_outlasts_the_drain_is_ended_and_given_up_with_the_last_word() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let mut settings = settings(data.path());
    settings.drain_timeout = Duration::from_millis(50);
    let agent = Agent::start(settings, Arc::new(Dial(server.clone())));
    let number = unique();
    server.give([sleep(number, "1h")]);
    server.until("it began", |state| (!state.started.is_empty()).then_some(())).await;
    agent.drain_and_stop().await.unwrap();
    let state = server.state.lock().unwrap();
    assert!(state.finished.is_empty(), "a server makes it lost, and sends it where it can go on");
    let last = state.heartbeats.last().unwrap();
    assert!(last.leaving && last.held.is_empty(), "{last:?}");
}

#[tokio::test]
async fn a_result_that_is_left_when_the_agent_stops_is_not_given_up() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let mut settings = settings(data.path());
    settings.tuning.farewell = Duration::from_millis(50);
    let agent = Agent::start(settings, Arc::new(Dial(server.clone())));
    let number = unique();
    server.change(|state| {
        state.deaf = true;
        state.work.push(noop(number));
    });
    crate::fake::eventually("the result is on disk", || crate::delivery::outbox_bytes(data.path()) > 0).await;
    agent.drain_and_stop().await.unwrap();
    let last = server.state.lock().unwrap().heartbeats.last().cloned().unwrap();
    assert!(last.leaving && last.held == [held(number)], "{last:?}");
}

#[tokio::test]
async fn an_agent_whose_node_is_gone_or_taken_ends_and_says_so() {
    for fault in [Fault::NotFound("no such node".to_owned()), Fault::Superseded("a newer one".to_owned())] {
        let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
        let mut agent = start(&server, data.path());
        let number = unique();
        server.give([crate::fake::shell(number, "sleep 1000")]);
        server.until("it began", |state| (!state.started.is_empty()).then_some(())).await;
        assert!(!crate::fake::alive(number).is_empty());
        server.change(|state| state.end_with = Some(fault.clone()));
        let error = agent.wait().await.unwrap_err();
        match fault {
            Fault::NotFound(_) => assert!(matches!(error, Error::NotFound(_)), "{error}"),
            _ => assert!(matches!(error, Error::Superseded(_)), "{error}"),
        }
        assert_eq!(crate::fake::alive(number), Vec::<i32>::new(), "its work went with it");
    }
}

#[tokio::test]
async fn a_server_that_is_behind_does_not_end_the_agent() {
    let server = Server::with(|server| server.heartbeat_interval = Duration::from_secs(3600));
    let data = tempfile::tempdir().unwrap();
    let agent = start(&server, data.path());
    server.change(|state| state.behind = true);
    server.until("the heartbeat is asked at once", |state| state.heartbeats.first().cloned()).await;
    server.change(|state| state.behind = false);
    let number = unique();
    server.give([noop(number)]);
    server.result(number).await;
    agent.drain_and_stop().await.unwrap();
}

#[tokio::test]
async fn servers_that_are_down_are_waited_for_and_the_next_address_is_tried() {
    let server = Server::with(|server| server.dead = vec!["a:1".to_owned()]);
    let data = tempfile::tempdir().unwrap();
    let mut settings = settings(data.path());
    settings.servers = vec!["a:1".to_owned(), "b:1".to_owned()];
    let agent = Agent::start(settings, Arc::new(Dial(server.clone())));
    let number = unique();
    server.give([sleep(number, "300ms")]);
    server.until("it began", |state| (!state.started.is_empty()).then_some(())).await;
    server.change(|state| state.down = true);
    server.until("addresses are tried in turn", |state| (state.connects.len() >= 6).then_some(())).await;
    server.change(|state| state.down = false);
    assert_eq!(server.result(number).await.outcome.verdict, Verdict::Succeeded);
    {
        let state = server.state.lock().unwrap();
        assert_eq!(state.connects[..4], ["a:1", "b:1", "a:1", "b:1"]);
        assert_eq!(state.registered.len(), 1, "a reconnect is not a new session");
    }
    agent.drain_and_stop().await.unwrap();
}

#[tokio::test]
async fn a_poll_parked_at_a_server_that_is_given_up_is_polled_again_at_the_next() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let mut settings = settings(data.path());
    settings.tuning.poll_wait = Duration::from_secs(3600);
    let agent = Agent::start(settings, Arc::new(Dial(server.clone())));
    server.until("a poll is parked", |state| (!state.polls.is_empty()).then_some(())).await;
    server.change(|state| state.lose_heartbeats = 1);
    let resync =
        server.until("it polls again", |state| state.polls.get(1).map(|poll| poll.resync.clone())).await;
    assert_eq!(resync, Some(Vec::new()), "a response may have been lost: the poll lists what arrived");
    agent.drain_and_stop().await.unwrap();
}

#[tokio::test]
async fn an_agent_that_is_refused_tries_again_until_it_is_taken() {
    let why = || "why".to_owned();
    for fault in
        [Fault::Rejected(why()), Fault::Unknown(why()), Fault::Occupied(why()), Fault::NotFound(why())]
    {
        let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
        server.change(|state| state.refuse_joining = Some(fault.clone()));
        let agent = start(&server, data.path());
        server.until("it tries on", |state| (state.refused_joinings > 3).then_some(())).await;
        server.change(|state| state.refuse_joining = None);
        let number = unique();
        server.give([noop(number)]);
        server.result(number).await;
        agent.drain_and_stop().await.unwrap();
    }
}

fn no_cluster() -> Fault {
    Fault::NoCluster("cluster `east` does not exist".to_owned())
}

#[tokio::test]
async fn an_agent_that_starts_in_a_cluster_that_does_not_exist_ends_and_names_it() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    server.change(|state| state.refuse_joining = Some(no_cluster()));
    let error = start(&server, data.path()).wait().await.unwrap_err();
    assert!(matches!(error, Error::NoCluster(_)), "{error}");
    assert!(error.to_string().starts_with("cluster `east` does not exist; create it"), "{error}");
    assert_eq!(server.state.lock().unwrap().refused_joinings, 1);
}

/// The store was restored from a backup from before the cluster existed.
#[tokio::test]
async fn an_agent_with_work_ends_when_its_cluster_does_not_exist_for_the_term_of_its_leases_and_not_before() {
    let server = Server::with(|server| server.lease_ttl = Duration::from_secs(2));
    let data = tempfile::tempdir().unwrap();
    let mut agent = start(&server, data.path());
    let number = unique();
    server.give([crate::fake::shell(number, "sleep 1000")]);
    server.until("it began", |state| (!state.started.is_empty()).then_some(())).await;
    let vanish = |state: &mut crate::fake::State| {
        state.refuse_joining = Some(no_cluster());
        state.estranged = Some(Fault::Unknown("node".to_owned()));
    };
    server.change(vanish);
    server.until("it tries again", |state| (state.refused_joinings > 1).then_some(())).await;
    assert!(!crate::fake::alive(number).is_empty(), "its work goes on");
    server.change(|state| state.refuse_joining = None);
    server.until("registered again", |state| (state.registered.len() == 2).then_some(())).await;
    server.until("it is held", |state| last_held(state).contains(&held(number)).then_some(())).await;
    assert!(!crate::fake::alive(number).is_empty(), "the cluster is back and nothing was lost");
    server.change(vanish);
    let error = agent.wait().await.unwrap_err();
    assert!(matches!(error, Error::NoCluster(_)), "{error}");
    assert_eq!(crate::fake::alive(number), Vec::<i32>::new(), "its work ended with it");
}

#[tokio::test]
async fn a_registration_that_is_refused_for_good_ends_the_agent() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let mut agent = start(&server, data.path());
    server.until("registered", |state| state.registered.last().cloned()).await;
    server.change(|state| {
        state.refuse_registering = Some(Fault::Superseded("a newer one".to_owned()));
        state.estranged = Some(Fault::Unknown("node".to_owned()));
    });
    assert!(matches!(agent.wait().await.unwrap_err(), Error::Superseded(_)));
}

#[tokio::test]
async fn an_agent_that_nobody_knows_registers_again_and_keeps_its_work() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let agent = start(&server, data.path());
    let (number, marker) = (unique(), data.path().join("go"));
    let script = format!("while [ ! -e {} ]; do sleep 0.01; done", marker.display());
    server.give([crate::fake::shell(number, &script)]);
    server.until("it began", |state| (!state.started.is_empty()).then_some(())).await;
    server.change(|state| state.estranged = Some(Fault::Unknown("node".to_owned())));
    server.until("registered again", |state| (state.registered.len() == 2).then_some(())).await;
    server.until("it is held", |state| last_held(state).contains(&held(number)).then_some(())).await;
    assert!(!crate::fake::alive(number).is_empty(), "its work goes on");
    std::fs::write(marker, "").unwrap();
    assert_eq!(server.result(number).await.outcome.verdict, Verdict::Succeeded);
    {
        let state = server.state.lock().unwrap();
        let (first, second) = (&state.registered[0], &state.registered[1]);
        assert_eq!(
            (first.session, &first.instance, first.life),
            (second.session, &second.instance, second.life)
        );
    }
    agent.drain_and_stop().await.unwrap();
}

#[tokio::test]
async fn an_agent_whose_node_was_taken_while_it_was_silent_ends_its_work_and_waits_for_the_node() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let agent = start(&server, data.path());
    let number = unique();
    server.give([crate::fake::shell(number, "sleep 1000")]);
    server.until("it began", |state| (!state.started.is_empty()).then_some(())).await;
    let taken = Fault::Occupied("web-01 is online as another installation".to_owned());
    server.change(|state| {
        state.refuse_joining = Some(taken.clone());
        state.estranged = Some(taken.clone());
    });
    crate::fake::eventually("its work is ended", || crate::fake::alive(number).is_empty()).await;
    server.until("it tries on", |state| (state.refused_joinings > 3).then_some(())).await;
    server.change(|state| state.refuse_joining = None);
    server.until("registered again", |state| (state.registered.len() == 2).then_some(())).await;
    let next = unique();
    server.give([noop(next)]);
    server.result(next).await;
    agent.drain_and_stop().await.unwrap();
}

#[tokio::test]
async fn an_agent_shows_that_it_is_the_same_installation_in_another_life() {
    let (server, data, other) = (Server::new(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for directory in [data.path(), data.path(), other.path()] {
        let before = server.state.lock().unwrap().registered.len();
        let agent = start(&server, directory);
        server.until("registered", |state| (state.registered.len() > before).then_some(())).await;
        agent.drain_and_stop().await.unwrap();
    }
    let state = server.state.lock().unwrap();
    let [first, second, stranger] = &state.registered[..] else { panic!("{:?}", state.registered) };
    assert!(!first.instance.0.is_empty());
    assert_eq!(first.instance, second.instance);
    assert!(first.life < second.life && first.session != second.session);
    assert_ne!(first.instance, stranger.instance);
}

#[tokio::test]
async fn two_agents_do_not_share_a_data_directory() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let first = start(&server, data.path());
    server.until("registered", |state| (!state.registered.is_empty()).then_some(())).await;
    assert!(matches!(start(&server, data.path()).wait().await, Err(Error::DataInUse(_))));
    first.drain_and_stop().await.unwrap();
}

#[tokio::test]
async fn work_that_must_not_overlap_ends_itself_when_the_lease_cannot_be_renewed() {
    let server = Server::with(|server| server.lease_ttl = Duration::from_millis(300));
    let data = tempfile::tempdir().unwrap();
    let agent = start(&server, data.path());
    let (exclusive, patient) = (unique(), unique());
    let mut work = sleep(exclusive, "1h");
    work.stop_on_disconnect = true;
    server.give([work, sleep(patient, "1h")]);
    server.until("both began", |state| (state.started.len() == 2).then_some(())).await;
    server.change(|state| state.down = true);
    let outbox = data.path().join("outbox");
    crate::fake::eventually("the result is in the outbox", || {
        std::fs::read_dir(&outbox).unwrap().flatten().any(|entry| entry.metadata().unwrap().len() > 0)
    })
    .await;
    server.change(|state| state.down = false);
    let outcome = server.result(exclusive).await.outcome;
    assert_eq!(outcome.verdict, Verdict::Failed);
    assert_eq!(outcome.error.unwrap(), "stopped: no server could be reached for 150ms");
    server.change(|state| state.stop.push(held(patient)));
    assert_eq!(server.result(patient).await.outcome.verdict, Verdict::Cancelled);
    agent.drain_and_stop().await.unwrap();
}
