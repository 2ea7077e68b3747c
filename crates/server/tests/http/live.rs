//! The projection of a run: folding its events equals the server's view, after every event of every kind of run.

use std::collections::BTreeMap;

use downbeat_api::{
    EndRules, Event, EventBody, InstanceResult, Plan, Run, StepProgress, Steps, WholeRun, request,
};
use downbeat_client::{Client, Projection, Update};
use downbeat_core::Timestamp;
use downbeat_core::ids::RunId;
use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::time::Instant;

use downbeat_testbed::DEADLINE;
use downbeat_testbed::in_process::{Agent, Setup};

/// A run ends within this many rounds of its agents.
const ROUNDS: u32 = 100;

/// Enough to start at many different events.
const MOST_PROJECTIONS: usize = 12;

/// Projections of a run, each started at another event.
struct Folded {
    client: Client,
    id: RunId,
    plan: Plan,
    projections: Vec<Projection>,
}

impl Folded {
    /// The first projection starts with the run as it was created, or as it is now.
    async fn submit(setup: &Setup, definition: &Value) -> Self {
        let client = Client::new(&[setup.server.http_addr().to_string()], None).unwrap();
        let seq = client.last_seq().await.unwrap();
        let id = RunId::from(setup.submit(definition).await);
        Self::since(client, id, seq).await
    }

    async fn since(client: Client, id: RunId, seq: u64) -> Self {
        let plan = client.ask(request::run_plan(&id)).await.unwrap();
        let mut folded = Self { client, id, plan, projections: Vec::new() };
        folded.begin(seq).await;
        folded
    }

    async fn begin(&mut self, seq: u64) {
        let whole = self.shown().await;
        self.projections.push(Projection::new(whole, &self.plan, seq));
    }

    /// Returns the run as the server shows it, with its results.
    async fn shown(&self) -> WholeRun {
        let run = self.client.ask(request::run(&self.id)).await.unwrap();
        let results = self.client.all_results(request::run_results(&self.id)).await.unwrap();
        WholeRun::new(run, results)
    }

    async fn catch_up(&mut self) {
        let nodes = self.client.all_pages(request::nodes()).await.unwrap();
        for projection in &mut self.projections {
            nodes.iter().for_each(|node| projection.set_hostname(node.id, node.hostname.clone()));
            let events = request::run_events(&self.id);
            for event in self.client.all_events(events, projection.seq()).await.unwrap() {
                assert_eq!(projection.unknown_nodes(&event), []);
                projection.apply(&event);
            }
            for execution in projection.take_incomplete() {
                projection.complete(&self.client.ask(request::execution(execution)).await.unwrap());
            }
        }
    }

    /// Asserts that every projection equals the server's view. Returns whether the run has ended.
    async fn check(&mut self) -> bool {
        loop {
            let seq = self.client.last_seq().await.unwrap();
            let shown = self.shown().await;
            self.catch_up().await;
            if self.client.last_seq().await.unwrap() != seq {
                continue;
            }
            let shown = without_asking(shown);
            for projection in &mut self.projections {
                let whole = projection.whole();
                let run = whole.progress(&self.plan, &EndRules::of(&self.plan));
                let folded = WholeRun { run, results: whole.results.clone() };
                assert_eq!(without_asking(folded), shown, "folded, and shown");
            }
            if self.projections.len() < MOST_PROJECTIONS {
                self.begin(seq).await;
            }
            return shown.run.summary.state.is_terminal();
        }
    }

    /// Returns how many instances failed for good, according to the events.
    fn failed_for_good(&mut self) -> usize {
        let results = self.projections[0].whole().results.values().flat_map(BTreeMap::values);
        results.filter(|result| result.failed_for_good.is_some()).count()
    }

    /// Lets the agents work until the run has ended. `fails` selects the executions that fail.
    async fn drive(&mut self, agents: &mut [Agent], fails: impl Fn(u32) -> bool) {
        self.drive_steps(agents, |number, _| fails(number)).await;
    }

    /// Does the same; `fails` also gets the step.
    async fn drive_steps(&mut self, agents: &mut [Agent], fails: impl Fn(u32, u32) -> bool) {
        let mut number = 0;
        for _ in 0..ROUNDS {
            for agent in &mut *agents {
                for work in agent.take_soon().await {
                    self.check().await;
                    agent.start(&work).await;
                    self.check().await;
                    agent.finish(&work, i32::from(fails(number, work.of.step()))).await;
                    number += 1;
                }
            }
            if self.check().await {
                return;
            }
        }
        panic!("the run never ended: {:?}", self.projections[0].whole());
    }
}

/// Removes fields that events do not contain, and those that only the client derives.
fn without_asking(mut whole: WholeRun) -> WholeRun {
    let Run { summary, waiting, silent, metrics, .. } = &mut whole.run;
    summary.pending_reason = None;
    *metrics = None;
    (*waiting, *silent) = (Vec::new(), Vec::new());
    if let Steps::Each(steps) = &mut summary.steps {
        for step in steps {
            let StepProgress { step: number, counts, cached, reused, .. } = step.clone();
            *step = StepProgress { step: number, counts, cached, reused, ..StepProgress::default() };
        }
    }
    for result in whole.results.values_mut().flat_map(BTreeMap::values_mut) {
        (result.waits, result.stderr) = (None, None);
    }
    whole
}

fn task(name: &str, more: &Value) -> Value {
    let mut task = json!({"name": name, "backend": "test", "action": "noop"});
    task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    task
}

async fn agents(setup: &Setup) -> Vec<Agent> {
    let mut agents = Vec::new();
    for hostname in ["web-01", "web-02", "web-03", "web-04"] {
        agents.push(setup.agent(hostname, &[]).await);
    }
    agents
}

#[tokio::test]
async fn a_roll_out_with_retries_and_a_budget_that_is_spent() {
    let setup = Setup::new().await;
    let mut agents = agents(&setup).await;
    let definition = json!({"target": "all", "rollout": {"batch": [1, 1, 2], "max_failures": 0}, "tasks": [
        task("first", &json!({"retry": {"max": 1, "delay": "1ms"}})),
        {"name": "both", "tasks": [task("a", &json!({})), task("b", &json!({}))]},
        task("undo", &json!({"condition": "on_failure"})),
    ]});
    let mut run = Folded::submit(&setup, &definition).await;
    run.drive(&mut agents, |number| number == 0 || number >= 5).await;
    assert!(run.failed_for_good() > 0);
    assert!(listed_rollout(&setup, &run).await["failed"].as_u64() > Some(0));
    let mut run = Folded::submit(&setup, &definition).await;
    run.drive(&mut agents, |_| false).await;
    assert_eq!(run.failed_for_good(), 0);
    let whole = json!({"wave": 3, "waves": 3, "failed": 0, "budget": 0});
    assert_eq!(listed_rollout(&setup, &run).await, whole);
}

/// Returns how far a list says that a roll-out is. The run itself says the same.
async fn listed_rollout(setup: &Setup, run: &Folded) -> Value {
    let listed = setup.ok("/runs").await;
    let listed = listed["data"].as_array().unwrap().iter().find(|row| row["id"] == json!(run.id)).unwrap();
    let shown = &setup.ok(&format!("/runs/{}", run.id)).await["rollout"];
    let [wave, failed, budget] = ["wave", "failed", "budget"].map(|field| &shown[field]);
    let waves = shown["waves"].as_array().unwrap().len();
    assert_eq!(listed["rollout"], json!({"wave": wave, "waves": waves, "failed": failed, "budget": budget}));
    listed["rollout"].clone()
}

#[tokio::test]
async fn a_failed_instance_stays_failed_when_its_retry_is_withdrawn() {
    let setup = Setup::new().await;
    let mut agents = agents(&setup).await;
    let later = json!({"max": 1, "delay": "1h", "max_delay": "1h"});
    let definition = json!({"tasks": [
        task("flaky", &json!({"target": "all", "retry": later, "depends_on": []})),
        task("shard", &json!({"for_each": ["a", "b"], "retry": later, "depends_on": []})),
        task("once", &json!({"retry": later, "depends_on": []})),
        task("firm", &json!({"depends_on": ["slow"]})),
        task("slow", &json!({"depends_on": []})),
    ]});
    let mut run = Folded::submit(&setup, &definition).await;
    // Everything fails once and waits for its retry; the last task has no retries, so that fail-fast withdraws them.
    run.drive_steps(&mut agents, |_, step| step != 4).await;
    let shown = run.projections[0].whole().clone();
    assert_eq!((shown.run.counts.failed, shown.run.counts.skipped), (8, 0), "{shown:?}");
    for result in [0, 1, 2, 3].iter().flat_map(|step| shown.results[step].values()) {
        assert_eq!(
            (result.exit_code, result.attempts, result.attempts_made()),
            (Some(1), 1, 1),
            "{result:?}"
        );
        assert!(result.error.is_some() && result.failed_for_good.is_some(), "{result:?}");
    }

    // The retries were withdrawn while the pages of the first view were read: it had none of these instances.
    let events = run.client.all_events(request::run_events(&run.id), 0).await.unwrap();
    let is_final = |event: &&Event| matches!(event.body, EventBody::InstanceFailed { .. });
    let first = events.iter().find(is_final).unwrap().seq;
    let empty = WholeRun { run: shown.run.clone(), results: BTreeMap::new() };
    run.projections = vec![Projection::new(empty, &run.plan, first - 1)];
    run.catch_up().await;
    let (folded, shown) = (run.projections[0].whole().clone(), without_asking(shown));
    let folded = without_asking(folded);
    for step in 0..=3 {
        assert_eq!(folded.results.get(&step), shown.results.get(&step), "step {step}");
    }
    // An attempt on another node that was added while the pages were read replaces the one before it.
    let mut twice = shown.clone();
    let step = twice.results.get_mut(&2).unwrap();
    let (_, first) = step.first_key_value().unwrap();
    let second = InstanceResult { node: Some("other".to_owned()), attempts: 2, ..first.clone() };
    step.insert(second.key(), second.clone());
    let mut projection = Projection::new(twice, &run.plan, 0);
    let results = projection.whole().results[&2].values().cloned().collect::<Vec<_>>();
    assert_eq!(results, [second]);
}

#[tokio::test]
async fn a_graph_with_items_retries_and_what_is_skipped() {
    let setup = Setup::new().await;
    let mut agents = agents(&setup).await;
    let definition = json!({"strategy": "continue", "tasks": [
        task("shard", &json!({"for_each": {"items": ["a", "b", "c"], "max_parallel": 2}, "retry": {"max": 1, "delay": "1ms"}})),
        task("alone", &json!({"depends_on": []})),
        task("join", &json!({"depends_on": ["shard", "alone"]})),
        task("undo", &json!({"depends_on": ["join"], "condition": "on_failure"})),
    ]});
    for fails in [(|number| number == 1) as fn(u32) -> bool, |number| number % 2 == 1, |_| true] {
        let mut run = Folded::submit(&setup, &definition).await;
        run.drive(&mut agents, fails).await;
    }
}

#[tokio::test]
async fn a_run_that_is_paused_resumed_and_cancelled_and_one_that_tries_it_again() {
    let setup = Setup::new().await;
    let mut agents = agents(&setup).await;
    let definition =
        json!({"target": "all", "tasks": [task("first", &json!({})), task("second", &json!({}))]});
    let mut run = Folded::submit(&setup, &definition).await;
    let works = [agents[0].take().await, agents[1].take().await];
    agents[0].finish(&works[0], 0).await;
    for verb in ["pause", "resume", "cancel"] {
        setup.post(&format!("/runs/{}/{verb}", run.id), &json!({})).await;
        run.check().await;
    }
    agents[1].finish(&works[1], 0).await;
    run.drive(&mut agents, |_| false).await;
    let seq = run.client.last_seq().await.unwrap();
    let again = setup.post(&format!("/runs/{}/retry", run.id), &json!({})).await;
    let id = RunId::from(again.body["id"].as_str().unwrap());
    Folded::since(run.client.clone(), id, seq).await.drive(&mut agents, |_| false).await;
}

#[tokio::test]
async fn an_execution_that_is_lost_with_its_node() {
    let setup = Setup::new().await;
    let mut agents = agents(&setup).await;
    let definition = json!({"tasks": [task("placed", &json!({}))]});
    let mut run = Folded::submit(&setup, &definition).await;
    let work = agents[0].take().await;
    agents[0].start(&work).await;
    run.check().await;
    // A new session of the node: the former one has nothing to report any more.
    agents[0] = setup.agent("web-01", &[]).await;
    run.drive(&mut agents, |_| false).await;
}

#[tokio::test]
async fn a_step_that_a_person_approves_or_rejects() {
    let setup = Setup::new().await;
    let mut agents = agents(&setup).await;
    let tasks = json!([{"name": "ok", "approve": {}}, task("then", &json!({}))]);
    for reject in [false, true] {
        let mut run = Folded::submit(&setup, &json!({"tasks": tasks})).await;
        run.check().await;
        let url = format!("/runs/{}/approve", run.id);
        for (step, status) in [("then", StatusCode::CONFLICT), ("okay", StatusCode::NOT_FOUND)] {
            assert_eq!(setup.post(&url, &json!({"step": step})).await.status, status);
        }
        let decided = setup.post(&url, &json!({"step": 0, "reject": reject, "reason": "because"})).await;
        assert_eq!(decided.status, StatusCode::OK, "{}", decided.body);
        run.check().await;
        if !reject {
            let again = setup.post(&url, &json!({"step": "ok"})).await;
            assert_eq!((again.status, again.body["code"].as_str()), (StatusCode::CONFLICT, Some("conflict")));
        }
        run.drive(&mut agents, |_| false).await;
    }
}

#[tokio::test]
async fn following_a_run_costs_the_server_one_read_of_it() {
    let setup = Setup::new().await;
    let mut agents = agents(&setup).await;
    let steps: Vec<Value> = (0..10).map(|step| task(&format!("s{step}"), &json!({}))).collect();
    let client = Client::new(&[setup.server.http_addr().to_string()], None).unwrap();
    let id = RunId::from(setup.submit(&json!({"target": "all", "tasks": steps})).await);
    let mut live = client.follow(&id).await.unwrap();
    let work = async {
        for _ in 0..steps.len() {
            for agent in &mut agents {
                let work = agent.take().await;
                agent.finish(&work, 0).await;
            }
        }
    };
    let receive =
        async { while live.next_update(Instant::now() + DEADLINE).await.unwrap() != Update::End {} };
    tokio::join!(work, receive);
    let reads = r#"downbeat_http_requests_total{method="GET",path="/api/v1/runs/{id}",status="200"} "#;
    let metrics = client.text("/metrics").await.unwrap();
    let reads = metrics.lines().find_map(|line| line.strip_prefix(reads)).map(str::to_owned);
    assert_eq!(reads.as_deref(), Some("1"));
    assert_eq!(live.whole().run.counts, client.ask(request::run(&id)).await.unwrap().counts);
    assert_eq!(live.whole().run.counts.succeeded, 40);
}

#[tokio::test]
async fn a_client_whose_next_events_are_gone_reads_the_run_again() {
    let setup = Setup::new().await;
    let mut agents = agents(&setup).await;
    let client = Client::new(&[setup.server.http_addr().to_string()], None).unwrap();
    let id = RunId::from(setup.submit(&json!({"tasks": [task("placed", &json!({}))]})).await);
    // It has read the run, and has not opened the stream yet.
    let mut live = client.follow(&id).await.unwrap();
    let work = agents[0].take().await;
    agents[0].finish(&work, 0).await;
    setup.ended(id.as_str()).await;
    setup.server.service().views().prune(Timestamp::MAX, 0).await.unwrap();
    assert_eq!(client.last_seq().await.unwrap(), setup.server.service().views().last_seq().await.unwrap());
    while live.next_update(Instant::now() + DEADLINE).await.unwrap() != Update::End {}
    assert_eq!(live.whole().run.counts, client.ask(request::run(&id)).await.unwrap().counts);
    assert_eq!(live.whole().run.counts.succeeded, 1);
}
