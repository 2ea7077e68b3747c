//! A server and agents as processes, and the book that every execution writes into.

use std::collections::BTreeMap;
use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;

use downbeat_testbed::{Builder, eventually};
use serde_json::{Value, json};

/// A site of the testbed, with a book.
pub(crate) struct Site(downbeat_testbed::Site);

impl Deref for Site {
    type Target = downbeat_testbed::Site;

    fn deref(&self) -> &downbeat_testbed::Site {
        &self.0
    }
}

impl DerefMut for Site {
    fn deref_mut(&mut self) -> &mut downbeat_testbed::Site {
        &mut self.0
    }
}

impl Site {
    /// How a site is built that [`Site::start`] starts.
    pub(crate) fn build() -> Builder {
        downbeat_testbed::Site::build()
    }

    pub(crate) async fn start(builder: Builder) -> Self {
        Self(builder.start().await)
    }

    pub(crate) async fn with_agents(names: &[&str]) -> Self {
        Self::start(Self::build().agents(names)).await
    }

    fn book(&self) -> PathBuf {
        self.directory.path().join("book")
    }

    /// Returns a task that writes its attempt's name into the book, and takes a moment.
    pub(crate) fn entry(&self, name: &str, seconds: &str) -> Value {
        let script = format!("echo \"$DOWNBEAT_EXECUTION\" >> {}; sleep {seconds}", self.book().display());
        json!({"name": name, "backend": "exec", "action": "shell", "params": {"command": script}})
    }

    /// Returns a task that writes its name into the book and its process id into a file, and runs until the gate is opened.
    pub(crate) fn gated(&self, name: &str, gate: &str) -> Value {
        let (directory, book) = (self.directory.path().display(), self.book().display().to_string());
        // It ends with the test too: the work of a killed agent is not ended by another process.
        let script = format!(
            "cd {directory} && echo $$ > pid.part.$$ && mv pid.part.$$ pid.$DOWNBEAT_EXECUTION && \
             echo \"$DOWNBEAT_EXECUTION\" >> {book}; while test -d {directory} && ! test -e {gate}; do sleep 0.05; done"
        );
        json!({"name": name, "backend": "exec", "action": "shell", "params": {"command": script}})
    }

    pub(crate) fn open(&self, gate: &str) {
        fs::write(self.directory.path().join(gate), "").unwrap();
    }

    /// Returns the process of a gated attempt, by the attempt's name.
    pub(crate) fn pid_of(&self, name: &str) -> i32 {
        let file = self.directory.path().join(format!("pid.{name}"));
        fs::read_to_string(file).unwrap().trim().parse().unwrap()
    }

    /// Returns the names of all attempts that began, in order.
    pub(crate) fn begun(&self) -> Vec<String> {
        fs::read_to_string(self.book()).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    /// Waits until so many attempts have begun.
    pub(crate) async fn have_begun(&self, count: usize) -> Vec<String> {
        eventually(&format!("{count} attempts begin"), || async {
            Some(self.begun()).filter(|begun| begun.len() >= count)
        })
        .await
    }

    /// Returns how often each execution was really carried out, by its id.
    pub(crate) fn done(&self) -> BTreeMap<String, usize> {
        let mut done = BTreeMap::new();
        for line in fs::read_to_string(self.book()).unwrap_or_default().lines() {
            let id = line.rsplit_once('.').map_or(line, |(id, _)| id);
            *done.entry(id.to_owned()).or_insert(0) += 1;
        }
        done
    }

    /// Checks the records of ended runs against the book: every execution has one result, and the book has nothing that
    /// the records do not have.
    pub(crate) async fn check(&self, runs: &[String]) -> Checked {
        let done = self.done();
        let mut checked = Checked::default();
        let mut known = BTreeMap::new();
        for run in runs {
            let path = format!("runs/{run}");
            let view = eventually("the run is shown", || self.get(&path)).await;
            let placed = view["nodes"] == 0;
            let mut instances: BTreeMap<String, Vec<Value>> = BTreeMap::new();
            for execution in self.executions(run).await {
                let id = execution["id"].as_str().unwrap().to_owned();
                let status = execution["status"].as_str().unwrap().to_owned();
                let times = done.get(&id).copied().unwrap_or(0);
                match status.as_str() {
                    "succeeded" => assert_eq!(times, 1, "{id} succeeded and was carried out {times} times"),
                    "lost" => {
                        checked.lost += 1;
                        assert!(times <= 1, "{id} was lost and carried out {times} times");
                    }
                    "failed" | "cancelled" | "skipped" => {
                        assert!(times <= 1, "{id} is {status}: {times} times");
                    }
                    other => panic!("{id} is {other} although its run ended"),
                }
                known.insert(id, ());
                checked.executions += 1;
                let place = if placed { "-" } else { execution["node"].as_str().unwrap_or("-") };
                instances.entry(format!("{}@{place}", execution["step"])).or_default().push(execution);
            }
            for (instance, attempts) in instances {
                let results = attempts.iter().filter(|attempt| attempt["status"] == "succeeded").count();
                assert!(results <= 1, "{instance} of {run} succeeded {results} times: {attempts:#?}");
            }
        }
        for id in done.keys() {
            assert!(known.contains_key(id), "{id} was carried out, and nothing is recorded of it");
        }
        checked
    }
}

#[derive(Debug, Default)]
pub(crate) struct Checked {
    pub(crate) executions: usize,
    pub(crate) lost: usize,
}
