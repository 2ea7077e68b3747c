//! Statistics after a start.

use downbeat_core::change::About;
use downbeat_core::ids::ServerId;
use downbeat_core::plan::Resolved;
use downbeat_core::run::{RunEnd as End, RunMade, RunStage};
use downbeat_store::MemoryStore;
use serde_json::json;
use uuid::Uuid;

use super::*;

const SERVER: ServerId = ServerId(Uuid::nil());

fn at(second: u64) -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap() + Duration::from_secs(second)
}

/// A run of the job `copy` that started at its number in seconds and took so many.
fn run(number: u64, state: RunState, took_s: u64) -> RunRecord {
    let definition = json!({"tasks": [{"backend": "test", "action": "noop"}]});
    let made = RunMade {
        id: format!("run-{number}").into(),
        cluster: ClusterId::DEFAULT,
        job: Some("copy".to_owned()),
        definition: Arc::new(serde_json::from_value(definition).unwrap()),
        resolved: Arc::new(Resolved::default()),
        params: Default::default(),
        retry_of: None,
        no_cache: false,
        job_version: None,
        by: "ada".to_owned(),
        idempotency_key: None,
        request_hash: None,
        created_at: at(number),
    };
    let mut run = RunRecord::new(made, SERVER);
    run.live.started_at = Some(at(number));
    run.live.stage = RunStage::of(state, true, Some((at(number + took_s), End::default()))).unwrap();
    run
}

async fn store(runs: impl IntoIterator<Item = RunRecord>) -> MemoryStore {
    let store = MemoryStore::new();
    let create = |run: RunRecord| Change::RunCreated { run, max_pending: None, max_open: None, firing: None };
    let changes: Vec<Change> = runs.into_iter().map(create).collect();
    let committed = store.commit(SERVER, &changes).await.unwrap();
    assert!(committed.outcomes.iter().all(Result::is_ok), "{:?}", committed.outcomes);
    store
}

/// Returns the number of completed runs, and how many durations of the job are known, with their median.
fn shown(stats: &Stats) -> (u64, u32, Option<Span>) {
    let part = Part { cluster: ClusterId::DEFAULT, job: None, per: Duration::from_secs(86_400), periods: 2 };
    let view = stats.show(&part, at(10_000));
    let completed = view.ends.iter().map(|end| end.completed).sum();
    let job = view.jobs.first();
    (completed, job.map_or(0, |job| job.runs), job.and_then(|job| job.median))
}

fn loading() -> Stats {
    let stats = Stats::default();
    stats.with(|inner| inner.loading = Some(Loading::default()));
    stats
}

#[tokio::test]
async fn medians_are_of_the_newest_runs_after_a_start() {
    let most = u64::try_from(limits::STATS_DURATIONS).unwrap();
    // Most of the newest ones took a second; all that are older took longer.
    let took = |number| if number <= most + most / 2 { 100 } else { 1 };
    let runs = (1..=2 * most + 1).map(|number| run(number, RunState::Completed, took(number)));
    let stats = loading();
    stats.load(&store(runs).await).await.unwrap();
    let completed = 2 * most + 1;
    assert_eq!(shown(&stats), (completed, u32::try_from(most).unwrap(), Some(Span::from_secs(1))));
}

#[tokio::test]
async fn a_run_that_ends_while_ended_runs_are_read_counts_once() {
    let open = run(1, RunState::Running, 0);
    let ended = Event {
        seq: 2,
        server: SERVER,
        about: About::default(),
        change: Change::RunMoved {
            room: None,
            run: open.id.clone(),
            epoch: 1,
            path: vec![RunState::Terminating, RunState::Completed],
            stop: None,
            end: Some(End::default()),
            at: at(2),
        },
    };
    let store = store([open.clone()]).await;
    store.commit(SERVER, std::slice::from_ref(&ended.change)).await.unwrap();
    // Before the store is read, and after it.
    let stats = loading();
    stats.note(&ended, Some(&open));
    stats.load(&store).await.unwrap();
    assert_eq!(shown(&stats).0, 1);
    let stats = loading();
    stats.load(&store).await.unwrap();
    stats.note(&ended, Some(&open));
    assert_eq!(shown(&stats).0, 1);
    // Once all events that the store had are noted, nothing needs to be remembered.
    let other = run(2, RunState::Running, 0);
    let Change::RunMoved { epoch, path, end, at, .. } = ended.change.clone() else { unreachable!() };
    let change = Change::RunMoved { room: None, run: other.id.clone(), epoch, path, stop: None, end, at };
    stats.note(&Event { seq: 3, change, ..ended }, Some(&other));
    assert_eq!(shown(&stats).0, 2);
    assert!(stats.with(|inner| inner.loading.is_none()));
}
