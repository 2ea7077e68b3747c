//! Cases about lists and counts.

use std::collections::{BTreeMap, BTreeSet};
use std::slice;
use std::sync::Arc;

use downbeat_core::Portion;
use downbeat_core::backend::Params;
use downbeat_core::change::Change;
use downbeat_core::execution::{Execution, Lease, Outcome, State, Status, Verdict};
use downbeat_core::ids::{ClusterId, NodeId};
use downbeat_core::node::NodeStatus;
use downbeat_core::portion::json_bytes;
use downbeat_core::run::{RunBrief, RunMade, RunState};
use serde_json::json;

use super::executions::states;
use super::make::*;
use super::snapshot::fill;
use crate::port::{
    ExecutionFilter, InstanceCount, InstanceFacts, InstanceFilter, Listed, NodeTotals, Page, Position,
    RunFilter, RunOrder, Store, Tally,
};

/// How many rows to read, and how many to skip before.
const ALL: (u32, u64) = (100, 0);

fn page<K>((limit, skip): (u32, u64)) -> Page<K> {
    Page { limit, start: Position { after: None, skip } }
}

async fn runs(store: &Arc<dyn Store>, filter: RunFilter, cut: (u32, u64)) -> (Vec<u32>, u64) {
    let listed = store.runs(&filter, &page(cut)).await.unwrap();
    let number = |run: &RunBrief| run.id.as_str().trim_start_matches("run-").parse().unwrap();
    let rows: Vec<u32> = listed.rows.iter().map(number).collect();
    let total = listed.total.unwrap();
    assert_eq!(listed.next.is_some(), rows.len() as u64 + cut.1 < total && !rows.is_empty());
    (rows, total)
}

async fn executions(store: &Arc<dyn Store>, filter: ExecutionFilter, cut: (u32, u64)) -> (Vec<u32>, u64) {
    let listed = store.executions(&filter, &page(cut)).await.unwrap();
    (numbers(&listed.rows), listed.total.unwrap())
}

fn numbers(executions: &[Execution]) -> Vec<u32> {
    let number =
        |execution: &Execution| (1..100).find(|&number| execution_id(number) == execution.id).unwrap();
    executions.iter().map(number).collect()
}

pub async fn runs_are_listed_newest_first_by_page_and_filter(store: Arc<dyn Store>) {
    assert_eq!(runs(&store, RunFilter::default(), ALL).await, (vec![], 0));
    let job =
        |number: u32, job: &str| created_as(made_as(RunMade { job: Some(job.to_owned()), ..made(number) }));
    // Created at the same time: the id decides.
    let twin = made_as(RunMade { created_at: at(5), ..made(6) });
    apply(&store, &[created(3), created(1), job(2, "web"), created(5), job(4, "db")]).await;
    apply(&store, &[created_as(twin)]).await;
    apply(&store, &[moved(1, &[RunState::Cancelled], 9), moved(2, &[RunState::Starting], 9)]).await;
    assert_eq!(runs(&store, RunFilter::default(), ALL).await, (vec![6, 5, 4, 3, 2, 1], 6));
    assert_eq!(runs(&store, RunFilter::default(), (2, 1)).await, (vec![5, 4], 6));
    assert_eq!(runs(&store, RunFilter::default(), (2, 5)).await, (vec![1], 6));
    assert_eq!(runs(&store, RunFilter::default(), (2, u64::MAX)).await, (vec![], 6));
    let cluster = |cluster| RunFilter { cluster: Some(cluster), ..RunFilter::default() };
    assert_eq!(runs(&store, cluster(ClusterId::DEFAULT), ALL).await.1, 6);
    assert_eq!(runs(&store, cluster(UNKNOWN_CLUSTER), ALL).await, (vec![], 0));
    let states = |states: &[RunState]| RunFilter { states: states.to_vec(), ..RunFilter::default() };
    assert_eq!(runs(&store, states(&[RunState::Cancelled, RunState::Starting]), ALL).await, (vec![2, 1], 2));
    assert_eq!(runs(&store, states(&[RunState::Completed]), ALL).await, (vec![], 0));
    let web = RunFilter {
        cluster: Some(ClusterId::DEFAULT),
        states: vec![RunState::Starting],
        job: Some("web".to_owned()),
        ..RunFilter::default()
    };
    assert_eq!(runs(&store, web.clone(), ALL).await, (vec![2], 1));
    assert_eq!(
        runs(&store, RunFilter { job: Some("we' OR 1=1 --\0".to_owned()), ..web }, ALL).await,
        (vec![], 0)
    );
}

pub async fn open_runs_are_those_not_ended_oldest_first(store: Arc<dyn Store>) {
    assert_eq!(store.open_runs().await.unwrap(), []);
    for (number, state) in (1..).zip(RunState::ALL) {
        apply(&store, &[created_as(run_in(number, state))]).await;
    }
    let open = store.open_runs().await.unwrap();
    let owners: Vec<_> = open.iter().map(|run| (run.id.clone(), run.live.owner)).collect();
    assert_eq!(store.open_run_owners().await.unwrap(), owners);
    let expected: Vec<RunState> = RunState::ALL.into_iter().filter(|state| !state.is_terminal()).collect();
    assert_eq!(open.iter().map(|run| run.state()).collect::<Vec<_>>(), expected);
    assert_eq!(open[0], run_in(1, RunState::PreRun));
}

pub async fn executions_are_listed_by_id_by_page_and_filter(store: Arc<dyn Store>) {
    let pinned = |number, on| Execution { pinned: Some(node(on)), ..execution(number, 1, pending()) };
    let placed = Execution { of: origin(1, 3, None), ..execution(2, 1, leased(1, 1)) };
    apply(&store, &[created(1), created(2)]).await;
    apply(
        &store,
        &[added(1, vec![pinned(4, 1), pinned(3, 2), placed]), added(2, vec![execution(1, 2, pending())])],
    )
    .await;
    let all = ExecutionFilter::default;
    assert_eq!(executions(&store, all(), ALL).await, (vec![1, 2, 3, 4], 4));
    assert_eq!(executions(&store, all(), (2, 1)).await, (vec![2, 3], 4));
    let run = |number| ExecutionFilter { run: Some(run_id(number)), ..all() };
    assert_eq!(executions(&store, run(1), ALL).await, (vec![2, 3, 4], 3));
    assert_eq!(executions(&store, run(1), (1, 2)).await, (vec![4], 3));
    assert_eq!(executions(&store, run(9), ALL).await, (vec![], 0));
    // Pinned to the node, or leased by it.
    let on = |number| ExecutionFilter { node: Some(node(number)), ..all() };
    assert_eq!(executions(&store, on(1), ALL).await, (vec![2, 4], 2));
    assert_eq!(executions(&store, on(2), ALL).await, (vec![3], 1));
    assert_eq!(executions(&store, on(3), ALL).await, (vec![], 0));
    assert_eq!(executions(&store, ExecutionFilter { step: Some(3), ..all() }, ALL).await, (vec![2], 1));
    assert_eq!(executions(&store, ExecutionFilter { step: Some(u32::MAX), ..all() }, ALL).await, (vec![], 0));
    let open = vec![Status::Pending, Status::Running];
    assert_eq!(
        executions(&store, ExecutionFilter { statuses: open.clone(), ..all() }, ALL).await,
        (vec![1, 3, 4], 3)
    );
    let narrow = ExecutionFilter {
        run: Some(run_id(1)),
        node: Some(node(1)),
        step: Some(0),
        item: None,
        statuses: open,
    };
    assert_eq!(executions(&store, narrow, ALL).await, (vec![4], 1));
    apply(&store, &[skipped(1, 3, 1, 40)]).await;
    let ended = || vec![Status::Skipped, Status::Lost];
    assert_eq!(executions(&store, ExecutionFilter { statuses: ended(), ..run(1) }, ALL).await, (vec![3], 1));
    assert_eq!(executions(&store, ExecutionFilter { statuses: ended(), ..on(2) }, ALL).await, (vec![3], 1));
    assert_eq!(executions(&store, ExecutionFilter { item: Some(0), ..run(1) }, ALL).await, (vec![], 0));
}

/// Returns the instances that a filter selects, by number.
async fn instances(store: &Arc<dyn Store>, filter: InstanceFilter, limit: usize) -> Vec<u32> {
    numbers(&store.instances(&run_id(1), &filter, Portion::of_rows(limit)).await.unwrap())
}

pub async fn the_result_of_an_instance_is_its_last_attempt_that_was_not_withdrawn(store: Arc<dyn Store>) {
    let failed = || State::Failed { lease: None, outcome: None, error: Some("why".to_owned()), at: at(40) };
    let lost = || State::Lost { lease: lease(1, 1), started_at: None, reason: "gone".to_owned(), at: at(40) };
    let withdrawn = || State::Skipped { reason: "the run failed".to_owned(), at: at(50) };
    let cancelled = || State::Cancelled {
        lease: None,
        outcome: None,
        reason: "the run was cancelled".to_owned(),
        at: at(50),
    };
    let attempt = |number, attempt, state| Execution { attempt, ..execution(number, 1, state) };
    let on = |each: Execution, number| Execution { pinned: Some(node(number)), ..each };
    let item = |each: Execution, item| Execution { of: origin(1, 2, Some(item)), ..each };
    let placed = |each: Execution| Execution { of: origin(1, 1, None), ..each };
    let reused = |each: Execution| Execution { reused: Some(execution_id(99)), ..each };
    let succeeded = || State::Succeeded { lease: Some(lease(1, 1)), outcome: outcome(Verdict::Succeeded) };
    let list = vec![
        // Step 0, on nodes: retried after a loss, withdrawn after a failure, reused.
        on(attempt(1, 1, lost()), 1),
        on(attempt(2, 1, failed()), 2),
        on(reused(attempt(3, 1, succeeded())), 3),
        on(attempt(4, 2, pending()), 1),
        on(attempt(5, 2, withdrawn()), 2),
        // Step 1, placed: three attempts.
        placed(attempt(6, 1, lost())),
        placed(attempt(7, 2, failed())),
        placed(attempt(8, 3, failed())),
        // Step 2, for items: the first is retried, the second's retry is cancelled before it is sent, the third was
        // skipped as its only attempt.
        item(attempt(9, 1, failed()), 0),
        item(attempt(10, 1, failed()), 1),
        item(attempt(11, 1, withdrawn()), 2),
        item(attempt(12, 2, succeeded()), 0),
        item(attempt(13, 2, cancelled()), 1),
    ];
    apply(&store, &[created(1), created(2), added(1, list)]).await;
    assert_eq!(instances(&store, InstanceFilter::default(), 100).await, [2, 3, 4, 8, 10, 11, 12]);
    let failed = InstanceFilter { statuses: vec![Status::Failed, Status::Lost], ..InstanceFilter::default() };
    assert_eq!(instances(&store, failed, 100).await, [2, 8, 10]);
    let count = |step, status, total| InstanceCount { step, status, total, carried: 0, cached: 0 };
    let carried = InstanceCount { carried: 1, ..count(0, Status::Succeeded, 1) };
    let expected = [
        count(0, Status::Pending, 1),
        carried,
        count(0, Status::Failed, 1),
        count(1, Status::Failed, 1),
        count(2, Status::Succeeded, 1),
        count(2, Status::Failed, 1),
        count(2, Status::Skipped, 1),
    ];
    assert_eq!(store.instance_counts(&run_id(1)).await.unwrap(), expected);
    assert_eq!(store.instance_counts(&run_id(2)).await.unwrap(), []);
    let facts = store.instance_facts(&run_id(1)).await.unwrap();
    let shown: Vec<_> = facts.iter().map(|one| (one.step, one.attempt, one.status, one.is_reused)).collect();
    let succeeded = |step, attempt, reused| (step, attempt, Status::Succeeded, reused);
    assert_eq!(
        shown,
        [
            (0, 1, Status::Failed, false),
            succeeded(0, 1, true),
            (0, 2, Status::Pending, false),
            (1, 3, Status::Failed, false),
            (2, 1, Status::Failed, false),
            (2, 1, Status::Skipped, false),
            succeeded(2, 2, false),
        ]
    );
    assert_eq!((facts[0].node, facts[0].ended_at), (Some(node(2)), Some(at(40))));
    assert_eq!((facts[1].started_at, facts[1].ended_at), (Some(at(30)), Some(at(31))));
    // The same facts, of some nodes only.
    let nodes: BTreeSet<NodeId> = facts.iter().filter_map(|fact| fact.node).collect();
    for wanted in nodes.iter().map(|node| vec![*node]).chain([nodes.iter().copied().collect(), vec![]]) {
        let found = store.instance_facts_on(&run_id(1), &wanted).await.unwrap();
        for node in &nodes {
            let of_node = |facts: &[InstanceFacts]| -> Vec<InstanceFacts> {
                facts.iter().filter(|fact| fact.node == Some(*node)).copied().collect()
            };
            let expected = if wanted.contains(node) { of_node(&facts) } else { vec![] };
            assert_eq!(of_node(&found), expected, "{node} of {wanted:?}");
        }
    }
    assert_eq!(store.instance_facts_on(&run_id(2), &[node(1), node(2)]).await.unwrap(), []);
    let failed: BTreeSet<_> =
        facts.iter().filter(|fact| fact.status == Status::Failed).filter_map(|fact| fact.node).collect();
    let failed: Vec<_> = failed.into_iter().map(|node| (node, Status::Failed)).collect();
    assert_eq!(store.unsuccessful_nodes(&run_id(1)).await.unwrap(), failed);
    assert_eq!(store.unsuccessful_nodes(&run_id(2)).await.unwrap(), []);
}

pub async fn the_results_of_a_run_are_those_of_its_last_round(store: Arc<dyn Store>) {
    // A run for which nothing is counted in advance, and one whose steps are.
    let tasks = json!([{"backend": "test", "action": "echo", "for_each": {"items": [1, 2]}}]);
    let definition = Arc::new(serde_json::from_value(json!({"tasks": tasks})).unwrap());
    let large = created_as(made_as(RunMade { definition, ..made(2) }));
    apply(&store, &[created(1), large]).await;
    let failed = || State::Failed { lease: Some(lease(1, 1)), outcome: None, error: None, at: at(40) };
    let succeeded = || State::Succeeded { lease: Some(lease(1, 1)), outcome: outcome(Verdict::Succeeded) };
    let skipped = || State::Skipped { reason: "not needed".to_owned(), at: at(40) };
    let count = |step, status| InstanceCount { step, status, total: 1, carried: 0, cached: 0 };
    for of in [1, 2] {
        let first = of * 100;
        let attempt = |number, step, attempt, state| {
            let former = (attempt > 1).then_some(Status::Failed);
            Execution { of: origin(of, step, None), attempt, former, ..execution(first + number, of, state) }
        };
        let second = |each: Execution| Execution { round: 2, ..each };
        let begins = moved(of, &[RunState::Starting, RunState::Running], 11);
        let round = vec![
            attempt(1, 0, 1, failed()),
            attempt(2, 0, 2, succeeded()),
            attempt(3, 1, 1, failed()),
            attempt(4, 1, 2, failed()),
            attempt(5, 2, 1, skipped()),
        ];
        let ends = moved(of, &[RunState::Terminating, RunState::Retrying], 50);
        apply(&store, &[begins, added(of, round), ends]).await;
        let id = run_id(of);
        let waits = [count(0, Status::Succeeded), count(1, Status::Failed), count(2, Status::Skipped)];
        assert_eq!(store.instance_counts(&id).await.unwrap(), waits);
        assert_eq!(read_run(&store, of).await.live.round, 1);
        assert_eq!(store.executions_of(&id).await.unwrap().len(), 5);
        apply(&store, &[moved(of, &[RunState::Pending], 60)]).await;
        assert_eq!(read_run(&store, of).await.live.round, 2);
        assert_eq!(store.instance_counts(&id).await.unwrap(), []);
        assert_eq!(store.executions_of(&id).await.unwrap(), []);
        assert_eq!(store.unsuccessful_nodes(&id).await.unwrap(), []);
        // The first step fails in this round, and its retry waits. The second one is skipped, which does not withdraw it.
        let round = vec![
            second(attempt(6, 0, 1, failed())),
            second(attempt(7, 0, 2, pending())),
            second(attempt(8, 1, 1, skipped())),
        ];
        apply(&store, &[added(of, round.clone())]).await;
        assert_eq!(store.executions_of(&id).await.unwrap(), round);
        let now = [count(0, Status::Pending), count(1, Status::Skipped)];
        assert_eq!(store.instance_counts(&id).await.unwrap(), now);
        let facts = store.instance_facts(&id).await.unwrap();
        let facts: Vec<_> = facts.iter().map(|fact| (fact.step, fact.attempt, fact.status)).collect();
        assert_eq!(facts, [(0, 2, Status::Pending), (1, 1, Status::Skipped)]);
        let filter = InstanceFilter::default();
        let listed = store.instances(&id, &filter, Portion::of_rows(100)).await.unwrap();
        let numbers: Vec<_> = listed.iter().map(|each| each.id).collect();
        assert_eq!(numbers, [execution_id(first + 7), execution_id(first + 8)]);
        assert_eq!(store.placed_nodes(&id).await.unwrap(), []);
        // All attempts of all rounds are listed.
        let all = ExecutionFilter { run: Some(id), ..ExecutionFilter::default() };
        assert_eq!(store.executions(&all, &page(ALL)).await.unwrap().rows.len(), 8);
    }
    let totals = store.run_counts(&[run_id(1)]).await.unwrap();
    let expected = BTreeMap::from([(Status::Pending, 1), (Status::Skipped, 1)]);
    assert_eq!(totals, BTreeMap::from([(run_id(1), expected)]));
}

pub async fn the_nodes_of_placed_instances_are_found(store: Arc<dyn Store>) {
    let item =
        |number: u32, state| Execution { of: origin(1, 0, Some(number)), ..execution(number, 1, state) };
    let pinned = Execution { pinned: Some(node(1)), ..execution(1, 1, leased(1, 1)) };
    let executions =
        vec![pinned, item(2, leased(2, 3)), item(3, leased(3, 2)), item(4, leased(4, 3)), item(5, pending())];
    apply(&store, &[created(1), created(2), added(1, executions)]).await;
    assert_eq!(store.placed_nodes(&run_id(1)).await.unwrap(), [node(2), node(3)]);
    assert_eq!(store.placed_nodes(&run_id(2)).await.unwrap(), []);
}

pub async fn instances_are_listed_by_step_by_page_and_filter(store: Arc<dyn Store>) {
    let pinned = |number, on, step| Execution {
        pinned: Some(node(on)),
        of: origin(1, step, None),
        ..execution(number, 1, pending())
    };
    let item =
        |number, item| Execution { of: origin(1, 2, Some(item)), ..execution(number, 1, leased(1, 1)) };
    let list =
        vec![pinned(4, 1, 0), pinned(3, 2, 0), pinned(1, 1, 1), pinned(2, 2, 1), item(5, 0), item(6, 1)];
    apply(&store, &[created(1), created(2), added(1, list)]).await;
    apply(&store, &[added(2, vec![execution(7, 2, pending())])]).await;
    let all = InstanceFilter::default;
    let order = [3, 4, 1, 2, 5, 6];
    assert_eq!(instances(&store, all(), 100).await, order);
    // Page by page, whatever the size of a page.
    for limit in 1..=7 {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let (filter, portion) = (InstanceFilter { after, ..all() }, Portion::of_rows(limit));
            let page = store.instances(&run_id(1), &filter, portion).await.unwrap();
            let Some(last) = page.last() else { break };
            after = Some((last.step(), last.id));
            found.extend(numbers(&page));
        }
        assert_eq!(found, order, "{limit}");
    }
    let step = |step| InstanceFilter { step: Some(step), ..all() };
    assert_eq!(instances(&store, step(1), 100).await, [1, 2]);
    assert_eq!(
        instances(&store, InstanceFilter { after: Some((1, execution_id(1))), ..step(1) }, 9).await,
        [2]
    );
    assert_eq!(
        instances(&store, InstanceFilter { after: Some((2, execution_id(1))), ..step(1) }, 9).await,
        [0_u32; 0]
    );
    assert_eq!(instances(&store, InstanceFilter { item: Some(1), ..all() }, 9).await, [6]);
    let on = |number| InstanceFilter { node: Some(node(number)), ..all() };
    assert_eq!(instances(&store, on(1), 9).await, [4, 1, 5, 6]);
    assert_eq!(instances(&store, InstanceFilter { step: Some(1), ..on(1) }, 9).await, [1]);
    let leased = vec![Status::Leased];
    assert_eq!(instances(&store, InstanceFilter { statuses: leased, ..on(1) }, 1).await, [5]);
}

pub async fn no_read_misses_an_instance_that_moves_on(store: Arc<dyn Store>) {
    const ATTEMPTS: u32 = 60;
    let attempt = |number| Execution { attempt: number, ..execution(number, 1, pending()) };
    apply(&store, &[registered(1, session(1), 1), created(1), added(1, vec![attempt(1)])]).await;
    let moves_on = async {
        for number in 1..ATTEMPTS {
            apply(&store, &[granted(1, number, lease(number, 1))]).await;
            apply(&store, &[lost(1, number, number, None, 20), added(1, vec![attempt(number + 1)])]).await;
        }
    };
    let mut moves_on = std::pin::pin!(moves_on);
    loop {
        tokio::select! {
            () = &mut moves_on => break,
            found = instances(&store, InstanceFilter::default(), 10) => assert_eq!(found.len(), 1, "{found:?}"),
        }
    }
    assert_eq!(instances(&store, InstanceFilter::default(), 10).await, [ATTEMPTS]);
}

pub async fn large_parts_of_executions_are_read_only_where_they_are_needed(store: Arc<dyn Store>) {
    let ended = || State::Succeeded { lease: Some(lease(1, 1)), outcome: outcome_with_outputs() };
    let params = Params::from([("text".to_owned(), "x".repeat(1_000).into())]);
    let whole = |number| Execution {
        pinned: Some(node(number)),
        params: Some(Arc::new(params.clone())),
        ..execution(number, 1, ended())
    };
    let list: Vec<Execution> = (1..=4).map(whole).collect();
    apply(&store, &[created(1), added(1, list.clone())]).await;
    let bare: Vec<Execution> = list
        .iter()
        .map(|whole| {
            let state = State::Succeeded { lease: Some(lease(1, 1)), outcome: outcome(Verdict::Succeeded) };
            Execution { params: None, state, ..whole.clone() }
        })
        .collect();
    let (filter, page) = (ExecutionFilter::default(), Page::first(100));
    assert_eq!(store.bare_executions(&filter, &page).await.unwrap().rows, bare);
    let ids: Vec<_> = list.iter().map(|whole| whole.id).collect();
    assert_eq!(store.bare_executions_by_id(&ids).await.unwrap(), bare);
    let read =
        async |filter: InstanceFilter, portion| store.instances(&run_id(1), &filter, portion).await.unwrap();
    let all = read(InstanceFilter::default(), Portion::of_rows(100)).await;
    assert!(all.iter().all(|one| one.params.is_none() && one.state == list[0].state), "{all:?}");
    // The one that exceeds the bytes is the last.
    let own = json_bytes(&outcome_with_outputs().outputs);
    for (bytes, count) in [(0, 1), (own - 1, 1), (own, 2), (2 * own, 3), (3 * own, 4), (4 * own, 4)] {
        let found = read(InstanceFilter::default(), Portion::new(100, bytes)).await;
        assert_eq!(found.len(), count, "{bytes} bytes");
    }
    let on = InstanceFilter { node: Some(node(2)), ..InstanceFilter::default() };
    assert_eq!(numbers(&read(on, Portion::new(100, 0)).await), [2]);
}

/// Reads a list page by page, each after the last row of the one before. `between` runs before each page.
async fn by_cursor<T, K>(
    mut read: impl AsyncFnMut(Page<K>) -> Listed<T, K>,
    mut between: impl AsyncFnMut(u32),
) -> Vec<T> {
    let mut page = Page::first(2);
    let mut rows = Vec::new();
    for number in 0.. {
        between(number).await;
        let listed = read(page).await;
        assert_eq!(listed.total.is_some(), number == 0, "only the first page has a total");
        rows.extend(listed.rows);
        let Some(start) = listed.next else { break };
        page = Page { limit: 2, start };
    }
    rows
}

pub async fn a_list_that_is_read_by_cursor_has_each_row_once(store: Arc<dyn Store>) {
    let runs: Vec<_> = (1..=7).map(created).collect();
    apply(&store, &runs).await;
    let filter = RunFilter::default();
    // Each page finds new runs at the front.
    let newer = async |number: u32| {
        apply(&store, &[created(10 + number)]).await;
    };
    let listed = by_cursor(async |page| store.runs(&filter, &page).await.unwrap(), newer).await;
    for run in &listed {
        assert_eq!(*run, RunBrief::from(&store.run(&run.id).await.unwrap().unwrap()));
    }
    let ids: Vec<_> = listed.iter().map(|run| run.id.clone()).collect();
    assert_eq!(ids, [10, 7, 6, 5, 4, 3, 2, 1].map(run_id));
    let all: Vec<Execution> = (1..=5).map(|number| execution(number, 1, pending())).collect();
    apply(&store, &[added(1, all)]).await;
    let filter = ExecutionFilter { run: Some(run_id(1)), ..ExecutionFilter::default() };
    let later = async |number: u32| {
        let more = if number == 0 { vec![execution(6, 1, pending())] } else { Vec::new() };
        apply(&store, &[added(1, more)]).await;
    };
    let listed = by_cursor(async |page| store.executions(&filter, &page).await.unwrap(), later).await;
    assert_eq!(numbers(&listed), [1, 2, 3, 4, 5, 6]);
    // A position may skip rows as well.
    let start = Position { after: Some(execution_id(2)), skip: 1 };
    let listed = store.executions(&filter, &Page { limit: 2, start }).await.unwrap();
    assert_eq!((numbers(&listed.rows), listed.next), (vec![4, 5], Some(Position::after(execution_id(5)))));
}

pub async fn runs_are_found_by_every_filter(store: Arc<dyn Store>) {
    let job = |job: &str| Some(job.to_owned());
    let by = |number, by: &str| created_as(made_as(RunMade { by: by.to_owned(), ..made(number) }));
    let named = |number, name| created_as(made_as(RunMade { job: job(name), ..made(number) }));
    apply(&store, &[created(1), by(2, "eve"), named(3, "Web_Shop"), named(4, "webXshop"), created(5)]).await;
    let paused = |run| Change::RunPauseSet { run: run_id(run), paused: true, by: "me".to_owned(), at: at(8) };
    apply(&store, &[paused(1), paused(5)]).await;
    apply(&store, &[moved(5, &[RunState::Cancelled], 9)]).await;
    let pinned = Execution { pinned: Some(node(1)), ..execution(1, 2, pending()) };
    apply(&store, &[added(2, vec![pinned, execution(2, 2, pending())])]).await;
    let all = RunFilter::default;
    let cases = [
        (RunFilter { by: Some("eve".to_owned()), ..all() }, vec![2]),
        (RunFilter { paused: Some(true), ..all() }, vec![1]),
        (RunFilter { paused: Some(false), ..all() }, vec![5, 4, 3, 2]),
        (RunFilter { paused: Some(true), states: vec![RunState::Cancelled], ..all() }, vec![]),
        (RunFilter { text: job("WEB"), ..all() }, vec![4, 3]),
        (RunFilter { text: job("b_s"), ..all() }, vec![3]),
        (RunFilter { text: Some(run_id(2).as_str().to_uppercase()), ..all() }, vec![2]),
        (RunFilter { text: job("%"), ..all() }, vec![]),
        (RunFilter { node: Some(node(1)), ..all() }, vec![2]),
        (RunFilter { node: Some(node(2)), ..all() }, vec![]),
        (RunFilter { from: Some(at(2)), to: Some(at(4)), ..all() }, vec![3, 2]),
        (RunFilter { from: Some(at(2)), job: job("webXshop"), ..all() }, vec![4]),
        (RunFilter { to: Some(at(2)), cluster: Some(ClusterId::DEFAULT), ..all() }, vec![1]),
        (RunFilter { states: vec![RunState::Cancelled], ..all() }, vec![5]),
        (RunFilter { states: vec![RunState::Cancelled, RunState::Failed], ..all() }, vec![5]),
    ];
    // Each filter that an index serves, together with one that it does not.
    let text = || Some(run_id(5).as_str().to_owned());
    let cluster = Some(ClusterId::DEFAULT);
    let more = [
        (RunFilter { cluster, text: text(), ..all() }, vec![5]),
        (RunFilter { states: vec![RunState::Cancelled], text: text(), ..all() }, vec![5]),
        (RunFilter { job: job("webXshop"), text: text(), ..all() }, vec![]),
    ];
    for (filter, expected) in cases.into_iter().chain(more) {
        let found = runs(&store, filter.clone(), ALL).await;
        assert_eq!(found, (expected.clone(), expected.len() as u64), "{filter:?}");
    }
}

pub async fn runs_are_listed_in_every_order(store: Arc<dyn Store>) {
    apply(&store, &[created(1), created(2), created(3), created(4), created(5)]).await;
    let ended = |number, second| moved(number, &[RunState::Cancelled], second);
    apply(&store, &[ended(2, 90), ended(3, 70), ended(4, 80), ended(5, 70)]).await;
    let by_creation = RunFilter { from: Some(at(2)), to: Some(at(5)), ..RunFilter::default() };
    let all = RunFilter::default;
    let cases = [
        (RunOrder::NewestFirst, all(), vec![5, 4, 3, 2, 1]),
        (RunOrder::OldestFirst, all(), vec![1, 2, 3, 4, 5]),
        (RunOrder::LastEndedFirst, all(), vec![2, 4, 5, 3]),
        (RunOrder::FirstEndedFirst, all(), vec![3, 5, 4, 2]),
        (RunOrder::OldestFirst, by_creation.clone(), vec![2, 3, 4]),
        (RunOrder::LastEndedFirst, by_creation.clone(), vec![2, 4, 3]),
        (RunOrder::FirstEndedFirst, by_creation, vec![3, 4, 2]),
    ];
    for (order, filter, expected) in cases {
        let filter = RunFilter { order, ..filter };
        let (found, total) = runs(&store, filter.clone(), ALL).await;
        assert_eq!((&found, total), (&expected, expected.len() as u64), "{order:?}");
        let listed = by_cursor(async |page| store.runs(&filter, &page).await.unwrap(), async |_| ()).await;
        let ids: Vec<_> = listed.into_iter().map(|run| run.id).collect();
        assert_eq!(ids, expected.iter().map(|number| run_id(*number)).collect::<Vec<_>>(), "{order:?}");
    }
}

pub async fn open_and_held_executions_are_found(store: Arc<dyn Store>) {
    let list: Vec<Execution> =
        (1..).zip(states()).map(|(number, state)| execution(number, 1, state)).collect();
    let elsewhere = execution(90, 1, leased(90, 2));
    apply(&store, &[created(1), added(1, list.clone()), added(1, vec![elsewhere.clone()])]).await;
    let open: Vec<Execution> =
        list.iter().chain([&elsewhere]).filter(|each| each.state.status().is_open()).cloned().collect();
    assert_eq!(store.open_executions().await.unwrap(), open);
    let held = |state: &State| matches!(state, State::Leased { .. } | State::Running { .. });
    let held: Vec<Execution> = list.iter().filter(|each| held(&each.state)).cloned().collect();
    assert_eq!(store.held_by(&[node(1)]).await.unwrap(), held);
    assert_eq!(store.held_by(&[node(2)]).await.unwrap(), slice::from_ref(&elsewhere));
    let both: Vec<Execution> = held.iter().chain([&elsewhere]).cloned().collect();
    assert_eq!(store.held_by(&[node(2), node(1), node(3)]).await.unwrap(), both);
    assert_eq!(store.held_by(&[]).await.unwrap(), []);
    apply(&store, &[finished(1, 90, 90, Verdict::Succeeded)]).await;
    assert_eq!(store.held_by(&[node(3), node(2)]).await.unwrap(), []);
}

pub async fn a_tally_counts_what_there_is(store: Arc<dyn Store>) {
    assert_eq!(store.tally().await.unwrap(), Tally::default());
    fill(&store).await;
    apply(&store, &[registered(3, session(3), 3), created(3)]).await;
    let expected = Tally {
        runs: vec![(RunState::Pending, 5), (RunState::Failed, 1), (RunState::Cancelled, 1)],
        executions: vec![
            (Status::Pending, 4),
            (Status::Leased, 4),
            (Status::Succeeded, 3),
            (Status::Failed, 4),
            (Status::Skipped, 2),
            (Status::Cancelled, 1),
            (Status::Lost, 1),
        ],
        nodes: vec![(NodeStatus::Online, 6), (NodeStatus::Stale, 1)],
    };
    assert_eq!(store.tally().await.unwrap(), expected);
    // An ended row is counted once, even if a change repeats its state.
    apply(&store, &[moved(1, &[], 99)]).await;
    assert_eq!(store.tally().await.unwrap(), expected);
}

pub async fn the_totals_of_a_node_are_those_of_its_own_work(store: Arc<dyn Store>) {
    assert_eq!(store.node_totals(node(1)).await.unwrap(), NodeTotals::default());
    // All states, with leases of node 1 where they have one; pinned ones also without.
    let pinned = |number, state| Execution { pinned: Some(node(1)), ..execution(number, 1, state) };
    let mut list: Vec<Execution> =
        (1..).zip(states()).map(|(number, state)| execution(number, 1, state)).collect();
    list.extend([pinned(80, pending()), pinned(81, State::Skipped { reason: "why".to_owned(), at: at(50) })]);
    let mine = |each: &&Execution| each.node() == Some(node(1));
    let mut expected: BTreeMap<Status, u64> = BTreeMap::new();
    for each in list.iter().filter(mine) {
        *expected.entry(each.state.status()).or_default() += 1;
    }
    assert_eq!(expected.len(), Status::ALL.len(), "every status is counted");
    // An execution of another node, and a reused result.
    let elsewhere = execution(90, 1, leased(90, 2));
    let later = Outcome { finished_at: at(99), ..outcome(Verdict::Succeeded) };
    let taken = State::Succeeded { lease: Some(Lease { granted_at: at(98), ..lease(1, 1) }), outcome: later };
    let reused = Execution { reused: Some(execution_id(1)), ..execution(91, 1, taken) };
    apply(&store, &[created(1), added(1, list), added(1, vec![elsewhere, reused])]).await;
    let totals = store.node_totals(node(1)).await.unwrap();
    assert_eq!(totals.executions, expected.into_iter().collect::<Vec<_>>());
    assert_eq!((totals.claimed_at, totals.finished_at), (Some(at(20)), Some(at(31))));
    let other = store.node_totals(node(2)).await.unwrap();
    assert_eq!(
        other,
        NodeTotals { executions: vec![(Status::Leased, 1)], claimed_at: Some(at(20)), finished_at: None }
    );
    apply(&store, &[finished(1, 90, 90, Verdict::Failed)]).await;
    let other = store.node_totals(node(2)).await.unwrap();
    assert_eq!((&other.executions[..], other.finished_at), (&[(Status::Failed, 1)][..], Some(at(31))));
}
