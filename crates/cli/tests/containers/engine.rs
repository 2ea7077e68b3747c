//! Owns a site whose agents run containers, and lists those on the engine.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::process::Command;

use downbeat_testbed::{Site, eventually};
use serde_json::{Value, json};

pub(crate) const IMAGE: &str = "downbeat-busybox:1";

pub(crate) struct Yard {
    site: Site,
    socket: String,
}

/// A container on the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Container {
    pub(crate) name: String,
    pub(crate) running: bool,
}

impl Deref for Yard {
    type Target = Site;

    fn deref(&self) -> &Site {
        &self.site
    }
}

impl DerefMut for Yard {
    fn deref_mut(&mut self) -> &mut Site {
        &mut self.site
    }
}

impl Yard {
    pub(crate) async fn with_agents(names: &[&str]) -> Self {
        let socket = std::env::var("DOWNBEAT_TEST_DOCKER").unwrap_or_else(|_| {
            panic!("needs Docker: run `make test` as root, or `make containers` and set DOWNBEAT_TEST_DOCKER to what it says")
        });
        let mut yard = Self { site: Site::build().start().await, socket };
        fs::create_dir(yard.shared()).unwrap();
        for name in names {
            yard.start_agent(name);
        }
        yard.nodes_online(names.len()).await;
        yard
    }

    pub(crate) fn start_agent(&mut self, name: &str) {
        self.start_agent_at(name, &self.socket.clone());
    }

    /// Starts an agent that uses the engine at this socket.
    pub(crate) fn start_agent_at(&mut self, name: &str, socket: &str) {
        let agent = self.server.agent(name).with(&["--allow", "docker", "--slots", "2"]);
        self.add_agent(agent.with_env(&[("DOWNBEAT_DOCKER_SOCKET", socket)]));
    }

    /// A directory that all containers see as `/m`.
    pub(crate) fn shared(&self) -> PathBuf {
        self.directory.path().join("shared")
    }

    /// A task that notes its beginning in the book, and ends when the file `go` is there. It heeds TERM.
    pub(crate) fn task(&self) -> Value {
        self.script("while [ ! -e /m/go ]; do sleep 0.05; done; echo done")
    }

    pub(crate) fn script(&self, script: &str) -> Value {
        let script = format!("trap 'exit 143' TERM; echo $DOWNBEAT_EXECUTION >> /m/book; {script}");
        json!({"name": "work", "backend": "docker", "action": "run", "params": {
            "image": IMAGE, "pull": "never", "network": "none", "command": ["sh", "-c", script],
            "mounts": [format!("{}:/m", self.shared().display())],
        }})
    }

    pub(crate) fn go(&self) {
        fs::write(self.shared().join("go"), "").unwrap();
    }

    /// Returns the attempts that began, in order: `EXECUTION.ATTEMPT` each.
    pub(crate) fn book(&self) -> Vec<String> {
        let text = fs::read_to_string(self.shared().join("book")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Waits until `count` began, and returns the names of their containers.
    pub(crate) async fn begun(&self, count: usize) -> Vec<String> {
        eventually(&format!("{count} containers began"), || async {
            let book = self.book();
            (book.len() >= count).then_some(book)
        })
        .await
        .iter()
        .map(|identity| format!("downbeat-{}", identity.replace('.', "-")))
        .collect()
    }

    /// The containers of an agent, running or not.
    pub(crate) fn containers(&self, agent: &str) -> Vec<Container> {
        let mark =
            fs::read_to_string(self.directory.path().join(agent).join("containers")).unwrap_or_default();
        let label = format!("label=downbeat.node={}", mark.trim());
        let output = self.docker(&["ps", "--all", "--filter", &label, "--format", "{{.Names}} {{.State}}"]);
        let parse = |line: &str| {
            let (name, state) = line.split_once(' ').expect("name and state");
            Container { name: name.to_owned(), running: state == "running" }
        };
        output.lines().map(parse).collect()
    }

    pub(crate) async fn none_left(&self, agent: &str) {
        eventually(&format!("no container of {agent} is left"), || async {
            self.containers(agent).is_empty().then_some(())
        })
        .await;
    }

    /// The names of the running ones.
    pub(crate) fn running(&self, agent: &str) -> Vec<String> {
        let all = self.containers(agent);
        all.into_iter().filter(|container| container.running).map(|container| container.name).collect()
    }

    /// Waits until exactly these run. The engine lists a container as running only some time after its process started.
    pub(crate) async fn runs(&self, agent: &str, names: &[String]) {
        eventually(&format!("{names:?} run on {agent}"), || async {
            (self.running(agent) == names).then_some(())
        })
        .await;
    }

    /// Uses Debian's own client: a newer one does not support an older engine.
    fn docker(&self, words: &[&str]) -> String {
        let client = if fs::exists("/usr/bin/docker").unwrap() { "/usr/bin/docker" } else { "docker" };
        let output = Command::new(client)
            .args(["--host", &format!("unix://{}", self.socket)])
            .args(words)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// On which node each attempt was or is.
    pub(crate) async fn attempts(&self, run: &str) -> Vec<(u64, String, String)> {
        let mut attempts: Vec<(u64, String, String)> = self
            .executions(run)
            .await
            .iter()
            .map(|execution| {
                let text = |key: &str| execution[key].as_str().unwrap_or_default().to_owned();
                (execution["attempt"].as_u64().unwrap(), text("node"), text("status"))
            })
            .collect();
        attempts.sort();
        attempts
    }
}

impl Drop for Yard {
    fn drop(&mut self) {
        // Containers of killed agents, so that nothing outlives the test.
        for entry in fs::read_dir(self.directory.path()).into_iter().flatten().flatten() {
            let Ok(mark) = fs::read_to_string(entry.path().join("containers")) else { continue };
            let label = format!("label=downbeat.node={}", mark.trim());
            for id in self.docker(&["ps", "--all", "--quiet", "--filter", &label]).lines() {
                self.docker(&["rm", "--force", id]);
            }
        }
    }
}
