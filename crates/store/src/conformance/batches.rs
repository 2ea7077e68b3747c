//! Cases about batches: their order, their guards, their events.

use std::collections::BTreeSet;
use std::sync::Arc;

use downbeat_core::Portion;
use downbeat_core::change::{About, Change, Refusal};
use downbeat_core::execution::{Execution, State, Status, Verdict};
use downbeat_core::ids::ClusterId;
use downbeat_core::run::{RunMade, RunState};

use super::make::*;
use super::snapshot::{Snapshot, fill};
use crate::memory::MemoryStore;
use crate::port::{Committed, EventFilter, Store};

pub async fn kinds_are_applied_in_the_order_of_their_phase(store: Arc<dyn Store>) {
    let batch = [
        moved(1, &[RunState::Terminating, RunState::Completed], 9),
        finished(1, 1, 1, Verdict::Succeeded),
        started(1, 1, 1, 8),
        granted(1, 1, lease(1, 1)),
        added(1, vec![execution(1, 1, pending())]),
        Change::RunCancelRequested { run: run_id(1), by: "ada".to_owned(), at: at(7) },
        created(1),
        registered(1, session(1), 6),
    ];
    let Committed { outcomes, seqs, .. } = commit(&store, &batch).await;
    assert_eq!(outcomes, vec![Ok(()); 8]);
    assert_eq!(seqs, [Some(8), Some(7), Some(6), Some(5), Some(4), Some(3), Some(2), Some(1)]);
    let events = store.events(&EventFilter::default(), ALL_EVENTS).await.unwrap();
    let kinds: Vec<_> = events.iter().map(|event| (event.seq, event.change.kind())).collect();
    assert_eq!(
        kinds,
        [
            (1, "node_registered"),
            (2, "run_created"),
            (3, "run_cancel_requested"),
            (4, "executions_added"),
            (5, "execution_leased"),
            (6, "execution_started"),
            (7, "execution_finished"),
            (8, "run_moved"),
        ]
    );
    assert!(events.iter().all(|event| event.server == SERVER));
    for event in events {
        let index = seqs.iter().position(|seq| *seq == Some(event.seq)).unwrap();
        assert_eq!(event.change, batch[index]);
    }
}

pub async fn within_a_kind_changes_are_applied_as_given(store: Arc<dyn Store>) {
    use RunState::{Pending, Running, Starting, Terminating};
    apply(&store, &[created(1), created(2)]).await;
    let batch = [
        moved(1, &[Starting], 5),
        moved(2, &[Running], 5),
        moved(1, &[Running], 6),
        moved(1, &[Terminating], 7),
    ];
    let refused = Err(Refusal::NoSuchMove { from: Pending, to: Running });
    assert_eq!(commit(&store, &batch).await.outcomes, [Ok(()), refused, Ok(()), Ok(())]);
    let run = store.run(&run_id(1)).await.unwrap().unwrap();
    assert_eq!((run.state(), run.live.started_at), (Terminating, Some(at(6))));
}

pub async fn a_refused_change_leaves_no_trace_and_harms_no_other(store: Arc<dyn Store>) {
    fill(&store).await;
    let before = Snapshot::of(&store).await;
    let (run, epoch) = (run_id(1), 7);
    let new = vec![execution(50, 1, pending())];
    let refused = vec![
        created(1),
        Change::RunTaken { run: run.clone(), owner: server(3), epoch: 9, at: at(90) },
        Change::RunCancelRequested { run: run_id(2), by: "ada".to_owned(), at: at(90) },
        Change::ExecutionsAdded {
            run,
            epoch,
            executions: new,
            rollout: None,
            version: None,
            sessions: Vec::new(),
            after: None,
            at: at(90),
        },
        added(1, vec![execution(51, 1, pending()), execution(9, 1, pending())]),
        granted(1, 9, lease(90, 1)),
        started(1, 9, 90, 90),
        finished(1, 9, 90, Verdict::Succeeded),
        lost(1, 9, 90, None, 90),
        stop_requested(1, 9, epoch, 90),
        given_up(1, 9, epoch, 90),
        skipped(1, 9, epoch, 90),
        moved(1, &[RunState::Running], 90),
    ];
    let Committed { outcomes, seqs, .. } = commit(&store, &refused).await;
    assert!(outcomes.iter().all(Result::is_err), "{outcomes:?}");
    assert!(seqs.iter().all(Option::is_none));
    assert_eq!(Snapshot::of(&store).await, before);
    // With one valid change among them, only that one is applied.
    let mut mixed = refused;
    mixed.insert(5, finished(1, 9, 9, Verdict::Succeeded));
    let Committed { outcomes, seqs, .. } = commit(&store, &mixed).await;
    let applied: Vec<_> = (0..mixed.len()).filter(|&index| outcomes[index].is_ok()).collect();
    assert_eq!(applied, [5]);
    assert_eq!(seqs[5], Some(before.last_seq + 1));
    let after = Snapshot::of(&store).await;
    assert_eq!(after.events.len(), before.events.len() + 1);
    let differing: Vec<_> = after
        .executions
        .iter()
        .filter(|each| !before.executions.contains(each))
        .map(|each| each.id)
        .collect();
    assert_eq!(differing, [execution_id(9)]);
    assert_eq!((after.runs, after.nodes), (before.runs, before.nodes));
}

pub async fn an_execution_born_and_ended_in_one_batch_is_ended(store: Arc<dyn Store>) {
    let batch =
        [created(1), added(1, vec![execution(1, 1, leased(1, 1))]), finished(1, 1, 1, Verdict::Succeeded)];
    apply(&store, &batch).await;
    let found = store.execution(execution_id(1)).await.unwrap().unwrap();
    assert!(matches!(found.state, State::Succeeded { .. }));
    assert_eq!(store.last_seq().await.unwrap(), 3);
    assert_eq!(store.open_executions().await.unwrap(), []);
}

pub async fn an_empty_batch_does_nothing(store: Arc<dyn Store>) {
    assert_eq!(commit(&store, &[]).await, Committed { outcomes: vec![], seqs: vec![], abouts: vec![] });
    assert_eq!(store.last_seq().await.unwrap(), 0);
}

pub async fn a_kind_that_only_newer_programs_know_is_never_written(store: Arc<dyn Store>) {
    let unknown = Change::Unknown { name: "job_stored".to_owned(), run: None, at: at(1) };
    let Committed { outcomes, seqs, .. } = commit(&store, &[unknown.clone(), created(1), unknown]).await;
    assert_eq!(outcomes, [Err(Refusal::NotKnownToAll), Ok(()), Err(Refusal::NotKnownToAll)]);
    assert_eq!(seqs, [None, Some(1), None]);
    assert_eq!(store.events(&EventFilter::default(), ALL_EVENTS).await.unwrap().len(), 1);
}

pub async fn events_are_numbered_without_gaps_also_at_once(store: Arc<dyn Store>) {
    const WRITERS: u32 = 8;
    const EACH: u32 = 10;
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let store = Arc::clone(&store);
        tasks.spawn(async move {
            let mut seqs = Vec::new();
            for round in 0..EACH {
                let number = 1 + writer * EACH + round;
                let committed =
                    store.commit(server(writer), &[created(number), created(number)]).await.unwrap();
                assert_eq!(committed.outcomes, [Ok(()), Err(Refusal::RunExists(run_id(number)))]);
                seqs.extend(committed.seqs.into_iter().flatten());
            }
            assert!(seqs.is_sorted(), "{seqs:?}");
            seqs
        });
    }
    let seqs: BTreeSet<u64> = tasks.join_all().await.into_iter().flatten().collect();
    let expected: Vec<u64> = (1..=u64::from(WRITERS * EACH)).collect();
    assert_eq!(seqs.into_iter().collect::<Vec<_>>(), expected);
    let events = store.events(&EventFilter::default(), ALL_EVENTS).await.unwrap();
    assert_eq!(events.iter().map(|event| event.seq).collect::<Vec<_>>(), expected);
}

pub async fn events_are_read_from_a_number_on_and_by_run(store: Arc<dyn Store>) {
    assert_eq!(store.events(&EventFilter::default(), ALL_EVENTS).await.unwrap(), []);
    apply(
        &store,
        &[registered(1, session(1), 1), created(1), created(2), added(1, vec![execution(1, 1, pending())])],
    )
    .await;
    let seqs = async |since, run: Option<u32>, rows| {
        let filter = EventFilter { since, run: run.map(run_id) };
        let events = store.events(&filter, Portion::of_rows(rows)).await.unwrap();
        events.into_iter().map(|event| event.seq).collect::<Vec<_>>()
    };
    assert_eq!(seqs(0, None, 100).await, [1, 2, 3, 4]);
    assert_eq!(seqs(2, None, 100).await, [3, 4]);
    assert_eq!(seqs(1, None, 2).await, [2, 3]);
    assert_eq!(seqs(4, None, 100).await, [0; 0]);
    assert_eq!(seqs(u64::MAX, None, 100).await, [0; 0]);
    assert_eq!(seqs(0, Some(1), 100).await, [2, 4]);
    assert_eq!(seqs(2, Some(1), 100).await, [4]);
    assert_eq!(seqs(0, Some(2), 100).await, [3]);
    assert_eq!(seqs(0, Some(3), 100).await, [0; 0]);
    assert_eq!(store.last_seq().await.unwrap(), 4);
}

pub async fn events_name_their_subject(store: Arc<dyn Store>) {
    let attempt = Execution { of: origin(1, 2, Some(3)), attempt: 4, ..execution(1, 1, pending()) };
    // Some in the batch that creates the rows, others in later ones.
    let job = Some("copy".to_owned());
    let run = created_as(made_as(RunMade { job: job.clone(), ..made(1) }));
    commit(&store, &[registered(1, session(1), 1), run, added(1, vec![attempt])]).await;
    commit(&store, &[granted(1, 1, lease(1, 1)), started(1, 1, 1, 8)]).await;
    commit(&store, &[finished(1, 1, 1, Verdict::Failed), failed_for_good(1, 1, 1)]).await;
    commit(&store, &[moved(1, &[RunState::Terminating, RunState::Failed], 9)]).await;
    let deleted = commit(&store, &[stop_requested(1, 9, 1, 9), deleted(1, session(1), 10)]).await;
    assert!(deleted.outcomes[0].is_err());

    let cluster = Some(ClusterId::DEFAULT);
    let of_node = About { cluster, node: Some(node(1)), ..About::default() };
    let of_run = About { cluster, job: job.map(Into::into), ..About::default() };
    let of_execution =
        About { node: Some(node(1)), step: Some(2), item: Some(3), attempt: Some(4), ..of_run.clone() };
    assert_eq!(deleted.abouts, [About::default(), of_node.clone()]);
    let events = store.events(&EventFilter::default(), ALL_EVENTS).await.unwrap();
    let found: Vec<_> =
        events.into_iter().map(|event| (event.change.kind().to_owned(), event.about)).collect();
    let after = |was| About { was: Some(was), ..of_execution.clone() };
    let expected = [
        ("node_registered", &of_node),
        ("run_created", &of_run),
        ("executions_added", &of_run),
        ("execution_leased", &after(Status::Pending)),
        ("execution_started", &after(Status::Leased)),
        ("execution_finished", &after(Status::Running)),
        ("instance_failed", &after(Status::Failed)),
        ("run_moved", &of_run),
        ("node_deleted", &of_node),
    ];
    let expected = expected.map(|(kind, about)| (kind.to_owned(), about.clone()));
    assert_eq!(found, expected);
}

pub async fn a_failure_precedes_the_executions_that_follow_from_it(store: Arc<dyn Store>) {
    let first = execution(1, 1, leased(1, 1));
    apply(&store, &[registered(1, session(1), 1), created(1), added(1, vec![first])]).await;
    apply(&store, &[finished(1, 1, 1, Verdict::Failed)]).await;
    // The second execution fails in the batch that creates it, so its failure can only follow.
    let unsent = State::Failed { lease: None, outcome: None, error: None, at: at(9) };
    let next = added(1, vec![execution(2, 1, unsent)]);
    let before = store.last_seq().await.unwrap();
    apply(&store, &[next, failed_for_good(1, 2, 1), failed_for_good(1, 1, 1)]).await;

    let filter = EventFilter { since: before, run: None };
    let events = store.events(&filter, ALL_EVENTS).await.unwrap();
    let found: Vec<_> = events.iter().map(|event| (event.change.kind(), event.change.execution())).collect();
    let failed = |number| ("instance_failed", Some(execution_id(number)));
    assert_eq!(found, [failed(1), ("executions_added", None), failed(2)]);
}

pub async fn events_are_read_up_to_a_number_of_bytes(store: Arc<dyn Store>) {
    const TEXT: usize = 100_000;
    let named = |number: u32| {
        let Change::RunCreated { mut run, max_pending, max_open, firing: _ } = created(number) else {
            unreachable!("it is created")
        };
        Arc::make_mut(&mut run.made).by = "x".repeat(TEXT);
        Change::RunCreated { run, max_pending, max_open, firing: None }
    };
    apply(&store, &[named(1), named(2), named(3), created(4), named(5)]).await;
    let seqs = async |since, run: Option<u32>, bytes| {
        let filter = EventFilter { since, run: run.map(run_id) };
        let events = store.events(&filter, Portion::new(4, bytes)).await.unwrap();
        events.into_iter().map(|event| event.seq).collect::<Vec<_>>()
    };
    // One is always read, whatever its size.
    assert_eq!(seqs(0, None, 0).await, [1]);
    assert_eq!(seqs(1, Some(3), 0).await, [3]);
    assert_eq!(seqs(4, None, TEXT).await, [5]);
    // The others only if they fit.
    assert_eq!(seqs(0, None, 2 * TEXT).await, [1]);
    assert_eq!(seqs(0, None, 2 * TEXT + 10_000).await, [1, 2]);
    assert_eq!(seqs(2, None, TEXT + 10_000).await, [3, 4]);
    assert_eq!(seqs(0, None, usize::MAX).await, [1, 2, 3, 4]);
    assert_eq!(seqs(5, None, usize::MAX).await, [0; 0]);
}

pub async fn the_events_replayed_give_equal_tables(store: Arc<dyn Store>) {
    fill(&store).await;
    let original = Snapshot::of(&store).await;
    assert!(original.last_seq > 20);
    let replica: Arc<dyn Store> = Arc::new(MemoryStore::new());
    for event in &original.events {
        let committed = replica.commit(event.server, std::slice::from_ref(&event.change)).await.unwrap();
        let abouts = vec![event.about.clone()];
        let expected = Committed { outcomes: vec![Ok(())], seqs: vec![Some(event.seq)], abouts };
        assert_eq!(committed, expected, "{event:?}");
    }
    assert_eq!(Snapshot::of(&replica).await, original);
}
