//! Owns a client of the agents' port that shares no code with the product: Python, with stubs generated from the protocol.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use downbeat_testbed::repository;
use serde_json::{Value, json};

/// Sessions of the client's agents, in base64.
pub(crate) const SESSION: &str = "AAAAAAAAAAAAAAAAAAAAAQ==";
pub(crate) const LATER_SESSION: &str = "AAAAAAAAAAAAAAAAAAAAAg==";

pub(crate) struct Client {
    process: Child,
    commands: ChildStdin,
    responses: BufReader<ChildStdout>,
}

/// The ids of a registered node, in base64.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) cluster: Value,
    pub(crate) id: Value,
}

impl Client {
    pub(crate) fn connect(address: &str) -> Self {
        let python = std::env::var("DOWNBEAT_TEST_PYTHON").unwrap_or_else(|_| {
            panic!(
                "needs a Python with gRPC: run `make test`, or `make grpcio` and set DOWNBEAT_TEST_PYTHON to what it prints"
            )
        });
        let repository = repository();
        let mut process = Command::new(python)
            .arg(repository.join("crates/cli/tests/foreign/client.py"))
            .arg(repository.join("crates/proto/proto/agent.proto"))
            .arg(address)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (commands, responses) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        Self { process, commands, responses: BufReader::new(responses) }
    }

    /// Sends a command of `client.py`, and returns its response.
    #[track_caller]
    pub(crate) fn ask(&mut self, command: &Value) -> Value {
        writeln!(self.commands, "{command}").expect("the client runs");
        let mut line = String::new();
        self.responses.read_line(&mut line).expect("the client responds");
        serde_json::from_str(&line)
            .unwrap_or_else(|error| panic!("{error} in the response {line:?} to {command}"))
    }

    #[track_caller]
    pub(crate) fn call(&mut self, name: &str, request: &Value) -> Value {
        self.ask(&json!({"call": name, "request": request}))
    }

    /// Makes a call that has to succeed, and returns its response.
    #[track_caller]
    pub(crate) fn ok(&mut self, name: &str, request: &Value) -> Value {
        let answer = self.call(name, request);
        assert_eq!(answer["code"], "OK", "{name}: {answer}");
        answer["response"].clone()
    }

    /// Makes a call that has to fail with this code, and returns the error.
    #[track_caller]
    pub(crate) fn fails(&mut self, code: &str, name: &str, request: &Value) -> Value {
        let answer = self.call(name, request);
        assert_eq!(answer["code"], code, "{name} {request}: {answer}");
        answer
    }

    #[track_caller]
    pub(crate) fn health(&mut self, service: &str) -> Value {
        self.ask(&json!({"health": service}))
    }

    /// Introduces itself to the default cluster, and derives the id of a node there.
    #[track_caller]
    pub(crate) fn node(&mut self, hostname: &str) -> Node {
        let hello = json!({"cluster": "default", "version": "foreign", "protocol": 1});
        let cluster = self.ok("Hello", &hello)["cluster_id"].clone();
        let id = self.ask(&json!({"derive": hostname, "cluster_id": cluster}));
        Node { cluster, id }
    }

    #[track_caller]
    pub(crate) fn registered(&mut self, hostname: &str) -> Node {
        let node = self.node(hostname);
        self.ok("Register", &register(&node, hostname));
        node
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns a registration of a node whose agent has a backend of its own.
pub(crate) fn register(node: &Node, hostname: &str) -> Value {
    let backend = json!({"name": "foreign", "actions": [{"name": "greet", "params": [{"name": "who", "kind": "text"}]}]});
    let description =
        json!({"hostname": hostname, "backends": [backend], "slots": 1, "version": "foreign"}).to_string();
    json!({"cluster_id": node.cluster, "node_id": node.id, "session_id": SESSION,
           "description_json": description, "instance_id": "Zm9yZWlnbg==", "life": 1})
}

/// Returns a request with one field replaced, or removed with `null`.
pub(crate) fn with(mut request: Value, field: &str, value: Value) -> Value {
    let fields = request.as_object_mut().unwrap();
    match value {
        Value::Null => fields.remove(field),
        value => fields.insert(field.to_owned(), value),
    };
    request
}
