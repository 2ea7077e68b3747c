//! Cases about clusters, their standing tasks, and what is left of them.

use std::sync::Arc;

use downbeat_core::change::{About, Change, EndOf, Refusal};
use downbeat_core::cluster::{ClusterRecord, OnRegister};
use downbeat_core::execution::{Execution, Status, Verdict};
use downbeat_core::ids::{ClusterId, NodeId, RunId};
use downbeat_core::limits::SHARED_CONTENT_BYTES;
use downbeat_core::node::Registration;
use downbeat_core::plan::{NodeRef, Resolved};
use downbeat_core::retention::{KeptList, StandingKept};
use downbeat_core::run::{RunMade, RunState};
use downbeat_core::spec::{Limit, Limits};
use downbeat_core::work::Parent;

use super::copies::{copy, dump};
use super::make::*;
use super::{Snapshot, fill, fill_beside};
use crate::port::{EventFilter, ExecutionFilter, Page, RunFilter, StandingKey, StandingResult, Store};

/// Rows that are removed at once here: so few that it takes many calls.
const FEW: u32 = 3;

pub async fn a_created_cluster_is_read_back_whole(store: Arc<dyn Store>) {
    assert_eq!(store.clusters().await.unwrap(), [ClusterRecord::default_cluster()]);
    let (one, two) = (cluster(1), with_tasks(&cluster(2), &[1, 2, 3]));
    let two = ClusterRecord { on_register: OnRegister::Resume, ..two };
    apply(&store, &[cluster_created(2), cluster_created(1)]).await;
    apply(&store, &[cluster_changed(two.clone())]).await;
    assert_eq!(store.clusters().await.unwrap(), [one.clone(), two.clone(), ClusterRecord::default_cluster()]);
    for (cluster, name) in [(&one, "cluster-1"), (&two, "cluster-2")] {
        assert_eq!(store.cluster(name).await.unwrap(), Some(cluster.id));
        assert_eq!(store.cluster(&cluster.id.to_string()).await.unwrap(), Some(cluster.id));
        assert_eq!(store.cluster_record(cluster.id).await.unwrap().as_ref(), Some(cluster));
    }
    assert_eq!(store.cluster_record(cluster_id(3)).await.unwrap(), None);
    assert_eq!(store.removed_clusters().await.unwrap(), []);
    let events = store.events(&EventFilter::default(), ALL_EVENTS).await.unwrap();
    let of = |number| About { cluster: Some(cluster_id(number)), ..About::default() };
    let abouts: Vec<About> = events.into_iter().map(|event| event.about).collect();
    assert_eq!(abouts, [of(2), of(1), of(2)]);
}

pub async fn a_name_belongs_to_one_cluster_until_it_is_deleted(store: Arc<dyn Store>) {
    apply(&store, &[cluster_created(1), cluster_created(2)]).await;
    let in_use = |name: &str| Refusal::NameInUse(name.to_owned());
    let named = |number, name: &str| ClusterRecord { name: name.to_owned(), ..cluster(number) };
    let create = |cluster: ClusterRecord| Change::ClusterCreated { cluster, by: "ada".to_owned(), at: at(9) };
    refuse(&store, create(named(3, "cluster-1")), in_use("cluster-1")).await;
    refuse(&store, create(named(3, "default")), in_use("default")).await;
    refuse(&store, cluster_created(1), Refusal::WrongState).await;
    let renamed = |number, name: &str| cluster_changed(named(number, name).edited(at(9), |_| {}));
    refuse(&store, renamed(2, "cluster-1"), in_use("cluster-1")).await;
    apply(&store, &[renamed(2, "two")]).await;
    apply(&store, &[create(named(3, "cluster-2"))]).await;
    apply(&store, &[cluster_deleted(1)]).await;
    assert_eq!(store.cluster("cluster-1").await.unwrap(), None);
    apply(&store, &[create(named(4, "cluster-1"))]).await;
    assert_eq!(store.cluster("cluster-1").await.unwrap(), Some(cluster_id(4)));
    assert_eq!(store.cluster("two").await.unwrap(), Some(cluster_id(2)));
    assert_eq!(store.cluster("cluster-2").await.unwrap(), Some(cluster_id(3)));
}

pub async fn clusters_may_swap_their_names(store: Arc<dyn Store>) {
    apply(&store, &[cluster_created(1), cluster_created(2)]).await;
    let named =
        |cluster: &ClusterRecord, name: &str| cluster.edited(at(9), |cluster| cluster.name = name.to_owned());
    let (two, one) = (named(&cluster(2), "free"), named(&cluster(1), "cluster-2"));
    let back = named(&two, "cluster-1");
    apply(&store, &[cluster_changed(two), cluster_changed(one), cluster_changed(back)]).await;
    assert_eq!(store.cluster("cluster-1").await.unwrap(), Some(cluster_id(2)));
    assert_eq!(store.cluster("cluster-2").await.unwrap(), Some(cluster_id(1)));
}

pub async fn a_cluster_changes_version_by_version(store: Arc<dyn Store>) {
    let two = with_tasks(&cluster(1), &[1]);
    refuse(&store, cluster_changed(two.clone()), Refusal::NotFound).await;
    apply(&store, &[cluster_created(1)]).await;
    refuse(&store, cluster_changed(cluster(1)), Refusal::StaleVersion).await;
    let three = with_tasks(&two, &[1, 2]);
    refuse(&store, cluster_changed(three.clone()), Refusal::StaleVersion).await;
    apply(&store, &[cluster_changed(two.clone())]).await;
    refuse(&store, cluster_changed(two), Refusal::StaleVersion).await;
    apply(&store, &[cluster_changed(three.clone())]).await;
    assert_eq!(store.cluster_record(cluster_id(1)).await.unwrap(), Some(three));
}

pub async fn the_default_cluster_is_not_deleted(store: Arc<dyn Store>) {
    let delete = |cluster| Change::ClusterDeleted {
        cluster,
        name: "default".to_owned(),
        by: "ada".to_owned(),
        at: at(9),
    };
    refuse(&store, delete(ClusterId::DEFAULT), Refusal::WrongState).await;
    refuse(&store, delete(cluster_id(1)), Refusal::NotFound).await;
    apply(&store, &[cluster_created(1), delete(cluster_id(1))]).await;
    refuse(&store, delete(cluster_id(1)), Refusal::NotFound).await;
    assert_eq!(store.removed_clusters().await.unwrap(), [cluster_id(1)]);
}

pub async fn nothing_is_added_to_a_deleted_cluster(store: Arc<dyn Store>) {
    apply(&store, &[cluster_created(1), standing_created(1), registered_in(1, 1, 1)]).await;
    apply(&store, &[cluster_deleted(1)]).await;
    let run = || made_as(RunMade { cluster: cluster_id(1), ..made(1) });
    refuse(&store, created_as(run()), Refusal::NotFound).await;
    refuse(&store, registered_in(2, 1, 2), Refusal::NotFound).await;
    refuse(&store, registered_in(1, 1, 2), Refusal::NotFound).await;
    let attempts = vec![standing(1, 1, 1, 1, 1, pending())];
    refuse(&store, standing_added(1, 1, attempts), Refusal::NotFound).await;
    refuse(&store, cluster_changed(with_tasks(&cluster(1), &[1])), Refusal::NotFound).await;
}

pub async fn nothing_is_shown_of_a_deleted_cluster(store: Arc<dyn Store>) {
    let run = |number, cluster| created_as(made_as(RunMade { cluster, ..made(number) }));
    apply(&store, &[cluster_created(1), run(1, cluster_id(1)), run(2, ClusterId::DEFAULT)]).await;
    apply(&store, &[registered_in(1, 1, 1), registered(2, session(2), 1), standing_created(1)]).await;
    apply(&store, &[cluster_deleted(1)]).await;
    assert_eq!(store.cluster(&cluster_id(1).to_string()).await.unwrap(), None);
    assert_eq!(store.cluster_record(cluster_id(1)).await.unwrap(), None);
    assert_eq!(store.clusters().await.unwrap(), [ClusterRecord::default_cluster()]);
    let nodes: Vec<NodeId> = store.nodes(None).await.unwrap().iter().map(|node| node.id).collect();
    assert_eq!(nodes, [node(2)]);
    let listed = store.runs(&RunFilter::default(), &Page::first(9)).await.unwrap();
    assert_eq!(listed.rows.iter().map(|run| run.id.clone()).collect::<Vec<_>>(), [run_id(2)]);
    assert_eq!(listed.total, Some(1));
    let open: Vec<RunId> = store.open_runs().await.unwrap().iter().map(|run| run.id.clone()).collect();
    assert_eq!(open, [run_id(2)]);
    assert_eq!(store.open_run_owners().await.unwrap(), [(run_id(2), SERVER)]);
}

pub async fn executions_of_an_older_version_are_refused(store: Arc<dyn Store>) {
    apply(&store, &[cluster_created(1), standing_created(1)]).await;
    apply(&store, &[cluster_changed(with_tasks(&cluster(1), &[1]))]).await;
    let attempts = |number| vec![standing(number, 1, 1, 1, 1, pending())];
    for version in [1, 3] {
        refuse(&store, standing_added(1, version, attempts(1)), Refusal::StaleVersion).await;
    }
    apply(&store, &[standing_added(1, 2, attempts(1))]).await;
    // What changes in the same batch counts.
    let three = with_tasks(&with_tasks(&cluster(1), &[1]), &[2]);
    let batch =
        [standing_added(1, 3, attempts(3)), cluster_changed(three), standing_added(1, 2, attempts(2))];
    let outcomes = commit(&store, &batch).await.outcomes;
    assert_eq!(outcomes, [Ok(()), Ok(()), Err(Refusal::StaleVersion)]);
    // The run of a first list is created with it.
    apply(&store, &[cluster_created(2)]).await;
    let two = with_tasks(&cluster(2), &[1]);
    let first = standing_added(2, 2, vec![standing(4, 2, 1, 1, 1, pending())]);
    apply(&store, &[first, standing_created(2), cluster_changed(two)]).await;
}

pub async fn what_follows_an_end_is_added_with_it_and_once(store: Arc<dyn Store>) {
    let run = RunId::standing(cluster_id(1));
    let follow = |number, step, after, status| {
        let mut change = standing_added(1, 2, vec![standing(number, 1, step, 1, 1, leased(number, 1))]);
        if let Change::ExecutionsAdded { after: none, .. } = &mut change {
            *none = Some(EndOf { execution: execution_id(after), status });
        }
        change
    };
    let end = |number, verdict| Change::ExecutionFinished {
        of: Parent::Run(run.clone()),
        execution: execution_id(number),
        token: token(number),
        outcome: outcome(verdict),
    };
    let not_after = || Err(Refusal::NotAfter);
    apply(&store, &[cluster_created(1), standing_created(1)]).await;
    apply(&store, &[cluster_changed(with_tasks(&cluster(1), &[1, 2, 3]))]).await;
    apply(&store, &[standing_added(1, 2, vec![standing(1, 1, 1, 1, 1, leased(1, 1))])]).await;

    // It follows an end of its own commit, wherever that stands, and only one change does.
    let follows = |number| follow(number, 2, 1, Status::Succeeded);
    refuse(&store, follows(2), Refusal::NotAfter).await;
    let batch = [follows(2), end(1, Verdict::Succeeded), end(1, Verdict::Succeeded), follows(3)];
    let outcomes = commit(&store, &batch).await.outcomes;
    assert_eq!(outcomes, [Ok(()), Ok(()), Err(Refusal::StaleLease), not_after()]);
    let outcomes = commit(&store, &[end(1, Verdict::Succeeded), follows(3)]).await.outcomes;
    assert_eq!(outcomes, [Err(Refusal::StaleLease), not_after()], "the end was committed before");

    // Another end than the one that it relied on.
    let batch = [end(2, Verdict::Failed), follow(3, 3, 2, Status::Succeeded)];
    assert_eq!(commit(&store, &batch).await.outcomes, [Ok(()), not_after()]);
    // The end of an execution of another run.
    apply(&store, &[created(7), added(7, vec![execution(4, 7, leased(4, 1))])]).await;
    let batch = [finished(7, 4, 4, Verdict::Succeeded), follow(3, 3, 4, Status::Succeeded)];
    assert_eq!(commit(&store, &batch).await.outcomes, [Ok(()), not_after()]);

    let found = store.executions_of(&run).await.unwrap();
    let found: Vec<_> = found.iter().map(|one| (one.id, one.state.status())).collect();
    assert_eq!(found, [(execution_id(1), Status::Succeeded), (execution_id(2), Status::Failed)]);
}

pub async fn standing_tasks_of_another_session_are_refused(store: Arc<dyn Store>) {
    apply(&store, &[cluster_created(1), standing_created(1)]).await;
    apply(&store, &[registered_in(1, 1, 1), registered_in(2, 1, 1)]).await;
    let step = |number, on| standing(number, 1, 1, on, 1, pending());
    let both = [(step(1, 1), session(1)), (step(2, 2), session(7))];
    refuse(&store, standing_added_for(1, 1, both), Refusal::StaleSession).await;
    refuse(&store, standing_added_for(1, 1, [(step(3, 3), session(3))]), Refusal::NotFound).await;
    let mut lacking = standing_added_for(1, 1, [(step(1, 1), session(1)), (step(2, 2), session(2))]);
    if let Change::ExecutionsAdded { sessions, .. } = &mut lacking {
        sessions.pop();
    }
    refuse(&store, lacking, Refusal::WrongState).await;
    assert_eq!(results(&store, None, None, 9).await, []);
    // A registration in the same batch comes first.
    let again = Change::NodeRegistered {
        registration: Registration { cluster: cluster_id(1), ..registration(2, session(7), 2) },
    };
    let first = standing_added_for(1, 1, [(step(1, 1), session(1))]);
    let second = standing_added_for(1, 1, [(step(2, 2), session(2))]);
    let third = standing_added_for(1, 1, [(step(3, 2), session(7))]);
    let outcomes = commit(&store, &[first, second, third, again]).await.outcomes;
    assert_eq!(outcomes, [Ok(()), Err(Refusal::StaleSession), Ok(()), Ok(())]);
}

pub async fn a_node_registers_after_its_standing_tasks_were_decided(store: Arc<dyn Store>) {
    apply(&store, &[cluster_created(1), standing_created(1)]).await;
    apply(&store, &[registered_in(1, 1, 1), registered_in(2, 1, 1)]).await;
    let step =
        Execution { id: execution_id_at(30), created_at: at(30), ..standing(1, 1, 1, 1, 1, pending()) };
    // Other work of the node does not count.
    let other = Execution { id: execution_id_at(40), pinned: Some(node(1)), ..execution(9, 9, pending()) };
    apply(&store, &[standing_added_for(1, 1, [(step, session(1))]), created(9), added(9, vec![other])]).await;
    let registers = |on, second| Change::NodeRegistered {
        registration: Registration { cluster: cluster_id(1), ..registration(on, session(8), second) },
    };
    for second in [29, 30] {
        refuse(&store, registers(1, second), Refusal::DecidedLater(at(30))).await;
    }
    apply(&store, &[registers(2, 29), registers(1, 31)]).await;
}

pub async fn standing_runs_are_hidden_from_people(store: Arc<dyn Store>) {
    let before = store.tally().await.unwrap().runs;
    assert_eq!(before, []);
    apply(&store, &[cluster_created(1), standing_created(1)]).await;
    let standing = RunId::standing(cluster_id(1));
    assert_eq!(store.tally().await.unwrap().runs, []);
    apply(&store, &[created(1)]).await;
    assert_eq!(store.tally().await.unwrap().runs, [(RunState::Pending, 1)]);
    for filter in [
        RunFilter::default(),
        RunFilter { states: vec![RunState::PreRun, RunState::Pending], ..RunFilter::default() },
        RunFilter { cluster: None, text: Some("n".to_owned()), ..RunFilter::default() },
    ] {
        let listed = store.runs(&filter, &Page::first(9)).await.unwrap();
        let ids: Vec<RunId> = listed.rows.iter().map(|run| run.id.clone()).collect();
        assert_eq!((ids, listed.total), (vec![run_id(1)], Some(1)), "{filter:?}");
    }
    let in_cluster = RunFilter { cluster: Some(cluster_id(1)), ..RunFilter::default() };
    assert_eq!(store.runs(&in_cluster, &Page::first(9)).await.unwrap().rows, []);
    assert_eq!(store.run(&standing).await.unwrap().unwrap().state(), RunState::PreRun);
    let open: Vec<RunId> = store.open_runs().await.unwrap().iter().map(|run| run.id.clone()).collect();
    assert_eq!(open, [run_id(1), standing.clone()]);
    assert_eq!(store.open_run_owners().await.unwrap(), [(run_id(1), SERVER), (standing, SERVER)]);
    // They neither wait nor are active.
    let last = Change::RunCreated { run: run(2), max_pending: Some(2), max_open: Some(2), firing: None };
    apply(&store, &[last]).await;
}

/// Adds attempts of two tasks on two nodes of each of two clusters.
pub(super) async fn fill_standing(store: &Arc<dyn Store>) {
    apply(store, &[registered(1, session(1), 1), registered(2, session(2), 1)]).await;
    for cluster in [1, 2] {
        apply(store, &[cluster_created(cluster), standing_created(cluster)]).await;
        let numbers = [(1, 1, 1), (2, 1, 2), (3, 1, 3), (4, 1, 4), (5, 2, 1)];
        for (number, step, attempt) in numbers {
            let number = 100 * cluster + number;
            let execution = standing(number, cluster, step, 1, attempt, leased(number, 1));
            apply(store, &[standing_added(cluster, 1, vec![execution])]).await;
            apply(store, &[standing_finished(cluster, number, Verdict::Failed)]).await;
        }
        let open = [
            standing(100 * cluster + 6, cluster, 1, 2, 1, pending()),
            standing(100 * cluster + 7, cluster, 2, 1, 2, leased(7, 1)),
        ];
        apply(store, &[standing_added(cluster, 1, open.to_vec())]).await;
        store.append_output(&[chunk(100 * cluster + 1, 0, "first")], 100).await.unwrap();
    }
    // A run of another kind, with the same steps.
    apply(
        store,
        &[created(1), added(1, vec![Execution { pinned: Some(node(1)), ..execution(1, 1, pending()) }])],
    )
    .await;
}

async fn results(
    store: &Arc<dyn Store>,
    cluster: Option<u32>,
    after: Option<&StandingKey>,
    most: u32,
) -> Vec<StandingResult> {
    store.standing_results(cluster.map(cluster_id), after, most).await.unwrap()
}

pub async fn the_last_attempt_of_each_task_on_each_node_is_read(store: Arc<dyn Store>) {
    assert_eq!(results(&store, None, None, 9).await, []);
    fill_standing(&store).await;
    let all = results(&store, None, None, 100).await;
    let found: Vec<_> = all
        .iter()
        .map(|result| (result.execution, result.step, result.node, result.attempt, result.status))
        .collect();
    let of = |cluster: u32| {
        [
            (execution_id(100 * cluster + 4), 1, node(1), 4, Status::Failed),
            (execution_id(100 * cluster + 6), 1, node(2), 1, Status::Pending),
            (execution_id(100 * cluster + 7), 2, node(1), 2, Status::Leased),
        ]
    };
    assert_eq!(found, [of(1), of(2)].concat());
    let ended = outcome(Verdict::Failed);
    assert_eq!(all[0].run, RunId::standing(cluster_id(1)));
    assert_eq!((all[0].created_at, all[0].exit_code), (at(10), ended.exit_code));
    assert_eq!((all[0].started_at, all[0].ended_at), (Some(ended.started_at), Some(ended.finished_at)));
    assert_eq!((all[2].started_at, all[2].ended_at, all[2].exit_code), (None, None, None));
    assert_eq!(results(&store, Some(2), None, 100).await, all[3..]);
    assert_eq!(results(&store, Some(3), None, 100).await, []);
    for most in 1..=7 {
        let (mut read, mut after) = (Vec::new(), None);
        loop {
            let page = results(&store, None, after.as_ref(), most).await;
            let Some(last) = page.last() else { break };
            after = Some(last.key());
            read.extend(page);
        }
        assert_eq!(read, all, "{most} at once");
    }
    let after = all[0].key();
    assert_eq!(results(&store, Some(1), Some(&after), 100).await, all[1..3]);
}

pub async fn lost_attempts_before_the_last_one_are_counted(store: Arc<dyn Store>) {
    apply(&store, &[cluster_created(1), standing_created(1)]).await;
    let histories: [(&[Status], u32); 6] = [
        (&[], 0),
        (&[Status::Lost], 1),
        (&[Status::Failed, Status::Lost], 1),
        (&[Status::Lost, Status::Lost], 2),
        (&[Status::Lost, Status::Failed], 0),
        (&[Status::Lost, Status::Lost, Status::Lost], 2),
    ];
    for (number, (history, _)) in (1..).zip(histories) {
        let formers = std::iter::once(None).chain(history.iter().copied().map(Some));
        let attempts = (1..).zip(formers).map(|(attempt, former)| {
            let id = 10 * number + attempt;
            Execution { former, ..standing(id, 1, 1, number, attempt, leased(id, number)) }
        });
        apply(&store, &[standing_added(1, 1, attempts.collect())]).await;
    }
    let found: Vec<u32> =
        results(&store, None, None, 100).await.iter().map(|result| result.lost_before).collect();
    assert_eq!(found, histories.map(|(_, lost)| lost));
}

pub async fn executions_of_standing_tasks_are_listed_by_task_and_node(store: Arc<dyn Store>) {
    fill_standing(&store).await;
    let run = Some(RunId::standing(cluster_id(1)));
    let all = || ExecutionFilter { run: run.clone(), ..ExecutionFilter::default() };
    let cases: [(ExecutionFilter, &[u32]); 7] = [
        (all(), &[101, 102, 103, 104, 105, 106, 107]),
        (ExecutionFilter { step: Some(1), ..all() }, &[101, 102, 103, 104, 106]),
        (ExecutionFilter { step: Some(1), statuses: vec![Status::Pending], ..all() }, &[106]),
        (ExecutionFilter { step: Some(2), statuses: vec![Status::Failed], ..all() }, &[105]),
        (ExecutionFilter { node: Some(node(1)), ..all() }, &[101, 102, 103, 104, 105, 107]),
        (ExecutionFilter { node: Some(node(1)), step: Some(2), ..all() }, &[105, 107]),
        (
            ExecutionFilter { statuses: vec![Status::Failed, Status::Lost], ..all() },
            &[101, 102, 103, 104, 105],
        ),
    ];
    for (filter, expected) in cases {
        let expected: Vec<_> = expected.iter().map(|number| execution_id(*number)).collect();
        let (mut found, mut page) = (Vec::new(), Page::first(2));
        loop {
            let listed = store.bare_executions(&filter, &page).await.unwrap();
            found.extend(listed.rows.iter().map(|execution| execution.id));
            match listed.next {
                Some(start) => page.start = start,
                None => break,
            }
        }
        assert_eq!(found, expected, "{filter:?}");
        let listed = store.executions(&filter, &Page::first(2)).await.unwrap();
        assert_eq!(listed.total, Some(expected.len() as u64), "{filter:?}");
    }
}

/// Adds a cluster with rows of every kind, deletes it, and returns the texts by which its rows are found.
pub async fn fill_deleted(store: &Arc<dyn Store>) -> Vec<String> {
    let limits: Limits = [("db".to_owned(), Limit::AtOnce(9))].into_iter().collect();
    let made = RunMade { cluster: cluster_id(7), idempotency_key: Some("key-66".to_owned()), ..made(66) };
    let nodes: Vec<Change> = (71..=75).map(|number| registered_in(number, 7, 1)).collect();
    apply(store, &[cluster_created(7)]).await;
    apply(store, &nodes).await;
    apply(store, &[cluster_changed(with_tasks(&cluster(7), &[1])), standing_created(7)]).await;
    // Large enough for a content of its own.
    store.share_contents().await.unwrap();
    let named = |number| NodeRef { id: node(number), hostname: "x".repeat(SHARED_CONTENT_BYTES) };
    let resolved = Resolved { nodes: (71..=75).map(named).collect(), ..(*made.resolved).clone() };
    let large = RunMade { resolved: Arc::new(resolved), ..made.clone() };
    apply(store, &[created_as(made_as(large)), admitted(66, None, &[72])]).await;
    let of_run = (701..=708).map(|number| Execution {
        limits: Some(Arc::new(limits.clone())),
        cache_key: Some(Arc::from("key-66")),
        pinned: Some(node(72)),
        ..execution(number, 66, leased(number, 72))
    });
    apply(store, &[added(66, of_run.collect())]).await;
    let ended: Vec<Change> =
        (701..=706).map(|number| finished(66, number, number, Verdict::Succeeded)).collect();
    apply(store, &ended).await;
    let attempts = (711..=716).map(|number| standing(number, 7, 1, 71, number - 710, leased(number, 71)));
    apply(store, &[standing_added(7, 2, attempts.collect())]).await;
    apply(store, &[standing_finished(7, 711, Verdict::Failed)]).await;
    apply(store, &[problems(74, session(74), &["full"]), deleted(73, session(73), 90)]).await;
    let chunks: Vec<_> = (701..=716).map(|number| chunk(number, 0, "text")).collect();
    store.append_output(&chunks, 100).await.unwrap();
    let delivery = super::deliveries::delivery_in(cluster_id(7), &run_id(66), 1);
    apply(store, &[Change::DeliveryQueued { delivery, epoch: 1 }]).await;
    // A run of another cluster whose params name the deleted one: it stays.
    let params = [("cluster".to_owned(), serde_json::json!("cluster-7"))].into_iter().collect();
    apply(store, &[created_as(made_as(RunMade { params, ..super::make::made(60) }))]).await;
    apply(store, &[cluster_deleted(7)]).await;
    let ids = [cluster_id(7).to_string(), run_id(66).to_string(), RunId::standing(cluster_id(7)).to_string()];
    let nodes = (71..=75).map(|number| node(number).to_string());
    let executions = (701..=708).chain(711..=716).map(|number| execution_id(number).to_string());
    ids.into_iter().chain(nodes).chain(executions).collect()
}

/// Removes all deleted clusters.
pub async fn remove_all(store: &Arc<dyn Store>) -> u32 {
    let mut calls = 0;
    for cluster in store.removed_clusters().await.unwrap() {
        while store.remove_cluster(cluster, FEW).await.unwrap() > 0 {
            calls += 1;
            assert!(calls < 1_000, "it ends");
        }
    }
    calls
}

/// Shows events as their readers see them, without the text of a cluster's deletion.
async fn events_text(store: &Arc<dyn Store>) -> String {
    let events = store.events(&EventFilter::default(), ALL_EVENTS).await.unwrap();
    let is_kept = |change: &Change| !matches!(change, Change::ClusterDeleted { .. });
    events.iter().filter(|event| is_kept(&event.change)).map(|event| format!("{event:?}\n")).collect()
}

pub async fn nothing_is_left_of_a_removed_cluster(store: Arc<dyn Store>) {
    fill(&store).await;
    fill_beside(&store).await;
    while store.remove_cluster(cluster_id(3), FEW).await.unwrap() > 0 {}
    let before = Snapshot::of(&store).await;
    let texts = fill_deleted(&store).await;
    let filled = Snapshot::of(&store).await;
    assert_eq!(filled.removed_clusters, [cluster_id(7)]);
    remove_all(&store).await;
    let after = Snapshot::of(&store).await;
    assert_eq!(after.removed_clusters, []);
    assert_eq!(store.remove_cluster(cluster_id(7), FEW).await.unwrap(), 0);
    // Everything of the others is there, and nothing else but the run that names the cluster.
    let run = store.run(&run_id(60)).await.unwrap().unwrap();
    assert_eq!(run.cluster, ClusterId::DEFAULT);
    assert_eq!(after.nodes, before.nodes);
    assert_eq!(after.tombstones, before.tombstones);
    assert_eq!((&after.executions, &after.output), (&before.executions, &before.output));
    assert_eq!((&after.holds, &after.uses), (&before.holds, &before.uses));
    assert_eq!(after.tally.executions, before.tally.executions);
    assert_eq!(after.tally.nodes, before.tally.nodes);
    assert_eq!(after.runs.len(), before.runs.len() + 1);
    // Events keep their numbers and times; those of others are as they were.
    assert_eq!(after.last_seq, filled.last_seq);
    assert_eq!(after.events.len(), filled.events.len());
    assert_eq!(after.events[..before.events.len()], before.events);
    for (event, was) in after.events.iter().zip(&filled.events) {
        assert_eq!((event.seq, event.server, event.change.at()), (was.seq, was.server, was.change.at()));
        let is_gone = was.about.cluster == Some(cluster_id(7)) && was.change.kind() != "cluster_deleted";
        if is_gone {
            let Change::Unknown { name, run, .. } = &event.change else { panic!("{event:?} is left") };
            assert_eq!((&**name, run, &event.about), (Change::REMOVED, &None, &About::default()));
        } else {
            assert_eq!(event, was);
        }
    }
    let removed = after.events.iter().filter(|event| event.change.kind() == Change::REMOVED).count();
    assert!(removed > 20, "{removed}");
    let text = events_text(&store).await;
    for gone in &texts {
        assert!(!text.contains(gone), "{gone}");
    }
    assert_eq!(store.runs_of_key("key-66").await.unwrap(), []);
    // The name and the ids are free.
    apply(&store, &[cluster_created(7), registered_in(71, 7, 1)]).await;
}

pub async fn a_cluster_that_is_not_deleted_is_not_removed(store: Arc<dyn Store>) {
    fill(&store).await;
    let before = Snapshot::of(&store).await;
    for cluster in [ClusterId::DEFAULT, cluster_id(2), cluster_id(9)] {
        assert_eq!(store.remove_cluster(cluster, 1_000).await.unwrap(), 0);
    }
    assert_eq!(Snapshot::of(&store).await, before);
}

async fn left(store: &Arc<dyn Store>, cluster: u32) -> Vec<u32> {
    let found = store.executions_of(&RunId::standing(cluster_id(cluster))).await.unwrap();
    found.iter().map(|execution| u32::try_from(execution.id.0.as_u128() & 0xffff).unwrap()).collect()
}

/// What is kept if `numbers` are the tasks of the first two clusters, and nodes that were deleted at `second`.
fn standing_kept(numbers: [&[u32]; 2], attempts: u32, second: i64) -> StandingKept {
    let list = |cluster: u32, numbers: &[u32]| KeptList {
        run: RunId::standing(cluster_id(cluster)),
        numbers: numbers.to_vec(),
        newer: 3,
    };
    StandingKept { lists: vec![list(1, numbers[0]), list(2, numbers[1])], attempts, nodes_since: at(second) }
}

async fn prune_all(store: &Arc<dyn Store>, kept: &StandingKept, most: u32) -> Vec<u64> {
    let mut counts = Vec::new();
    loop {
        counts.push(store.prune_standing(kept, most).await.unwrap());
        if counts.last() == Some(&0) {
            return counts;
        }
        assert!(counts.len() < 100, "it ends");
    }
}

pub async fn old_attempts_of_standing_tasks_are_removed(store: Arc<dyn Store>) {
    fill_standing(&store).await;
    let tally = store.tally().await.unwrap();
    let both: [&[u32]; 2] = [&[1, 2], &[1, 2]];
    assert_eq!(prune_all(&store, &standing_kept(both, 4, 0), 100).await, [0]);
    assert_eq!(prune_all(&store, &standing_kept(both, 2, 0), 100).await, [4, 0]);
    assert_eq!(left(&store, 1).await, [103, 104, 105, 106, 107]);
    assert_eq!(left(&store, 2).await, [203, 204, 205, 206, 207]);
    assert_eq!(store.output(execution_id(101), 0, 9).await.unwrap(), []);
    // The last attempt stays, however few are wanted.
    assert_eq!(prune_all(&store, &standing_kept(both, 0, 0), 100).await, [4, 0]);
    assert_eq!(left(&store, 1).await, [104, 106, 107]);
    // Of deleted tasks only what is open stays.
    assert_eq!(prune_all(&store, &standing_kept([&[], &[1, 2]], 1, 0), 100).await, [1, 0]);
    assert_eq!(left(&store, 1).await, [106, 107]);
    assert_eq!(left(&store, 2).await, [204, 206, 207]);
    assert!(store.execution(execution_id(1)).await.unwrap().is_some());
    let failed = |tally: &crate::port::Tally| {
        let counts: Vec<_> = tally.executions.iter().filter(|count| count.0 == Status::Failed).collect();
        counts.first().map_or(0, |count| count.1)
    };
    assert_eq!(failed(&tally) - failed(&store.tally().await.unwrap()), 9);
    let all = results(&store, None, None, 100).await;
    assert_eq!(all.len(), 5);
}

pub async fn so_many_attempts_are_removed_at_most(store: Arc<dyn Store>) {
    fill_standing(&store).await;
    let counts = prune_all(&store, &standing_kept([&[1, 2], &[1]], 1, 0), 2).await;
    assert!(counts.iter().all(|count| *count <= 2), "{counts:?}");
    assert_eq!(counts.iter().sum::<u64>(), 8, "{counts:?}");
    assert_eq!(left(&store, 1).await, [104, 106, 107]);
    assert_eq!(left(&store, 2).await, [204, 206, 207]);
}

pub async fn executions_on_a_deleted_node_are_removed(store: Arc<dyn Store>) {
    fill_standing(&store).await;
    apply(&store, &[deleted(1, session(1), 50)]).await;
    // What the node had is lost with it.
    let ended = left(&store, 1).await;
    let both: [&[u32]; 2] = [&[1, 2], &[1, 2]];
    assert_eq!(prune_all(&store, &standing_kept(both, 10, 50), 100).await, [0], "it was deleted lately");
    assert_eq!(left(&store, 1).await, ended);
    let counts = prune_all(&store, &standing_kept(both, 10, 51), 100).await;
    assert_eq!(counts.iter().sum::<u64>(), 10, "{counts:?}");
    assert_eq!(left(&store, 1).await, [106, 107], "what is open stays, and what other nodes have");
    assert_eq!(store.output(execution_id(101), 0, 9).await.unwrap(), []);
}

pub async fn clusters_are_part_of_a_copy(store: Arc<dyn Store>) {
    fill(&store).await;
    let copied = copy(&store).await;
    assert_eq!(dump(&copied).await, dump(&store).await);
    assert_eq!(copied.removed_clusters().await.unwrap(), [cluster_id(3)]);
    assert_eq!(results(&copied, None, None, 9).await, results(&store, None, None, 9).await);
    remove_all(&store).await;
    assert_eq!(dump(&copy(&store).await).await, dump(&store).await);
}
