//! Triggers: a request over a real connection starts a job, and jobs start each other.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use downbeat_core::trigger::sign;
use downbeat_testbed::{Dev, until};
use serde_json::Value;

const SECRET: &str = "0123456789abcdef0123";

/// Sends a request as programs of others do. Returns the status line and the body.
fn post(dev: &Dev, path: &str, headers: &str, body: &str) -> (String, Value) {
    let address = dev.http();
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n{headers}\r\n{body}"
    )
    .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.lines().next().unwrap().to_owned();
    (status, serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {text}")))
}

fn runs(dev: &Dev, job: &str) -> Vec<Value> {
    let done = dev.run(&["run", "list", "--job", job, "-o", "json"]);
    let list: Value = serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done:?}"));
    list["data"].as_array().unwrap().clone()
}

#[test]
fn a_signed_request_starts_a_job_that_starts_others() {
    let dev = Dev::start();
    let secret = dev.write("deploy.secret", &format!("{SECRET}\n"));
    let secret = std::path::absolute(secret).unwrap();
    let task = "tasks:\n  - {backend: test, action: echo, params: {message: \"{{ params.ref }}\"}}\n";
    std::fs::create_dir(dev.dir.path().join("jobs")).unwrap();
    dev.write(
        "jobs/a.yaml",
        &format!(
            "name: a\nparams: {{ref: none}}\ntriggers:\n  - http: {{path: deploy, auth: github, secret_file: {}, params: \
             {{ref: '{{{{ payload.ref }}}}'}}}}\n{task}",
            secret.display()
        ),
    );
    let after = |job: &str, name: &str| {
        format!(
            "name: {name}\nparams: {{ref: none}}\ntriggers: [{{job: {{name: {job}, params: {{ref: '{{{{ trigger.run }}}}'}}}}}}]\n{task}"
        )
    };
    dev.write("jobs/b.yaml", &after("a", "b"));
    dev.write("jobs/c.yaml", &after("b", "c"));
    let applied = dev.run(&["job", "apply", "-f", "jobs"]);
    assert_eq!(applied.code, 0, "{applied:?}");
    let shown = dev.run(&["job", "show", "a"]);
    assert!(shown.stdout.contains("POST /hooks/deploy"), "{shown:?}");
    assert!(!shown.stdout.contains(SECRET), "{shown:?}");

    let body = "{\"ref\": \"v1\"}";
    let signature = sign(SECRET.as_bytes(), &[body.as_bytes()]);
    let headers = format!("X-GitHub-Delivery: 1\r\nX-Hub-Signature-256: sha256={signature}\r\n");
    let (status, started) = post(&dev, "/hooks/deploy", &headers, body);
    assert_eq!(status, "HTTP/1.1 201 Created", "{started}");
    let (status, again) = post(&dev, "/hooks/deploy", &headers, body);
    assert_eq!((status.as_str(), &again["run"]), ("HTTP/1.1 200 OK", &started["run"]));
    let (status, _) = post(&dev, "/hooks/deploy", "X-Hub-Signature-256: sha256=00\r\n", body);
    assert_eq!(status, "HTTP/1.1 401 Unauthorized");

    let last = until("the chain reaches its end", || {
        runs(&dev, "c").into_iter().find(|run| run["status"] == "completed")
    });
    assert_eq!(last["by"], "trigger:job:b");
    for job in ["a", "b", "c"] {
        assert_eq!(runs(&dev, job).len(), 1, "{job}");
    }
    let circle = dev.write("circle.yaml", &after("c", "a"));
    let refused = dev.run(&["job", "apply", "-f", circle.to_str().unwrap()]);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.stderr.contains("a → b → c → a"), "{refused:?}");
}
