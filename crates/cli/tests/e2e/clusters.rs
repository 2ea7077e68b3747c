//! Clusters and standing tasks, from the creation of a cluster to its deletion, with real agents.

use std::fs;
use std::process::Stdio;

use downbeat_testbed::{Daemon, Dev, Done, Process, example, until};
use jiff::Timestamp;
use serde_json::{Value, json};

/// A server, a cluster `prod`, and its nodes, which write what they do into one file.
struct Site {
    dev: Dev,
    agents: Vec<Daemon>,
}

impl Site {
    fn start(nodes: &[&str]) -> Self {
        let dev = Dev::server(|server| server);
        let created = dev.run(&["cluster", "create", "prod", "--description", "web servers"]).ok();
        assert!(created.starts_with("cluster prod is created; "), "{created}");
        let mut site = Self { dev, agents: Vec::new() };
        for node in nodes {
            site.join(node);
        }
        site
    }

    fn join(&mut self, node: &str) {
        let agent = self.dev.agent(node).with(&["--cluster", "prod", "--allow", "exec", "--groups", "web"]);
        agent.start();
        self.agents.push(agent);
        self.online(self.agents.len());
    }

    fn online(&self, count: usize) {
        until("the nodes are online", || (self.status()["active_nodes"] == count).then_some(()));
    }

    fn run(&self, arguments: &[&str]) -> Done {
        self.dev.run(&[&["--cluster", "prod"], arguments].concat())
    }

    fn json(&self, arguments: &[&str]) -> Value {
        self.run(&[arguments, &["-o", "json"]].concat()).json()
    }

    /// Returns a command that logs the name of the task, and then does `work`.
    fn command(&self, name: &str, work: &str) -> String {
        let log = self.dev.dir.path().join("log");
        format!("echo {name} >>{}; {work}", log.display())
    }

    fn add(&self, name: &str, work: &str, more: &[&str]) -> String {
        self.run(&[&["task", "add", name, "--command", &self.command(name, work)], more].concat()).ok()
    }

    fn status(&self) -> Value {
        self.dev.json(&["cluster", "status", "prod"])
    }

    fn complete(&self, nodes: u64) {
        until("nodes with all tasks complete", || {
            (self.status()["nodes_with_all_tasks_complete"] == nodes).then_some(())
        });
    }

    /// Returns how often a task ran, on all nodes.
    fn ran(&self, name: &str) -> usize {
        let log = fs::read_to_string(self.dev.dir.path().join("log")).unwrap_or_default();
        log.lines().filter(|line| *line == name).count()
    }

    /// Returns when the last attempt at a task on a node was created, and when it ended.
    fn times(&self, task: &str, node: &str) -> (Timestamp, Timestamp) {
        let executions = self.json(&["task", "executions", task, "--node", node]);
        let last = executions["data"].as_array().unwrap().iter().max_by_key(|one| one["attempt"].as_u64());
        let last = last.unwrap_or_else(|| panic!("{executions}"));
        let time = |field: &str| last[field].as_str().unwrap().parse().unwrap();
        (time("created_at"), time("finished_at"))
    }

    fn names(&self) -> Vec<String> {
        let tasks = self.json(&["task", "list"]);
        tasks["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|task| task["name"].as_str().unwrap().to_owned())
            .collect()
    }

    fn cells(&self, node: &str) -> Value {
        let walks = self.dev.json(&["cluster", "status", "prod", "--nodes"]);
        let walk = walks["data"].as_array().unwrap().iter().find(|walk| walk["hostname"] == node);
        walk.unwrap_or_else(|| panic!("{walks}"))["cells"].clone()
    }
}

#[test]
fn all_nodes_do_the_tasks_in_order_and_a_later_node_does_them_too() {
    let mut site = Site::start(&["web-01", "web-02"]);
    let added = site.add("install", "true", &["--blocking"]);
    assert_eq!(added, "task install is number 1 of cluster prod; every node does it\n");
    site.add("configure", "true", &["--timeout", "1m"]);
    site.run(&["task", "add", "echo", "test", "echo", "--message", "hi there"]).ok();
    site.complete(2);
    assert_eq!((site.ran("install"), site.ran("configure")), (2, 2));
    site.join("web-03");
    site.complete(3);
    assert_eq!((site.ran("install"), site.ran("configure")), (3, 3));
    assert_eq!(site.cells("web-03"), json!(["succeeded", "succeeded", "succeeded"]));
    let status = site.status();
    assert_eq!(
        (&status["total_nodes"], &status["completion_percentage"]),
        (&json!(3), &json!(100.0)),
        "{status}"
    );
    assert_eq!(status["tasks"][0]["counts"]["succeeded"], 3, "{status}");
    let logs = site.run(&["task", "logs", "echo", "--node", "web-03"]).ok();
    assert_eq!(logs.trim_end(), "hi there");
    let executions = site.json(&["task", "executions", "install", "--node", "web-01"]);
    assert_eq!(executions["data"].as_array().unwrap().len(), 1, "{executions}");
    let table = site.run(&["task", "executions", "install"]).ok();
    assert!(table.contains("web-02") && table.contains("succeeded"), "{table}");
    for node in ["web-01", "web-02", "web-03"] {
        let (_, installed) = site.times("install", node);
        let (configure, configured) = site.times("configure", node);
        let (echo, _) = site.times("echo", node);
        assert!(installed <= configure && configured <= echo, "{node} does one task after the other");
    }
    for line in ["task list", "task show install", "cluster list", "cluster show prod", "node list"] {
        let words: Vec<&str> = line.split(' ').collect();
        assert!(site.json(&words).is_object(), "{line}");
        assert!(!site.run(&words).ok().is_empty(), "{line}");
    }
    // Nothing of it is seen in another cluster.
    assert_eq!(site.dev.json(&["task", "list"])["data"], json!([]));
    assert_eq!(site.dev.json(&["node", "list"])["data"], json!([]));
    assert_eq!(site.dev.json(&["run", "list"])["data"], json!([]), "the run of standing tasks is not shown");
    assert_eq!(site.json(&["run", "list"])["data"], json!([]));
}

#[test]
fn a_blocking_failure_stops_the_rest_until_it_is_fixed_and_done_again() {
    let site = Site::start(&["web-01", "web-02"]);
    let fixed = site.dev.dir.path().join("fixed").display().to_string();
    site.add("prepare", "true", &[]);
    site.add("install", &format!("test -e {fixed} || {{ echo no package >&2; exit 7; }}"), &["--blocking"]);
    site.add("start", "true", &[]);
    until("both nodes are stuck", || (site.status()["nodes_with_failed_tasks"] == 2).then_some(()));
    assert_eq!(site.cells("web-01"), json!(["succeeded", "failed", "skipped"]));
    assert_eq!(site.ran("start"), 0);

    let page = site.run(&["cluster", "status", "prod"]).ok();
    assert!(page.contains("2 nodes are stuck"), "{page}");
    assert!(page.contains("web-01  install") && page.contains('7'), "{page}");
    assert!(page.contains("downbeat task rerun install --node web-01 --cluster prod"), "{page}");
    assert!(page.contains("downbeat task logs install --node web-01 --cluster prod"), "{page}");
    let stuck = &site.status()["stuck"][0];
    assert_eq!(
        (&stuck["hostname"], &stuck["stuck"]["task"]),
        (&json!("web-01"), &json!("install")),
        "{stuck}"
    );
    let matrix = site.dev.run(&["cluster", "status", "prod", "--nodes"]).ok();
    assert!(matrix.contains("✔✖○"), "{matrix}");
    let logs = site.run(&["task", "logs", "install", "--node", "web-01"]);
    assert_eq!((logs.code, logs.stdout.as_str()), (0, "no package\n"), "{logs:?}");
    assert_eq!(logs.stderr, "attempt 1 is failed: exited with code 7\n");

    for (arguments, code) in [
        (&["task", "rerun", "install"][..], 2),
        (&["task", "rerun", "install", "--failed", "--all"], 2),
        (&["task", "rerun", "nothing", "--all"], 4),
        (&["task", "rerun", "install", "--node", "web-99"], 4),
        (&["task", "logs", "start", "--node", "web-01"], 4),
    ] {
        let refused = site.run(arguments);
        assert_eq!(refused.code, code, "{arguments:?}: {refused:?}");
        assert_eq!(refused.stderr.lines().count(), 1, "{refused:?}");
    }

    fs::write(&fixed, "").unwrap();
    let again = site.run(&["task", "rerun", "install", "--node", "web-01"]).ok();
    assert_eq!(again, "1 node will do task install again\n");
    site.complete(1);
    assert_eq!((site.cells("web-02"), site.ran("start")), (json!(["succeeded", "failed", "skipped"]), 1));
    let again = site.run(&["task", "rerun", "install", "--failed"]).ok();
    assert_eq!(again, "1 node will do task install again\n");
    site.complete(2);
    assert_eq!((site.ran("prepare"), site.ran("install"), site.ran("start")), (2, 4, 2));
    let executions = site.json(&["task", "executions", "install", "--node", "web-02"]);
    assert_eq!(executions["data"].as_array().unwrap().len(), 2, "{executions}");

    let reset = site.run(&["node", "reset", "web-01"]).ok();
    assert_eq!(reset, "node web-01 does all standing tasks again\n");
    until("the node does all tasks again", || (site.ran("start") == 3).then_some(()));
    site.complete(2);
    assert_eq!((site.ran("prepare"), site.ran("install")), (3, 5));
}

#[test]
fn a_file_is_the_list_and_its_differences_are_shown() {
    let site = Site::start(&[]);
    site.run(&["task", "add", "a", "--command", "true"]).ok();
    site.run(&["task", "add", "b", "--command", "true"]).ok();
    site.run(&["task", "add", "first", "--command", "true", "--position", "1"]).ok();
    assert_eq!(site.names(), ["first", "a", "b"]);
    let file = "tasks:\n  - {name: b, command: 'true'}\n  - {name: first, command: 'true'}\n  \
                - {name: new, backend: test, action: echo, params: {message: hi}, selector: 'group:web'}\n  \
                - {name: a, command: 'false', blocking: true, timeout: 1m}\n";
    site.dev.write("tasks.yaml", file);
    let dry = site.run(&["task", "apply", "-f", "tasks.yaml", "--dry-run"]).ok();
    assert!(dry.contains("nothing was changed"), "{dry}");
    assert_eq!(site.names(), ["first", "a", "b"]);
    let applied = site.run(&["task", "apply", "-f", "tasks.yaml"]).ok();
    assert!(applied.contains("+  3  new   added"), "{applied}");
    assert!(applied.contains("~  4  a     blocking, command, timeout (was 2)"), "{applied}");
    assert!(applied.contains('↕'), "{applied}");
    assert_eq!(site.names(), ["b", "first", "new", "a"]);
    let again = site.json(&["task", "apply", "-f", "tasks.yaml"]);
    assert!(again["changes"].as_array().unwrap().iter().all(|change| change["change"] == "keep"), "{again}");

    // Standard input.
    let mut command = site.dev.command(&["--cluster", "prod", "task", "apply", "-f", "-", "-o", "json"]);
    command.stdin(Stdio::piped());
    let mut process = Process::spawn(command);
    process.write("tasks: [{name: a, command: 'true'}]\n");
    let changes = process.wait().json();
    assert_eq!(
        changes["changes"].as_array().unwrap().iter().filter(|change| change["change"] == "delete").count(),
        3
    );
    assert_eq!(site.names(), ["a"]);

    site.dev.write(
        "broken.yaml",
        "tasks:\n  - name: a\n    command: x\n    timeout: 1s\n  - name: a\n    comand: y\n",
    );
    let broken = site.run(&["task", "apply", "-f", "broken.yaml"]);
    assert_eq!(broken.code, 2, "{broken:?}");
    assert!(broken.stderr.contains("broken.yaml:4:14: tasks[0].timeout: "), "{broken:?}");
    assert!(broken.stderr.contains("broken.yaml:6:5: tasks[1].comand: "), "{broken:?}");
    assert_eq!(site.run(&["task", "apply", "-f", "missing.yaml"]).code, 2);
    assert_eq!(site.names(), ["a"]);
}

#[test]
fn the_list_is_edited_by_name() {
    let site = Site::start(&[]);
    for name in ["a", "b", "c"] {
        site.run(&["task", "add", name, "--command", "true"]).ok();
    }
    let twice = site.run(&["task", "add", "a", "--command", "true"]);
    assert_eq!(twice.code, 5, "{twice:?}");
    let short = site.run(&["task", "add", "d", "--command", "true", "--timeout", "1s"]);
    assert_eq!((short.code, short.stderr.contains("timeout: ")), (2, true), "{short:?}");
    let order = site.run(&["task", "reorder", "c", "a", "b"]).ok();
    assert_eq!(site.names(), ["c", "a", "b"], "{order}");
    let few = site.run(&["task", "reorder", "c", "a"]);
    assert_eq!((few.code, few.stderr.contains("missing: b")), (2, true), "{few:?}");
    let updated = site.json(&[
        "task",
        "update",
        "b",
        "--name",
        "d",
        "--blocking",
        "--command",
        "id",
        "--selector",
        "group:web",
    ]);
    assert_eq!((&updated["name"], &updated["blocking"]), (&json!("d"), &json!(true)), "{updated}");
    assert_eq!((&updated["params"]["command"], &updated["order"]), (&json!("id"), &json!(3)), "{updated}");
    let id = updated["id"].as_str().unwrap();
    let everywhere = site.dev.json(&["task", "update", id, "--selector", "all"]);
    assert_eq!(everywhere["selector"], Value::Null, "{everywhere}");
    site.run(&["task", "delete", "a"]).ok();
    assert_eq!(site.names(), ["c", "d"]);
    let unknown = site.run(&["task", "show", "cc"]);
    assert_eq!(
        (unknown.code, unknown.stderr.contains("has no standing task `cc`")),
        (4, true),
        "{unknown:?}"
    );
}

#[test]
fn the_output_of_a_deleted_task_is_found_by_its_id() {
    let site = Site::start(&["web-01"]);
    site.add("install", "echo installed", &[]);
    site.complete(1);
    let id = site.json(&["task", "show", "install"])["id"].as_str().unwrap().to_owned();
    site.run(&["task", "delete", "install"]).ok();
    assert_eq!(site.run(&["task", "logs", "install", "--node", "web-01"]).code, 4);
    assert_eq!(site.run(&["task", "logs", &id, "--node", "web-01"]).ok(), "installed\n");
    let executions = site.json(&["task", "executions", &id, "--node", "web-01", "--status", "succeeded"]);
    assert_eq!(executions["data"][0]["task"], "install", "{executions}");
    let unknown = id.replace(|c: char| c.is_ascii_digit(), "0");
    assert_eq!(site.run(&["task", "executions", &unknown]).code, 4);
}

#[test]
fn a_cluster_is_deleted_after_its_name_was_confirmed_and_its_agents_exit() {
    let site = Site::start(&["web-01"]);
    site.add("install", "true", &[]);
    site.complete(1);
    let updated =
        site.dev.json(&["cluster", "update", "prod", "--name", "prod-2", "--on-register", "resume"]);
    assert_eq!(
        (&updated["name"], &updated["on_register"]),
        (&json!("prod-2"), &json!("resume")),
        "{updated}"
    );
    assert_eq!(site.dev.run(&["cluster", "show", "prod"]).code, 4);
    assert_eq!(site.dev.run(&["cluster", "create", "prod-2"]).code, 5);
    assert_eq!(site.dev.run(&["cluster", "update", "prod-2"]).code, 2);
    assert_eq!(site.dev.run(&["cluster", "create", "a/b"]).code, 2);
    assert_eq!(site.dev.run(&["cluster", "create", ".."]).code, 2);
    let run = ["--cluster", "prod-2", "job", "run", "--target", "all", "--wait", "test", "noop"];
    site.dev.run(&run).ok();
    assert_eq!(site.dev.run(&["run", "list"]).ok(), "no runs\n", "of the cluster `default`");
    assert_eq!(site.dev.run(&["run", "show", "last"]).code, 4);
    let last = site.dev.run(&["--cluster", "prod-2", "run", "show", "last"]).ok();
    assert!(last.contains("prod-2"), "{last}");
    let flag = site.dev.run(&["--cluster", "prod-2", "cluster", "status"]).ok();
    assert_eq!(flag, site.dev.run(&["cluster", "status", "prod-2"]).ok(), "the flag names the cluster");
    let none = site.dev.run(&["--cluster", "prod-2", "node", "list", "--status", "offline"]).ok();
    assert_eq!(none, "no nodes match\n");
    assert_eq!(site.dev.run(&["cluster", "delete", "default", "--yes"]).code, 5);
    // Nobody can be asked.
    let asked = Done::of(site.dev.command(&["cluster", "delete", "prod-2"]).stdin(Stdio::null()));
    assert_eq!((asked.code, asked.stderr.contains("--yes")), (2, true), "{asked:?}");
    let deleted = site.dev.run(&["cluster", "delete", "prod-2", "--yes"]).ok();
    assert_eq!(deleted, "cluster prod-2 is deleted; its agents exit\n");
    let ended = site.agents[0].wait();
    assert_eq!(ended.code, 4, "{ended:?}");
    assert_eq!(site.dev.run(&["cluster", "status", "prod-2"]).code, 4);
    let clusters = site.dev.json(&["cluster", "list"]);
    assert_eq!(
        (clusters["data"].as_array().unwrap().len(), &clusters["data"][0]["name"]),
        (1, &json!("default"))
    );
    // The name is free again.
    site.dev.run(&["cluster", "create", "prod-2"]).ok();
    let none = site.dev.run(&["--cluster", "prod-2", "node", "list"]).ok();
    assert!(none.contains("`downbeat agent --server HOST:4681 --cluster prod-2`"), "{none}");
}

#[test]
fn the_tour_of_the_readme_works() {
    let dev = Dev::start_with(&["--nodes", "2"]);
    let text = fs::read_to_string(example("standing/tasks.yaml")).unwrap();
    let directory = dev.dir.path().join("demo").display().to_string();
    dev.write("tasks.yaml", &text.replace("/tmp/downbeat-demo", &directory));
    let applied = dev.run(&["task", "apply", "-f", "tasks.yaml"]).ok();
    assert!(applied.ends_with("cluster default: 3 added\n"), "{applied}");
    let status = || dev.json(&["cluster", "status", "default"]);
    until("both nodes are done", || (status()["nodes_with_all_tasks_complete"] == 2).then_some(()));
    let ready = format!("{directory}/ready");
    dev.run(&["task", "add", "check", "--blocking", "--command", &format!("test -e {ready}")]).ok();
    dev.run(&["task", "add", "finish", "--command", "echo done"]).ok();
    until("both nodes are stuck", || (status()["stuck"].as_array()?.len() == 2).then_some(()));
    let page = dev.run(&["cluster", "status", "default"]).ok();
    assert!(page.contains("downbeat task rerun check --node node-1   #"), "{page}");
    fs::write(&ready, "").unwrap();
    assert_eq!(dev.run(&["task", "rerun", "check", "--failed"]).ok(), "2 nodes will do task check again\n");
    until("both nodes are done", || (status()["nodes_with_all_tasks_complete"] == 2).then_some(()));
    assert_eq!(dev.run(&["task", "logs", "finish", "--node", "node-1"]).ok(), "done\n");
}

#[test]
fn a_node_says_in_its_log_that_it_starts_its_standing_tasks_over() {
    const OVER: &str = "this node was registered before: it starts the standing tasks of its cluster over";
    let site = Site::start(&["web-01"]);
    site.add("install", "true", &[]);
    site.complete(1);
    let agent = &site.agents[0];
    assert!(!agent.log().contains(OVER), "it is new: {}", agent.log());
    agent.stop();
    agent.start();
    until("the log says it", || agent.log().contains(OVER).then_some(()));
    until("the task ran again", || (site.ran("install") == 2).then_some(()));
}
