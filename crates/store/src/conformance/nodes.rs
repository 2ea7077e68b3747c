//! Cases about nodes.

use std::sync::Arc;

use downbeat_core::change::{Change, Refusal, Silence};
use downbeat_core::ids::ClusterId;
use downbeat_core::limits;
use downbeat_core::node::{Former, NodeRecord, NodeStatus, Tombstone};

use super::make::*;
use crate::port::Store;

fn moved(number: u32, by: u32, from: NodeStatus, to: NodeStatus) -> Change {
    Change::NodeMoved { node: node(number), session: session(by), from, to, silent_since: None, at: at(50) }
}

fn drained(number: u32, draining: bool) -> Change {
    Change::NodeDrainSet { node: node(number), draining, by: "ada".to_owned(), at: at(60) }
}

async fn read(store: &Arc<dyn Store>, number: u32) -> NodeRecord {
    store.node(node(number)).await.unwrap().expect("the node exists")
}

pub async fn the_default_cluster_is_found_by_name_and_id(store: Arc<dyn Store>) {
    let default = Some(ClusterId::DEFAULT);
    assert_eq!(store.cluster("default").await.unwrap(), default);
    assert_eq!(store.cluster(&ClusterId::DEFAULT.to_string()).await.unwrap(), default);
    for unknown in ["", "other", "de%", "a\0b", &UNKNOWN_CLUSTER.to_string()] {
        assert_eq!(store.cluster(unknown).await.unwrap(), None, "{unknown:?}");
    }
}

pub async fn a_registered_node_is_online_and_read_back_whole(store: Arc<dyn Store>) {
    assert_eq!(store.node(node(1)).await.unwrap(), None);
    apply(&store, &[registered(1, session(1), 5)]).await;
    let expected = NodeRecord {
        id: node(1),
        cluster: ClusterId::DEFAULT,
        session: session(1),
        description: registration(1, session(1), 5).description,
        status: NodeStatus::Online,
        draining: false,
        registered_at: at(5),
        seen_at: at(5),
        installation: None,
        undelivered: Vec::new(),
        kept_since: None,
        displaced: None,
        problems: Vec::new(),
    };
    assert_eq!(read(&store, 1).await, expected);
    let registration = registration_of(1, session(2), 6, Former::Any);
    let (installation, undelivered) = (registration.installation.clone(), registration.undelivered.clone());
    apply(&store, &[Change::NodeRegistered { registration }]).await;
    let (session, registered_at, seen_at) = (session(2), at(6), at(6));
    let expected = NodeRecord {
        session,
        registered_at,
        seen_at,
        installation,
        undelivered,
        kept_since: None,
        ..expected
    };
    assert_eq!(read(&store, 1).await, expected);
}

pub async fn a_registration_is_refused_when_another_had_the_node_than_its_guard_says(store: Arc<dyn Store>) {
    let by = |number, second, former| Change::NodeRegistered {
        registration: registration_of(1, session(number), second, former),
    };
    let of = |number| Former::Session { session: session(number), silent_since: None };
    let silent =
        |number, second| Former::Session { session: session(number), silent_since: Some(at(second)) };
    refuse(&store, by(1, 5, of(9)), Refusal::NotFound).await;
    apply(&store, &[by(1, 5, Former::Nobody)]).await;
    refuse(&store, by(2, 6, Former::Nobody), Refusal::StaleSession).await;
    refuse(&store, by(2, 6, of(9)), Refusal::StaleSession).await;
    store.touch_nodes(&[(node(1), session(1))], at(70)).await.unwrap();
    refuse(&store, by(2, 71, silent(1, 5)), Refusal::Heard).await;
    assert_eq!(read(&store, 1).await.session, session(1));
    apply(&store, &[by(2, 71, silent(1, 70))]).await;
    assert_eq!(read(&store, 1).await.displaced, Some(session(1)));
    // The same call again, after a lost response.
    apply(&store, &[by(2, 72, of(2))]).await;
    let found = read(&store, 1).await;
    assert_eq!((found.session, found.displaced), (session(2), None));
    // Two in one batch; the second expects the same former installation.
    let outcomes = store.commit(SERVER, &[by(3, 73, of(2)), by(4, 74, of(2))]).await.unwrap().outcomes;
    assert_eq!(outcomes, [Ok(()), Err(Refusal::StaleSession)]);
}

pub async fn what_is_wrong_on_a_node_is_said_by_its_session_and_goes_with_it(store: Arc<dyn Store>) {
    refuse(&store, problems(1, session(1), &["full"]), Refusal::NotFound).await;
    apply(&store, &[registered(1, session(1), 5), problems(1, session(1), &["full", "grüße \" \n"])]).await;
    refuse(&store, problems(1, session(2), &[]), Refusal::StaleSession).await;
    assert_eq!(read(&store, 1).await.problems, ["full", "grüße \" \n"]);
    apply(&store, &[problems(1, session(1), &[])]).await;
    assert_eq!(read(&store, 1).await.problems, [""; 0]);
    apply(&store, &[problems(1, session(1), &["full"])]).await;
    apply(&store, &[registered(1, session(2), 6)]).await;
    assert_eq!(read(&store, 1).await.problems, [""; 0]);
    // The last report of a batch counts.
    apply(&store, &[problems(1, session(2), &["a"]), problems(1, session(2), &["b"])]).await;
    assert_eq!(read(&store, 1).await.problems, ["b"]);
}

fn tombstone(number: u32, by: u32, second: i64) -> Tombstone {
    let (node, session, hostname) = (node(number), session(by), format!("web-{number:02}"));
    Tombstone { node, session, cluster: ClusterId::DEFAULT, hostname, at: at(second) }
}

pub async fn a_deleted_node_is_gone_and_remembered(store: Arc<dyn Store>) {
    refuse(&store, deleted(1, session(1), 9), Refusal::NotFound).await;
    apply(&store, &[registered(1, session(1), 5), registered(2, session(2), 5), drained(1, true)]).await;
    assert_eq!(store.tombstones(None).await.unwrap(), []);
    refuse(&store, deleted(1, session(2), 9), Refusal::StaleSession).await;
    apply(&store, &[deleted(1, session(1), 9)]).await;
    assert_eq!(store.node(node(1)).await.unwrap(), None);
    assert_eq!(store.nodes(None).await.unwrap().len(), 1);
    assert_eq!(store.presence().await.unwrap().len(), 1);
    assert_eq!(store.tombstones(None).await.unwrap(), [tombstone(1, 1, 9)]);
    assert_eq!(store.tombstones(Some(node(2))).await.unwrap(), []);
    assert_eq!(store.touch_nodes(&[(node(1), session(1))], at(70)).await.unwrap(), [false]);
    refuse(&store, deleted(1, session(1), 10), Refusal::NotFound).await;
    // The deleted session cannot register again; a new one can, without anything of the old one.
    refuse(&store, registered(1, session(1), 11), Refusal::Deleted).await;
    apply(&store, &[registered(1, session(3), 11)]).await;
    assert!(!read(&store, 1).await.draining);
    refuse(&store, registered(1, session(1), 12), Refusal::Deleted).await;
    apply(&store, &[deleted(1, session(3), 13)]).await;
    let both = [tombstone(1, 1, 9), tombstone(1, 3, 13)];
    assert_eq!(store.tombstones(Some(node(1))).await.unwrap(), both);
}

pub async fn a_node_may_register_and_be_deleted_in_one_batch(store: Arc<dyn Store>) {
    apply(&store, &[registered(1, session(1), 5), problems(1, session(1), &["full"])]).await;
    // Registrations come first.
    apply(&store, &[deleted(1, session(2), 7), registered(1, session(2), 6), drained(1, true)]).await;
    assert_eq!(store.nodes(None).await.unwrap(), []);
    assert_eq!(store.tombstones(None).await.unwrap(), [tombstone(1, 2, 7)]);
    apply(&store, &[registered(2, session(2), 6), deleted(2, session(2), 7)]).await;
    assert_eq!(store.tombstones(Some(node(2))).await.unwrap(), [tombstone(2, 2, 7)]);
}

pub async fn a_node_is_not_deleted_for_a_silence_that_was_broken_meanwhile(store: Arc<dyn Store>) {
    apply(&store, &[registered(1, session(1), 5)]).await;
    let silent = |since| Change::NodeDeleted {
        node: node(1),
        session: session(1),
        by: "ada".to_owned(),
        silent_since: Some(at(since)),
        at: at(90),
    };
    store.touch_nodes(&[(node(1), session(1))], at(70)).await.unwrap();
    refuse(&store, silent(5), Refusal::Heard).await;
    apply(&store, &[silent(70)]).await;
}

pub async fn a_deleted_node_is_held_by_nobody(store: Arc<dyn Store>) {
    apply(&store, &[registered(1, session(1), 5), registered(2, session(2), 5)]).await;
    apply(&store, &[created(1), created(2), admitted(1, None, &[1, 2])]).await;
    apply(&store, &[deleted(1, session(1), 9)]).await;
    assert_eq!(store.holds().await.unwrap(), [(node(2), run_id(1))]);
    apply(&store, &[registered(1, session(3), 10), admitted(2, None, &[1])]).await;
    assert_eq!(store.holds().await.unwrap(), [(node(1), run_id(2)), (node(2), run_id(1))]);
}

pub async fn a_deleted_node_is_remembered_longer_than_runs_are(store: Arc<dyn Store>) {
    const DAY: i64 = 24 * 3600;
    apply(&store, &[registered(1, session(1), 5), deleted(1, session(1), 9)]).await;
    apply(&store, &[registered(2, session(2), 5), deleted(2, session(2), 10)]).await;
    store.prune(at(9 + limits::TOMBSTONE_DAYS * DAY), 100).await.unwrap();
    assert_eq!(store.tombstones(None).await.unwrap(), [tombstone(1, 1, 9), tombstone(2, 2, 10)]);
    assert_eq!(store.latest_tombstones(9).await.unwrap(), [tombstone(2, 2, 10), tombstone(1, 1, 9)]);
    assert_eq!(store.latest_tombstones(1).await.unwrap(), [tombstone(2, 2, 10)]);
    store.prune(at(10 + limits::TOMBSTONE_DAYS * DAY), 100).await.unwrap();
    assert_eq!(store.tombstones(None).await.unwrap(), [tombstone(2, 2, 10)]);
    apply(&store, &[registered(1, session(1), 11)]).await;
}

pub async fn a_new_session_replaces_the_old_one_and_stays_drained(store: Arc<dyn Store>) {
    apply(&store, &[registered(1, session(1), 5), drained(1, true)]).await;
    apply(&store, &[moved(1, 1, NodeStatus::Online, NodeStatus::Offline)]).await;
    let mut again = registration(1, session(2), 9);
    again.description.groups = vec!["db".to_owned()];
    apply(&store, &[Change::NodeRegistered { registration: again }]).await;
    let found = read(&store, 1).await;
    assert_eq!((found.session, found.status, found.draining), (session(2), NodeStatus::Online, true));
    assert_eq!((found.registered_at, found.seen_at), (at(9), at(9)));
    assert_eq!(found.description.groups, ["db"]);
    // Within one batch the last one wins as well.
    apply(&store, &[registered(1, session(3), 10), registered(1, session(4), 11)]).await;
    assert_eq!(read(&store, 1).await.session, session(4));
    assert_eq!(store.nodes(None).await.unwrap().len(), 1);
}

pub async fn a_registration_that_comes_after_a_newer_one_is_refused(store: Arc<dyn Store>) {
    apply(&store, &[registered(1, session(1), 5), registered(1, session(2), 9)]).await;
    refuse(&store, registered(1, session(3), 8), Refusal::StaleSession).await;
    assert_eq!(read(&store, 1).await.session, session(2));
    // The same agent again has no effect on others.
    apply(&store, &[registered(1, session(2), 8), registered(1, session(4), 9)]).await;
    assert_eq!(read(&store, 1).await.session, session(4));
}

pub async fn a_node_of_an_unknown_cluster_is_refused(store: Arc<dyn Store>) {
    let mut stranger = registration(1, session(1), 5);
    stranger.cluster = UNKNOWN_CLUSTER;
    refuse(&store, Change::NodeRegistered { registration: stranger }, Refusal::NotFound).await;
    assert_eq!(store.nodes(None).await.unwrap(), []);
}

pub async fn a_move_needs_the_current_session_and_the_status_that_it_leaves(store: Arc<dyn Store>) {
    use NodeStatus::{Offline, Online, Stale};
    refuse(&store, moved(1, 1, Online, Stale), Refusal::NotFound).await;
    apply(&store, &[registered(1, session(1), 5)]).await;
    refuse(&store, moved(1, 2, Online, Stale), Refusal::StaleSession).await;
    refuse(&store, moved(1, 1, Stale, Offline), Refusal::WrongState).await;
    assert_eq!(read(&store, 1).await.status, Online);
    apply(&store, &[moved(1, 1, Online, Stale)]).await;
    assert_eq!((read(&store, 1).await.status, read(&store, 1).await.seen_at), (Stale, at(5)));
    apply(&store, &[moved(1, 1, Stale, Offline), moved(1, 1, Offline, Online)]).await;
    assert_eq!(read(&store, 1).await.status, Online);
}

pub async fn draining_needs_a_node(store: Arc<dyn Store>) {
    refuse(&store, drained(1, true), Refusal::NotFound).await;
    apply(&store, &[registered(1, session(1), 5), drained(1, true)]).await;
    assert!(read(&store, 1).await.draining);
    apply(&store, &[drained(1, false)]).await;
    assert!(!read(&store, 1).await.draining);
}

pub async fn nodes_are_listed_by_hostname_and_cluster(store: Arc<dyn Store>) {
    let mut upper = registration(3, session(3), 5);
    upper.description.hostname = "Zeta".to_owned();
    let upper = Change::NodeRegistered { registration: upper };
    apply(&store, &[registered(2, session(2), 5), upper, registered(1, session(1), 5)]).await;
    let names =
        |nodes: Vec<NodeRecord>| nodes.into_iter().map(|node| node.description.hostname).collect::<Vec<_>>();
    let expected = ["Zeta", "web-01", "web-02"];
    assert_eq!(names(store.nodes(None).await.unwrap()), expected);
    assert_eq!(names(store.nodes(Some(ClusterId::DEFAULT)).await.unwrap()), expected);
    assert_eq!(store.nodes(Some(UNKNOWN_CLUSTER)).await.unwrap(), []);
}

pub async fn a_heartbeat_counts_only_for_the_current_session(store: Arc<dyn Store>) {
    apply(&store, &[registered(1, session(1), 5), registered(2, session(2), 5)]).await;
    let seen = [(node(1), session(1)), (node(2), session(1)), (node(3), session(3)), (node(1), session(1))];
    assert_eq!(store.touch_nodes(&seen, at(70)).await.unwrap(), [true, false, false, true]);
    assert_eq!((read(&store, 1).await.seen_at, read(&store, 2).await.seen_at), (at(70), at(5)));
    // A late heartbeat does not set the time back.
    assert_eq!(store.touch_nodes(&seen[..1], at(60)).await.unwrap(), [true]);
    assert_eq!(read(&store, 1).await.seen_at, at(70));
    assert_eq!(store.touch_nodes(&[], at(80)).await.unwrap(), [false; 0]);
    assert_eq!(store.last_seq().await.unwrap(), 2);
}

/// A server decides that a node is silent before it commits the consequences.
pub async fn nothing_ends_for_a_silence_that_was_broken_meanwhile(store: Arc<dyn Store>) {
    use NodeStatus::{Online, Stale};
    apply(&store, &[registered(1, session(1), 5), created(1)]).await;
    apply(&store, &[added(1, vec![execution(1, 1, leased(1, 1))])]).await;
    let (node, session) = (node(1), session(1));
    let lost = |since| lost(1, 1, 1, Some(Silence { node, since: at(since) }), 90);
    let stale = |since| {
        let silent_since = Some(at(since));
        Change::NodeMoved { node, session, from: Online, to: Stale, silent_since, at: at(90) }
    };
    store.touch_nodes(&[(node, session)], at(70)).await.unwrap();
    refuse(&store, lost(5), Refusal::Heard).await;
    refuse(&store, stale(5), Refusal::Heard).await;
    apply(&store, &[lost(70), stale(70)]).await;
}

pub async fn silent_nodes_are_those_not_offline_and_not_heard_of(store: Arc<dyn Store>) {
    use NodeStatus::{Offline, Online, Stale};
    apply(&store, &(1..=4).map(|number| registered(number, session(number), 10)).collect::<Vec<_>>()).await;
    apply(&store, &[moved(2, 2, Online, Stale), moved(3, 3, Online, Offline)]).await;
    store.touch_nodes(&[(node(4), session(4))], at(20)).await.unwrap();
    let silent = async |before| {
        let nodes = store.silent_nodes(at(before)).await.unwrap();
        nodes.into_iter().map(|(node, _)| node).collect::<Vec<_>>()
    };
    assert_eq!(silent(10).await, []);
    assert_eq!(silent(11).await, [node(1), node(2)]);
    assert_eq!(silent(21).await, [node(1), node(2), node(4)]);
}
