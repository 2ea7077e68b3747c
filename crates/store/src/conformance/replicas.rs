//! Cases about a store that is the copy of another one.

use std::sync::Arc;

use downbeat_core::change::{About, Change, Event, Refusal};
use downbeat_core::cluster::ClusterRecord;
use downbeat_core::execution::{State, Verdict};
use downbeat_core::retention::{Excess, StandingKept, StandingRule};
use downbeat_core::run::RunState;
use tokio::sync::mpsc;

use super::backfills::{backfill_created, backfilled};
use super::clusters::{fill_deleted, fill_standing, remove_all};
use super::make::*;
use super::{Snapshot, fill, fill_beside};
use crate::copy::{Diverged, Kept, Replica, Replicated};
use crate::memory::MemoryStore;
use crate::port::{Error, EventFilter, Store};

async fn dump(store: &Arc<dyn Replica>) -> Snapshot {
    let store: Arc<dyn Store> = Arc::<dyn Replica>::clone(store);
    assert_eq!(store.uses().await.unwrap(), [], "a copy has no leases");
    of(&store).await
}

/// Returns a store with rows of every kind, to be copied.
async fn primary() -> Arc<dyn Store> {
    let primary: Arc<dyn Store> = Arc::new(MemoryStore::new());
    fill(&primary).await;
    fill_beside(&primary).await;
    apply(&primary, &[created_with_key(70, "key")]).await;
    primary
}

async fn of(primary: &Arc<dyn Store>) -> Snapshot {
    super::copies::dump(primary).await
}

async fn copy(primary: &Arc<dyn Store>, replica: &Arc<dyn Replica>) {
    let (sender, parts) = mpsc::channel(2);
    let (sent, replaced) = tokio::join!(primary.snapshot(sender), replica.replace(parts));
    sent.expect("a snapshot is sent");
    replaced.expect("a snapshot is written");
}

async fn events(primary: &Arc<dyn Store>) -> Vec<Event> {
    primary.events(&EventFilter::default(), ALL_EVENTS).await.expect("events are read")
}

pub async fn a_copy_takes_the_place_of_everything(replica: Arc<dyn Replica>) {
    assert!(!replica.is_copied().await.unwrap());
    let primary = primary().await;
    copy(&primary, &replica).await;
    assert!(replica.is_copied().await.unwrap());
    assert_eq!(dump(&replica).await, of(&primary).await);
    let other: Arc<dyn Store> = Arc::new(MemoryStore::new());
    apply(&other, &[created(90), registered(7, session(7), 7)]).await;
    copy(&other, &replica).await;
    assert_eq!(dump(&replica).await, of(&other).await);
}

pub async fn a_copy_that_does_not_end_changes_nothing(replica: Arc<dyn Replica>) {
    let primary = primary().await;
    copy(&primary, &replica).await;
    let before = dump(&replica).await;
    let other: Arc<dyn Store> = Arc::new(MemoryStore::new());
    apply(&other, &[created(90)]).await;
    let (sender, mut sent) = mpsc::channel(2);
    let (forward, parts) = mpsc::channel(2);
    let cut = async {
        forward.send(sent.recv().await.unwrap()).await.unwrap();
        drop((forward, sent));
    };
    let (_, replaced, ()) = tokio::join!(other.snapshot(sender), replica.replace(parts), cut);
    assert!(matches!(replaced, Err(Error::Unavailable(_))), "{replaced:?}");
    assert_eq!(dump(&replica).await, before);
    assert!(replica.is_copied().await.unwrap());
}

pub async fn events_are_applied_with_their_numbers_and_servers(replica: Arc<dyn Replica>) {
    let primary: Arc<dyn Store> = Arc::new(MemoryStore::new());
    fill(&primary).await;
    primary.commit(server(7), &[created(60), created_with_key(61, "key")]).await.unwrap();
    // The kinds of changes follow in the order of the commits.
    apply(&primary, &[moved(60, &[RunState::Cancelled], 70)]).await;
    apply(&primary, &[registered(1, session(8), 80)]).await;
    let mut rest = &events(&primary).await[..];
    for size in (1..).map(|size| size % 7 + 1) {
        let (batch, after) = rest.split_at(size.min(rest.len()));
        assert_eq!(replica.replicate(batch, &[], 0).await.unwrap(), Replicated::Applied);
        rest = after;
        if rest.is_empty() {
            break;
        }
    }
    assert_eq!(dump(&replica).await, of(&primary).await);
    assert_eq!(replica.replicate(&[], &[], 0).await.unwrap(), Replicated::Applied);
}

pub async fn events_go_on_where_a_copy_ended(replica: Arc<dyn Replica>) {
    let primary = primary().await;
    copy(&primary, &replica).await;
    let seq = primary.last_seq().await.unwrap();
    apply(&primary, &[created(80), added(80, vec![execution(800, 80, leased(800, 1))])]).await;
    apply(&primary, &[finished(80, 800, 800, Verdict::Failed)]).await;
    // Two chunks of one execution, the first of which is dropped by the size limit; one of an execution that is among
    // the events.
    let chunks = [chunk(9, 0, "gone"), chunk(9, 4, "kept"), chunk(800, 3, "text")];
    primary.append_output(&chunks, 4).await.unwrap();
    let new = primary.events(&EventFilter { since: seq, run: None }, ALL_EVENTS).await.unwrap();
    assert_eq!(replica.replicate(&new, &chunks, 4).await.unwrap(), Replicated::Applied);
    assert_eq!(dump(&replica).await, of(&primary).await);
    // Output without events, and a chunk that was sent before.
    let more = [chunks[2].clone(), chunk(800, 7, "more")];
    primary.append_output(&more, 100).await.unwrap();
    assert_eq!(replica.replicate(&[], &more, 100).await.unwrap(), Replicated::Applied);
    assert_eq!(dump(&replica).await, of(&primary).await);
}

pub async fn a_refused_event_diverges_and_leaves_no_trace(replica: Arc<dyn Replica>) {
    let primary = primary().await;
    copy(&primary, &replica).await;
    let before = dump(&replica).await;
    let event = |more: u64, change: Change| {
        let about = About::default();
        Event { seq: before.last_seq + more, server: SERVER, about, change }
    };
    let cases = [
        (created_with_key(71, "key"), Refusal::KeyInUse(run_id(70))),
        (created(70), Refusal::RunExists(run_id(70))),
        (moved(999, &[RunState::Cancelled], 1), Refusal::NotFound),
        (added(70, vec![execution(1, 70, leased(1, 1))]), Refusal::WrongState),
    ];
    for (change, refusal) in cases {
        let (seq, kind) = (before.last_seq + 2, change.kind().to_owned());
        let replicated = replica.replicate(&[event(1, created(75)), event(2, change)], &[], 0).await.unwrap();
        assert_eq!(replicated, Replicated::Diverged(Diverged::Refused { seq, kind, refusal }));
        assert_eq!(dump(&replica).await, before);
    }
}

pub async fn a_gap_and_an_event_seen_before_diverge(replica: Arc<dyn Replica>) {
    let primary = primary().await;
    copy(&primary, &replica).await;
    let before = dump(&replica).await;
    let last = before.last_seq;
    let event = |seq: u64| Event { seq, server: SERVER, about: About::default(), change: created(75) };
    for events in [vec![event(last)], vec![event(last + 2)], vec![event(last + 1), event(last + 3)]] {
        let replicated = replica.replicate(&events, &[], 0).await.unwrap();
        assert!(matches!(replicated, Replicated::Diverged(Diverged::Gap { .. })), "{replicated:?}");
        assert_eq!(dump(&replica).await, before);
    }
}

pub async fn what_the_primary_forgot_is_forgotten(replica: Arc<dyn Replica>) {
    let primary: Arc<dyn Store> = Arc::new(MemoryStore::new());
    for number in 1..=4 {
        let execution = execution(number, number, leased(number, 1));
        apply(
            &primary,
            &[created_with_key(number, &format!("key-{number}")), added(number, vec![execution])],
        )
        .await;
        apply(&primary, &[finished(number, number, number, Verdict::Succeeded)]).await;
        primary.append_output(&[chunk(number, 0, "text")], 100).await.unwrap();
    }
    for number in 1..=3 {
        apply(&primary, &[moved(number, &[RunState::Cancelled], 100 + i64::from(number))]).await;
    }
    // A debug command is removed earlier than runs that ended before it.
    for number in [5, 6] {
        apply(&primary, &debug_created(number)).await;
    }
    apply(&primary, &[debug_moved(5, &[RunState::Terminating, RunState::Completed], 110)]).await;
    copy(&primary, &replica).await;
    assert_eq!(primary.prune_debug(at(111), 100).await.unwrap(), 1);
    replica.forget(&primary.kept().await.unwrap()).await.unwrap();
    assert_eq!(replica.run(&debug_id(5)).await.unwrap(), None);
    assert_eq!(replica.run(&debug_id(6)).await.unwrap(), primary.run(&debug_id(6)).await.unwrap());
    assert_eq!(dump(&replica).await, of(&primary).await);
    // A debug command stays, although runs that ended after it go because there are too many.
    apply(&primary, &debug_created(7)).await;
    apply(&primary, &[debug_moved(7, &[RunState::Terminating, RunState::Completed], 100)]).await;
    copy(&primary, &replica).await;
    let one = Excess { before: at(102), runs: 1, events_upto: 0, output_bytes: 0 };
    assert_eq!(primary.prune_excess(&one, 10).await.unwrap().runs, 1);
    replica.forget(&primary.kept().await.unwrap()).await.unwrap();
    assert!(replica.run(&debug_id(7)).await.unwrap().is_some());
    assert_eq!(dump(&replica).await, of(&primary).await);
    for before in [at(102), at(103), at(1_000)] {
        primary.prune(before, 100).await.unwrap();
        replica.forget(&primary.kept().await.unwrap()).await.unwrap();
        assert_eq!(dump(&replica).await, of(&primary).await);
    }
    // A key that is free again in the primary is free in the copy.
    let seq = primary.last_seq().await.unwrap();
    apply(&primary, &[created_with_key(9, "key-1")]).await;
    let new = primary.events(&EventFilter { since: seq, run: None }, ALL_EVENTS).await.unwrap();
    assert_eq!(replica.replicate(&new, &[], 0).await.unwrap(), Replicated::Applied);
    replica.forget(&Kept { first_seq: Some(seq + 1), ..Kept::default() }).await.unwrap();
    assert_eq!(dump(&replica).await, of(&primary).await);
}

pub async fn output_that_the_primary_removed_is_removed(replica: Arc<dyn Replica>) {
    let primary: Arc<dyn Store> = Arc::new(MemoryStore::new());
    for number in 1..=3 {
        let skipped = State::Skipped { reason: "no".to_owned(), at: at(20) };
        apply(&primary, &[created(number), added(number, vec![execution(number, number, skipped)])]).await;
        apply(&primary, &[moved(number, &[RunState::Cancelled], 100 + i64::from(number))]).await;
        primary.append_output(&[chunk(number, 0, "text")], 100).await.unwrap();
    }
    copy(&primary, &replica).await;
    let remove = async |output_bytes| {
        let excess = Excess { before: at(1_000), runs: 0, events_upto: 0, output_bytes };
        primary.prune_excess(&excess, 10).await.unwrap();
        let kept = primary.kept().await.unwrap();
        // As it is sent.
        let kept: Kept = serde_json::from_str(&serde_json::to_string(&kept).unwrap()).unwrap();
        replica.forget(&kept).await.unwrap();
        assert_eq!(dump(&replica).await, of(&primary).await);
        replica.volume().await.unwrap().output_bytes
    };
    assert_eq!(remove(0).await, 12);
    assert_eq!(remove(1).await, 8);
    // A new copy has none of it, and goes on from there.
    copy(&primary, &replica).await;
    assert_eq!(remove(1).await, 4);
    assert_eq!(remove(9).await, 0);
}

pub async fn old_executions_of_standing_tasks_are_removed_as_in_the_primary(replica: Arc<dyn Replica>) {
    let primary: Arc<dyn Store> = Arc::new(MemoryStore::new());
    fill_standing(&primary).await;
    copy(&primary, &replica).await;
    let clusters = primary.clusters().await.unwrap();
    for (attempts, removed) in [(9, 0), (2, 4), (1, 4)] {
        let rule = StandingRule { attempts, before: at(0) };
        let gone = primary.prune_standing(&StandingKept::of(rule, &clusters), 100).await.unwrap();
        assert_eq!(gone, removed, "{attempts} of each are kept");
        let kept = Kept { standing: Some(rule), ..primary.kept().await.unwrap() };
        // As it is sent.
        let kept: Kept = serde_json::from_str(&serde_json::to_string(&kept).unwrap()).unwrap();
        replica.forget(&kept).await.unwrap();
        assert_eq!(dump(&replica).await, of(&primary).await);
    }
}

pub async fn a_copy_follows_clusters_to_their_end(replica: Arc<dyn Replica>) {
    let primary = primary().await;
    copy(&primary, &replica).await;
    let seq = primary.last_seq().await.unwrap();
    fill_deleted(&primary).await;
    // Names move on in one batch.
    apply(&primary, &[cluster_created(8)]).await;
    let renamed = cluster(8).edited(at(99), |cluster| cluster.name = "cluster-7".to_owned());
    apply(&primary, &[cluster_changed(renamed)]).await;
    apply(&primary, &[cluster_deleted(8)]).await;
    let new = ClusterRecord { name: "cluster-7".to_owned(), ..cluster(9) };
    apply(&primary, &[Change::ClusterCreated { cluster: new, by: "ada".to_owned(), at: at(99) }]).await;
    let new = primary.events(&EventFilter { since: seq, run: None }, ALL_EVENTS).await.unwrap();
    let chunks: Vec<_> = (701..=716).map(|number| chunk(number, 0, "text")).collect();
    assert_eq!(replica.replicate(&new, &chunks, 100).await.unwrap(), Replicated::Applied);
    assert_eq!(dump(&replica).await, of(&primary).await);
    let kept = primary.kept().await.unwrap();
    assert_eq!(kept.removed, [cluster_id(3), cluster_id(7), cluster_id(8)]);
    remove_all(&primary).await;
    replica.forget(&kept).await.unwrap();
    assert_eq!(dump(&replica).await, of(&primary).await);
    assert_eq!(primary.kept().await.unwrap().removed, []);
}

pub async fn a_copy_follows_jobs(replica: Arc<dyn Replica>) {
    let primary = primary().await;
    copy(&primary, &replica).await;
    let seq = primary.last_seq().await.unwrap();
    apply(&primary, &[job_applied(7, 1), job_applied(7, 2), job_applied(8, 1)]).await;
    apply(&primary, &[super::jobs::fired(61, 7, 2, 1), job_decided(8, 1, 1, 70)]).await;
    apply(&primary, &[backfill_created(1, 7), backfill_created(2, 7)]).await;
    apply(&primary, &[backfilled(62, 7, 1, 10, 10)]).await;
    apply(&primary, &[job_paused(7, true), job_deleted(8)]).await;
    let new = primary.events(&EventFilter { since: seq, run: None }, ALL_EVENTS).await.unwrap();
    assert_eq!(replica.replicate(&new, &[], 100).await.unwrap(), Replicated::Applied);
    assert_eq!(dump(&replica).await, of(&primary).await);
}

pub async fn events_of_a_removed_cluster_are_applied(replica: Arc<dyn Replica>) {
    let primary = primary().await;
    copy(&primary, &replica).await;
    let seq = primary.last_seq().await.unwrap();
    fill_deleted(&primary).await;
    remove_all(&primary).await;
    replica.forget(&primary.kept().await.unwrap()).await.unwrap();
    // As they are sent.
    let new = primary.events(&EventFilter { since: seq, run: None }, ALL_EVENTS).await.unwrap();
    let sent = serde_json::to_string(&new).unwrap();
    let new: Vec<Event> = serde_json::from_str(&sent).unwrap();
    assert_eq!(replica.replicate(&new, &[], 0).await.unwrap(), Replicated::Applied);
    replica.forget(&primary.kept().await.unwrap()).await.unwrap();
    assert_eq!(dump(&replica).await, of(&primary).await);
}

pub async fn heartbeats_are_taken_for_the_current_session(replica: Arc<dyn Replica>) {
    let primary: Arc<dyn Store> = Arc::new(MemoryStore::new());
    apply(&primary, &[registered(1, session(1), 1), registered(2, session(2), 2)]).await;
    copy(&primary, &replica).await;
    replica.see_nodes(&[(node(1), session(1), at(50)), (node(2), session(1), at(50))]).await.unwrap();
    replica.see_nodes(&[(node(1), session(1), at(40)), (node(9), session(1), at(50))]).await.unwrap();
    let seen = replica.presence().await.unwrap();
    assert_eq!(seen, [(node(1), session(1), at(50)), (node(2), session(2), at(2))]);
}

pub async fn servers_are_those_that_were_set_last(replica: Arc<dyn Replica>) {
    let record = |number, name| server_record(number, name, 2);
    replica.set_servers(&[record(1, "a"), record(2, "b")]).await.unwrap();
    replica.set_servers(&[record(2, "b"), record(3, "a")]).await.unwrap();
    assert_eq!(replica.servers().await.unwrap(), [record(3, "a"), record(2, "b")]);
    let primary = primary().await;
    copy(&primary, &replica).await;
    assert_eq!(replica.servers().await.unwrap().len(), 2, "replication does not change servers");
}
