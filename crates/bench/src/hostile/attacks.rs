//! The attacks: requests that any client may send.

use std::time::Duration;

use clap::ValueEnum;
use futures_util::{StreamExt, stream};
use reqwest::{Client, Response};
use serde_json::{Value, json};

use crate::failure::{Code, Failure, Result};
use crate::server::{Launch, Server};
use crate::site::Site;

/// The smallest size, at which each attack has at least one of everything.
pub(super) const LEAST: u32 = 9;
/// The largest size: its nodes and the agent of the small runs are within a server's default `max_nodes`.
pub(super) const MOST: u32 = 9_000;
/// Nodes of attacks that need none.
const FEW_NODES: u32 = 9;
/// Clients that attack at once.
const CLIENTS: usize = 4;
/// One request, if nobody else limits it.
const ANSWER: Duration = Duration::from_secs(120);
/// How often the state of a run is read.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Attack {
    /// A `for_each` whose evaluated params are large
    Params,
    /// A run over the whole fleet whose first step fails: all other instances are skipped
    Skips,
    /// Params that a replica has to receive
    Replica,
    /// Looking at a large run that failed
    Views,
    /// Dry runs with a different target for each task
    Plans,
    /// A different page of a list with each request
    Pages,
    /// Lists of nodes and of fleet runs
    Lists,
    /// Runs that no node fits, each in its own way
    Unplaceable,
}

impl Attack {
    pub(super) fn name(self) -> &'static str {
        match self {
            Attack::Params => "params",
            Attack::Skips => "skips",
            Attack::Replica => "replica",
            Attack::Views => "views",
            Attack::Plans => "plans",
            Attack::Pages => "pages",
            Attack::Lists => "lists",
            Attack::Unplaceable => "unplaceable",
        }
    }

    pub(super) fn nodes(self, n: u32) -> u32 {
        match self {
            Attack::Skips | Attack::Views | Attack::Plans | Attack::Lists | Attack::Unplaceable => n,
            Attack::Params | Attack::Replica | Attack::Pages => FEW_NODES.min(n),
        }
    }

    pub(super) fn what(self, n: u32) -> String {
        let sizes = Sizes::of(n);
        match self {
            Attack::Params => format!("{} items with 200 kB of params each", sizes.items),
            Attack::Skips => format!("{} steps on {n} nodes, the first fails", sizes.steps),
            Attack::Replica => format!("{} items with 14 kB of params each, to a replica", sizes.items),
            Attack::Views => format!("{CLIENTS} clients read a run of {} steps on {n} nodes", sizes.steps),
            Attack::Plans => format!("{CLIENTS} plans of {} tasks on {n} nodes", sizes.tasks),
            Attack::Pages => format!("{} pages, each with another offset", sizes.items),
            Attack::Lists => format!("{CLIENTS} clients list {n} nodes and 10 runs over all of them"),
            Attack::Unplaceable => format!("{} runs, each for a label that no node has", sizes.runs),
        }
    }

    /// Does what the attack needs before it begins.
    pub(super) async fn prepare(self, target: &Target<'_>) -> Result<()> {
        match self {
            Attack::Views => {
                target.submit(&target.skipping()).await?;
                target.ended().await
            }
            Attack::Lists => {
                for _ in 0..10 {
                    target
                        .submit(&json!({"name": ATTACKER, "target": "group:bench", "tasks": [noop()]}))
                        .await?;
                    target.ended().await?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Attacks; returns how it ended.
    pub(super) async fn run(self, target: &Target<'_>) -> String {
        let result = match self {
            Attack::Params => target.run_to_end(&target.with_params(200_000)).await,
            Attack::Skips => target.run_to_end(&target.skipping()).await,
            Attack::Replica => target.replicate().await,
            Attack::Views => target.view().await,
            Attack::Plans => target.plan().await,
            Attack::Pages => target.page().await,
            Attack::Lists => target.list().await,
            Attack::Unplaceable => target.misplace().await,
        };
        result.unwrap_or_else(|failure| failure.message)
    }
}

/// The sizes that belong to a fleet of `n` nodes; those of the attacks that were first seen at 9,000.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sizes {
    items: u32,
    steps: u32,
    tasks: u32,
    runs: u32,
}

impl Sizes {
    fn of(n: u32) -> Self {
        // A run has at most a million instances, and a `for_each` 10,000 items.
        let steps = (n / 81).min(900_000 / n).max(2);
        Self { items: (n * 5 / 9).min(10_000), steps, tasks: (n / 9).min(10_000), runs: n / 18 + 1 }
    }
}

/// The figure of `/metrics` that counts pending executions.
const WAITING: &str = "downbeat_queue_depth";
/// The job of an attack.
const ATTACKER: &str = "hostile";

fn noop() -> Value {
    json!({"backend": "test", "action": "noop"})
}

/// A server under attack.
#[derive(Debug)]
pub(super) struct Target<'a> {
    pub server: &'a Server,
    site: &'a Site,
    http: Client,
    n: u32,
    sizes: Sizes,
    /// How long the server is observed at least.
    rest: Duration,
}

impl<'a> Target<'a> {
    pub(super) fn new(site: &'a Site, n: u32, rest: Duration) -> Result<Self> {
        let http = Client::builder().no_proxy().timeout(ANSWER).build();
        let http = http.map_err(|error| Failure::bug(format!("cannot make a client: {error}")))?;
        Ok(Self { server: site.first(), site, http, n, sizes: Sizes::of(n), rest })
    }

    pub(super) async fn get(&self, path: &str) -> Result<Response> {
        self.answer(self.http.get(format!("{}{path}", self.server.url()))).await
    }

    async fn post(&self, path: &str, body: &Value) -> Result<Response> {
        self.answer(self.http.post(format!("{}/api/v1/{path}", self.server.url())).json(body)).await
    }

    async fn answer(&self, request: reqwest::RequestBuilder) -> Result<Response> {
        let response = request.send().await.map_err(|error| lost(&error))?;
        match response.status() {
            status if status.is_success() => Ok(response),
            status => {
                let path = response.url().path();
                Err(Failure::new(Code::Refused, format!("{path} was refused with {}", status.as_u16())))
            }
        }
    }

    /// Reads a whole answer; returns its size.
    async fn read(&self, path: &str) -> Result<u64> {
        let mut answer = self.get(path).await?;
        let mut bytes = 0;
        while let Some(piece) = answer.chunk().await.map_err(|error| lost(&error))? {
            bytes += piece.len() as u64;
        }
        Ok(bytes)
    }

    /// Submits one task and waits for the end of its run, as a client does.
    pub(super) async fn small_run(&self) -> Result<()> {
        let task = json!({"backend": "test", "action": "noop", "placement": {"allow": ["bench-0"]}});
        let id = self.submit(&json!({"name": "small", "tasks": [task]})).await?;
        self.read(&format!("/api/v1/runs/{id}/events?follow=1")).await.map(drop)
    }

    pub(super) async fn warm_up(&self) -> Result<()> {
        for _ in 0..20 {
            self.small_run().await?;
        }
        Ok(())
    }

    async fn submit(&self, definition: &Value) -> Result<String> {
        let run = json_of(self.post("runs", definition).await?).await?;
        run["id"].as_str().map(str::to_owned).ok_or_else(|| Failure::bug("a run has no id"))
    }

    /// Returns the id and the state of the newest run of the attack.
    async fn newest(&self) -> Result<(String, String)> {
        let list = json_of(self.get(&format!("/api/v1/runs?job={ATTACKER}&limit=1")).await?).await?;
        let text = |name: &str| list["data"][0][name].as_str().unwrap_or_default().to_owned();
        Ok((text("id"), text("state")))
    }

    /// Waits for the end of the newest run of the attack; other requests may fail meanwhile.
    async fn until_ended(&self) -> String {
        loop {
            match self.newest().await {
                Ok((_, state)) if ["completed", "failed", "cancelled"].contains(&&*state) => return state,
                Ok(_) | Err(_) => tokio::time::sleep(LOOK).await,
            }
        }
    }

    async fn ended(&self) -> Result<()> {
        let ended = tokio::time::timeout(ANSWER, self.until_ended()).await;
        ended.map(drop).map_err(|_| {
            Failure::bug(format!("a run that the attack needs did not end within {} s", ANSWER.as_secs()))
        })
    }

    async fn run_to_end(&self, definition: &Value) -> Result<String> {
        let id = self.submit(definition).await?;
        // What no node fits would wait for one: the run is cancelled when its executions exist.
        let cancel = async {
            if definition["tasks"][1]["placement"].is_object() {
                self.created().await;
                let _ = self.post(&format!("runs/{id}/cancel"), &json!({})).await;
            }
            std::future::pending::<String>().await
        };
        tokio::select! {
            state = self.until_ended() => Ok(format!("the run {state}")),
            never = cancel => Ok(never),
        }
    }

    /// Waits until the run of an attack has an execution for each item.
    async fn created(&self) {
        let waiting = async || self.server.metrics().await.map_or(0.0, |metrics| metrics.get(WAITING));
        while waiting().await < f64::from(self.sizes.items) {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// A task for each item, whose params are a large param of the run.
    fn with_params(&self, bytes: usize) -> Value {
        let items: Vec<u32> = (0..self.sizes.items).collect();
        json!({
            "name": ATTACKER,
            "params": {"big": "x".repeat(bytes)},
            "tasks": [
                {"name": "first", "backend": "test", "action": "noop", "placement": {"allow": ["bench-0"]}},
                {
                    "name": "each", "backend": "exec", "action": "run", "depends_on": ["first"], "for_each": items,
                    "params": {"command": ["cat"], "stdin": "{{ params.big }}{{ index }}"},
                    "placement": {"labels": ["nowhere"]},
                },
            ],
        })
    }

    /// A list over the fleet whose first step fails.
    fn skipping(&self) -> Value {
        let mut tasks = vec![json!({"backend": "test", "action": "fail", "target": "node:bench-0"})];
        tasks.extend(
            (0..self.sizes.steps).map(|_| json!({"backend": "test", "action": "noop", "target": "all"})),
        );
        json!({"name": ATTACKER, "tasks": tasks})
    }

    async fn replicate(&self) -> Result<String> {
        let launch = Launch {
            name: "replica".to_owned(),
            store: format!("sqlite:{}", self.site.directory().join("replica.db").display()),
            flags: vec!["--replica-of".to_owned(), self.server.url().to_owned()],
            ..self.server.launch().clone()
        };
        let replica = Server::start(launch).await?;
        // Until its first copy is complete, it does not show how far it is.
        while replica.last_seq().await.is_err() {
            tokio::time::sleep(LOOK).await;
        }
        let id = self.submit(&self.with_params(14_000)).await?;
        self.created().await;
        let wanted = self.server.last_seq().await?;
        while replica.last_seq().await? < wanted {
            tokio::time::sleep(LOOK).await;
        }
        let _ = self.post(&format!("runs/{id}/cancel"), &json!({})).await;
        let state = self.until_ended().await;
        let last = self.server.last_seq().await?;
        while replica.last_seq().await? < last {
            tokio::time::sleep(LOOK).await;
        }
        Ok(format!("the replica has it, the run {state}"))
    }

    /// Repeats a request from several clients at once; returns the sizes of their answers, and how many were refused.
    async fn at_once(&self, requests: impl Iterator<Item = String>) -> (u64, u64, u64) {
        let answers = stream::iter(requests).map(|path| async move { self.read(&path).await });
        let count = async |(answered, refused, most): (u64, u64, u64), answer: Result<u64>| match answer {
            Ok(bytes) => (answered + 1, refused, most.max(bytes)),
            Err(_) => (answered, refused + 1, most),
        };
        answers.buffer_unordered(CLIENTS).fold((0, 0, 0), count).await
    }

    async fn view(&self) -> Result<String> {
        let (id, _) = self.newest().await?;
        let paths = [
            "",
            "/events?limit=1000",
            "/events?follow=1",
            "/plan",
            "/executions?limit=1000",
            "/results?limit=1000",
            "/matrix?limit=1000",
        ];
        let paths = paths.map(|path| format!("/api/v1/runs/{id}{path}"));
        let paths = paths.iter().flat_map(|path| std::iter::repeat_n(path.clone(), CLIENTS));
        Ok(answered(self.at_once(paths).await))
    }

    async fn plan(&self) -> Result<String> {
        let task = |number: u32| {
            let node = number % self.n;
            json!({"backend": "test", "action": "noop", "target": format!("all and not node:sim-{node:05}")})
        };
        let plan = json!({"name": ATTACKER, "tasks": (0..self.sizes.tasks).map(task).collect::<Vec<_>>()});
        let plans = stream::iter(0..CLIENTS).map(|_| async { self.post("plan", &plan).await });
        let answers: Vec<Result<Response>> = plans.buffer_unordered(CLIENTS).collect().await;
        let texts = answers.into_iter().map(|answer| match answer {
            Ok(_) => "planned".to_owned(),
            Err(failure) => failure.message,
        });
        let mut texts: Vec<String> = texts.collect();
        texts.sort();
        texts.dedup();
        Ok(texts.join(", "))
    }

    async fn page(&self) -> Result<String> {
        let pages = (0..self.sizes.items).map(|offset| format!("/api/v1/runs?limit=1&offset={offset}"));
        Ok(answered(self.at_once(pages).await))
    }

    async fn list(&self) -> Result<String> {
        let lists = ["nodes?limit=1", "nodes?limit=1000", "runs?limit=1000", "status"];
        let lists = lists.iter().cycle().take(lists.len() * 20).map(|path| format!("/api/v1/{path}"));
        Ok(answered(self.at_once(lists).await))
    }

    async fn misplace(&self) -> Result<String> {
        let mut refused = 0;
        for number in 0..self.sizes.runs {
            let placement = json!({"labels": [format!("rack={number}")]});
            let task = json!({"backend": "test", "action": "noop", "placement": placement});
            let run = json!({"name": format!("{ATTACKER}-{number}"), "tasks": [task]});
            refused += u32::from(self.submit(&run).await.is_err());
        }
        // They cost something as long as they wait.
        tokio::time::sleep(self.rest).await;
        Ok(format!("{} runs wait, {refused} refused", self.sizes.runs - refused))
    }
}

async fn json_of(answer: Response) -> Result<Value> {
    let bytes = answer.bytes().await.map_err(|error| lost(&error))?;
    serde_json::from_slice(&bytes).map_err(|error| Failure::bug(format!("the answer is not JSON: {error}")))
}

fn lost(error: &reqwest::Error) -> Failure {
    Failure::new(Code::Unreachable, format!("no answer: {error}"))
}

fn answered((answered, refused, most): (u64, u64, u64)) -> String {
    format!("{answered} answers of at most {:.2} MB, {refused} refused", most as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_in_proportion_and_within_the_products_bounds() {
        assert_eq!(Sizes::of(MOST), Sizes { items: 5_000, steps: 100, tasks: 1_000, runs: 501 });
        assert_eq!(Sizes::of(LEAST), Sizes { items: 5, steps: 2, tasks: 1, runs: 1 });
        for n in [LEAST, 100, 1_000, MOST] {
            let sizes = Sizes::of(n);
            assert!(u64::from(sizes.steps) * u64::from(n) < 1_000_000, "{n}: {sizes:?}");
            assert!(sizes.items <= 10_000 && sizes.tasks <= 10_000, "{n}: {sizes:?}");
        }
    }
}
