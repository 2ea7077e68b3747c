//! Measures commits: `commit_rate LOCATION [SECONDS]`, where LOCATION is as in `open`. Like a busy server, each batch
//! adds leased executions and ends those of the batch before.

#![allow(clippy::print_stdout, reason = "a program that prints a table")]

use std::time::{Duration, Instant};

use downbeat_core::change::Change;
use downbeat_core::dice::Dice;
use downbeat_core::execution::{Execution, Lease, Outcome, State, Verdict};
use downbeat_core::ids::{ClusterId, ExecutionId, LeaseToken, NodeId, RunId, ServerId, SessionId};
use downbeat_core::run::{Resolved, RunMade, RunRecord, RunStage};
use downbeat_core::work::Origin;
use downbeat_store::Store;
use jiff::Timestamp;

const NODES: usize = 100;

fn now() -> Timestamp {
    Timestamp::from_microsecond(Timestamp::now().as_microsecond()).expect("now is a valid time")
}

fn create(run: &RunId, owner: ServerId) -> Change {
    let task = serde_json::json!({"tasks": [{"backend": "test", "action": "noop"}]});
    let made = RunMade {
        id: run.clone(),
        cluster: ClusterId::DEFAULT,
        job: None,
        definition: std::sync::Arc::new(serde_json::from_value(task).expect("the definition is valid")),
        resolved: std::sync::Arc::new(Resolved::default()),
        by: "bench".to_owned(),
        idempotency_key: None,
        created_at: now(),
        params: Default::default(),
        retry_of: None,
        no_cache: false,
    };
    let mut run = RunRecord::new(made, owner);
    run.live.stage = RunStage::Running;
    Change::RunCreated { run, max_pending: None }
}

fn new_leased(dice: &mut Dice, run: &RunId, node: NodeId, session: SessionId) -> Execution {
    let at = now();
    let lease = Lease { token: LeaseToken(dice.uuid()), node, session, granted_at: at };
    Execution {
        id: ExecutionId(dice.uuid_at(at)),
        of: Origin::Step { run: run.clone(), step: 0, item: None },
        pinned: None,
        attempt: 1,
        created_at: at,
        state: State::Leased { lease, stop: false },
        params: Default::default(),
        reused: None,
        limits: None,
        cache_key: None,
        failed_for_good: None,
    }
}

fn ended(execution: &Execution) -> Change {
    let at = now();
    let token = execution.state.lease().expect("it was added with a lease").token;
    let outcome = Outcome {
        verdict: Verdict::Succeeded,
        exit_code: Some(0),
        error: None,
        started_at: at,
        finished_at: at,
        outputs: Default::default(),
        received_at: None,
    };
    Change::ExecutionFinished { of: execution.of.parent(), execution: execution.id, token, outcome }
}

async fn measure(store: &dyn Store, dice: &mut Dice, size: usize, length: Duration) {
    let owner = ServerId(dice.uuid());
    let run = RunId::from(dice.uuid());
    let nodes: Vec<(NodeId, SessionId)> =
        (0..NODES).map(|_| (NodeId(dice.uuid()), SessionId(dice.uuid()))).collect();
    store.commit(owner, &[create(&run, owner)]).await.expect("a run is created");
    let mut open: Vec<Execution> = Vec::new();
    let mut millis = Vec::new();
    let (mut done, begun) = (0, Instant::now());
    while begun.elapsed() < length {
        let new: Vec<Execution> = (0..size)
            .map(|place| {
                let (node, session) = nodes[place % NODES];
                new_leased(dice, &run, node, session)
            })
            .collect();
        let mut batch: Vec<Change> = open.iter().map(ended).collect();
        batch.push(Change::ExecutionsAdded {
            run: run.clone(),
            epoch: 1,
            executions: new.clone(),
            at: now(),
        });
        let start = Instant::now();
        let committed = store.commit(owner, &batch).await.expect("a batch is committed");
        millis.push(start.elapsed().as_secs_f64() * 1e3);
        assert!(committed.outcomes.iter().all(Result::is_ok), "all is applied");
        done += open.len();
        open = new;
    }
    let seconds = begun.elapsed().as_secs_f64();
    millis.sort_by(f64::total_cmp);
    let quantile = |q: f64| millis[((millis.len() - 1) as f64 * q) as usize];
    println!(
        "{:>9} {size:>6} {:>10.0} {:>12.0} {:>9.2} {:>9.2} {:>9.2}",
        store.name(),
        millis.len() as f64 / seconds,
        done as f64 / seconds,
        quantile(0.5),
        quantile(0.99),
        quantile(1.0),
    );
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let location = args.next().ok_or("usage: commit_rate LOCATION [SECONDS]")?;
    let length = Duration::from_secs(args.next().map_or(Ok(5), |text| text.parse())?);
    let store = downbeat_store::open(&location).await?;
    let mut dice = Dice::new(u64::try_from(now().as_microsecond())?);
    println!("    store  batch  commits/s executions/s    p50 ms    p99 ms    max ms");
    for size in [1, 50, 500] {
        measure(&*store, &mut dice, size, length).await;
    }
    store.close().await;
    Ok(())
}
