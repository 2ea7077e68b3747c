//! Requests of HTTP triggers: how senders prove that they know the secret, and everything that is refused.

use std::fs;

use downbeat_core::trigger::sign;
use downbeat_server::Settings;
use downbeat_testbed::in_process::{Answer, Setup, send, settings};
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;

const SECRET: &str = "0123456789abcdef0123";

/// A server with one node, and a job `deploy` with a trigger.
struct Site {
    setup: Setup,
    folder: TempDir,
}

fn job(trigger: &Value) -> Value {
    json!({
        "name": "deploy", "target": "all", "params": {"ref": "none", "count": 1},
        "triggers": [{"http": trigger}],
        "tasks": [{"backend": "test", "action": "echo", "params": {"message": "{{ params.ref }}"}}],
    })
}

impl Site {
    async fn new(auth: &str, params: Value) -> Self {
        let site = Self::within(settings("memory:", "one")).await;
        let trigger =
            json!({"path": "deploy", "auth": auth, "secret_file": site.secret_file(), "params": params});
        assert_eq!(site.setup.post("/jobs", &job(&trigger)).await.status, StatusCode::CREATED);
        site
    }

    async fn within(settings: Settings) -> Self {
        let (setup, folder) = (Setup::with(settings).await, TempDir::new().unwrap());
        drop(setup.agent("web-01", &["web"]).await);
        let site = Self { setup, folder };
        fs::write(site.secret_file(), format!("{SECRET}\n")).unwrap();
        site
    }

    fn secret_file(&self) -> String {
        self.folder.path().join("secret").to_string_lossy().into_owned()
    }

    fn hook(&self, path: &str) -> RequestBuilder {
        let url = format!("http://{}/hooks/{path}", self.setup.server.http_addr());
        self.setup.http.request(Method::POST, url)
    }

    /// Sends a body as GitHub does.
    fn github(&self, body: &str, delivery: &str) -> RequestBuilder {
        let signature = format!("sha256={}", sign(SECRET.as_bytes(), &[body.as_bytes()]));
        self.hook("deploy")
            .header("Content-Type", "application/json")
            .header("X-GitHub-Event", "push")
            .header("X-GitHub-Delivery", delivery)
            .header("X-Hub-Signature-256", signature)
            .body(body.to_owned())
    }

    /// Sends a form as Slack does, signed so many seconds ago.
    fn slack(&self, body: &str, ago: i64) -> RequestBuilder {
        self.slack_as("application/x-www-form-urlencoded", body, ago)
    }

    fn slack_as(&self, media: &str, body: &str, ago: i64) -> RequestBuilder {
        let at = (jiff::Timestamp::now().as_second() - ago).to_string();
        let signature = sign(SECRET.as_bytes(), &[b"v0:", at.as_bytes(), b":", body.as_bytes()]);
        self.hook("deploy")
            .header("Content-Type", media)
            .header("X-Slack-Request-Timestamp", at)
            .header("X-Slack-Signature", format!("v0={signature}"))
            .body(body.to_owned())
    }

    async fn runs(&self) -> usize {
        self.setup.ok("/runs?job=deploy").await["data"].as_array().unwrap().len()
    }

    async fn run(&self, answer: &Answer) -> Value {
        self.setup.ok(&format!("/runs/{}", answer.body["run"].as_str().unwrap())).await
    }
}

fn is_refused(answer: &Answer, status: StatusCode, code: &str) {
    assert_eq!((answer.status, &answer.body["code"]), (status, &json!(code)), "{}", answer.body);
    assert_eq!(answer.content_type, "application/problem+json");
}

const CREATED: StatusCode = StatusCode::CREATED;
const UNPROVEN: (StatusCode, &str) = (StatusCode::UNAUTHORIZED, "unproven");

#[tokio::test]
async fn a_signed_request_of_github_starts_the_job_with_params_from_its_payload() {
    let site = Site::new(
        "github",
        json!({"ref": "{{ payload.ref }} by {{ trigger.event }}", "count": "{{ payload.n }}"}),
    )
    .await;
    let started = send(site.github(r#"{"ref": "main", "n": 3}"#, "d-1")).await;
    assert_eq!((started.status, &started.body["created"]), (CREATED, &json!(true)), "{}", started.body);
    let run = site.run(&started).await;
    assert_eq!(run["by"], "trigger:http:deploy");
    assert_eq!(run["job"], "deploy");
    assert_eq!(run["job_version"], 1);
    assert_eq!(run["params"], json!({"ref": "main by push", "count": 3}));
    assert_eq!(started.body["url"], json!(format!("/api/v1/runs/{}", run["id"].as_str().unwrap())));
}

#[tokio::test]
async fn a_request_that_is_sent_again_returns_the_first_run() {
    let site = Site::new("github", json!({})).await;
    let first = send(site.github(r#"{"n": 1}"#, "d-1")).await;
    assert_eq!(first.status, CREATED);
    // The same delivery, the same signature with another delivery, and a delivery whose body differs.
    for (body, delivery) in [(r#"{"n": 1}"#, "d-1"), (r#"{"n": 1}"#, "d-2"), (r#"{"n": 2}"#, "d-1")] {
        let again = send(site.github(body, delivery)).await;
        assert_eq!(
            (again.status, &again.body["created"]),
            (StatusCode::OK, &json!(false)),
            "{body} {delivery}"
        );
        assert_eq!(again.body["run"], first.body["run"], "{body} {delivery}");
    }
    assert_eq!(site.runs().await, 1);
    assert_eq!(send(site.github(r#"{"n": 2}"#, "d-3")).await.status, CREATED);
    assert_eq!(site.runs().await, 2);
}

#[tokio::test]
async fn the_same_request_at_the_same_moment_starts_one_run() {
    let site = Site::new("github", json!({})).await;
    let sent = (0..20).map(|_| send(site.github(r#"{"n": 1}"#, "d-1")));
    let answers = futures_util::future::join_all(sent).await;
    let created = answers.iter().filter(|answer| answer.status == CREATED).count();
    assert_eq!(created, 1);
    for answer in answers {
        // A request that is in progress is sent again by its sender.
        let is_known = answer.status.is_success() || answer.body["code"] == "busy";
        assert!(is_known, "{}", answer.body);
    }
    assert_eq!(site.runs().await, 1);
}

#[tokio::test]
async fn requests_without_a_valid_signature_start_nothing() {
    let site = Site::new("github", json!({})).await;
    let body = r#"{"n": 1}"#;
    let json = |request: RequestBuilder| request.header("Content-Type", "application/json").body(body);
    let other = format!("sha256={}", sign(b"another secret of a sender", &[body.as_bytes()]));
    let right = format!("sha256={}", sign(SECRET.as_bytes(), &[body.as_bytes()]));
    let signed = |signature: &str| json(site.hook("deploy")).header("X-Hub-Signature-256", signature);
    for request in [
        json(site.hook("deploy")),
        signed(""),
        signed("sha256=zz"),
        signed(&other),
        signed(&right.replace("sha256=", "sha1=")),
        // Two signatures, one of which is right.
        signed(&right).header("X-Hub-Signature-256", &other),
        // The right signature of another body.
        site.hook("deploy")
            .header("Content-Type", "application/json")
            .header("X-Hub-Signature-256", &right)
            .body("{}"),
        // A proof of another style.
        json(site.hook("deploy")).header("X-Downbeat-Secret", SECRET),
    ] {
        let refused = send(request).await;
        is_refused(&refused, UNPROVEN.0, UNPROVEN.1);
        assert!(refused.headers.contains_key("www-authenticate"));
        assert!(!refused.body.to_string().contains(SECRET));
    }
    assert_eq!(site.runs().await, 0);
    assert_eq!(send(signed(&right)).await.status, CREATED);
}

#[tokio::test]
async fn a_form_of_slack_starts_the_job_and_an_old_or_repeated_one_does_not() {
    let site = Site::new("slack", json!({"ref": "{{ payload.text }}"})).await;
    let started = send(site.slack("command=%2Fdeploy&text=web+now", 0)).await;
    // Slack shows the text of responses with 200.
    assert_eq!(started.status, StatusCode::OK, "{}", started.body);
    assert_eq!(started.body["created"], true);
    assert!(started.body["text"].as_str().unwrap().contains("of job deploy"));
    assert_eq!(site.run(&started).await["params"]["ref"], "web now");

    is_refused(&send(site.slack("text=old", 301)).await, UNPROVEN.0, UNPROVEN.1);
    is_refused(&send(site.slack("text=future", -330)).await, UNPROVEN.0, UNPROVEN.1);
    let replayed = site.slack("text=again", 5);
    let again = replayed.try_clone().unwrap();
    let (first, second) = (send(replayed).await, send(again).await);
    assert_eq!(first.body["run"], second.body["run"]);
    assert_eq!((&first.body["created"], &second.body["created"]), (&json!(true), &json!(false)));
    assert_eq!(site.runs().await, 2);
}

#[tokio::test]
async fn the_first_requests_of_github_and_slack_only_check_the_address() {
    let site = Site::new("github", json!({})).await;
    let signature = format!("sha256={}", sign(SECRET.as_bytes(), &[b"{}"]));
    let ping =
        site.hook("deploy").header("Content-Type", "application/json").header("X-GitHub-Event", "ping");
    let ping = send(ping.header("X-Hub-Signature-256", signature).body("{}")).await;
    assert_eq!((ping.status, &ping.body["text"]), (StatusCode::OK, &json!("pong")));
    assert_eq!(site.runs().await, 0);

    let site = Site::new("slack", json!({})).await;
    let body = r#"{"type": "url_verification", "challenge": "3eZbrw1aB"}"#;
    let checked = send(site.slack_as("application/json", body, 0)).await;
    assert_eq!((checked.status, &checked.body["challenge"]), (StatusCode::OK, &json!("3eZbrw1aB")));
    assert_eq!(site.runs().await, 0);
}

#[tokio::test]
async fn a_shared_secret_is_sent_in_a_header() {
    let site = Site::new("secret", json!({})).await;
    let plain = site.hook("deploy").header("X-Downbeat-Secret", SECRET);
    assert_eq!(send(plain).await.status, CREATED, "without a body");
    let bearer = site.hook("deploy").bearer_auth(SECRET).json(&json!({"n": 1}));
    assert_eq!(send(bearer).await.status, CREATED);
    for request in [
        site.hook("deploy").json(&json!({})),
        site.hook("deploy").bearer_auth("0123456789abcdef0124").json(&json!({})),
        site.hook("deploy").basic_auth("deploy", Some(SECRET)).json(&json!({})),
        site.hook("deploy").header("X-Downbeat-Secret", "").json(&json!({})),
    ] {
        is_refused(&send(request).await, UNPROVEN.0, UNPROVEN.1);
    }
    let keyed =
        |body: &Value| site.hook("deploy").bearer_auth(SECRET).header("Idempotency-Key", "k").json(body);
    let first = send(keyed(&json!({"n": 2}))).await;
    let again = send(keyed(&json!({"n": 2}))).await;
    assert_eq!((first.status, again.status), (CREATED, StatusCode::OK));
    assert_eq!(first.body["run"], again.body["run"]);
    let other = send(keyed(&json!({"n": 3}))).await;
    is_refused(&other, StatusCode::UNPROCESSABLE_ENTITY, "idempotency_key_reused");
}

#[tokio::test]
async fn a_secret_that_cannot_be_used_starts_nothing_and_a_changed_one_counts_at_once() {
    let site = Site::new("secret", json!({})).await;
    let ask = || send(site.hook("deploy").bearer_auth(SECRET));
    assert_eq!(ask().await.status, CREATED);
    fs::write(site.secret_file(), "another secret of this job").unwrap();
    is_refused(&ask().await, UNPROVEN.0, UNPROVEN.1);
    for content in ["", "short", &"x".repeat(5_000)] {
        fs::write(site.secret_file(), content).unwrap();
        let refused = ask().await;
        is_refused(&refused, StatusCode::SERVICE_UNAVAILABLE, "unavailable");
        assert!(!refused.body.to_string().contains(&site.secret_file()), "{}", refused.body);
    }
    fs::remove_file(site.secret_file()).unwrap();
    is_refused(&ask().await, StatusCode::SERVICE_UNAVAILABLE, "unavailable");
}

#[tokio::test]
async fn what_cannot_be_read_is_refused_after_the_signature() {
    let site = Site::new("github", json!({"count": "{{ payload.n }}"})).await;
    for (body, code) in [
        ("{\"n\":", "rejected"),
        ("not json", "rejected"),
        (r#"{"m": 1}"#, "invalid_params"),
        (r#"{"n": "many"}"#, "invalid_params"),
        ("[]", "invalid_params"),
    ] {
        let refused = send(site.github(body, body)).await;
        is_refused(&refused, StatusCode::UNPROCESSABLE_ENTITY, code);
    }
    let broken = send(site.github("{\"n\":", "x")).await.body["detail"].clone();
    assert_eq!(broken, "the body is not valid JSON: EOF while parsing a value at line 1 column 5");
    let huge = format!("{{\"n\": \"{}\"}}", "x".repeat(1024 * 1024));
    is_refused(&send(site.github(&huge, "huge")).await, StatusCode::PAYLOAD_TOO_LARGE, "too_large");
    let yaml = site.hook("deploy").header("Content-Type", "application/yaml").body("n: 1");
    let signature = format!("sha256={}", sign(SECRET.as_bytes(), &[b"n: 1"]));
    let yaml = send(yaml.header("X-Hub-Signature-256", signature)).await;
    is_refused(&yaml, StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type");
    assert_eq!(site.runs().await, 0);
}

#[tokio::test]
async fn an_unknown_path_reveals_no_others() {
    let site = Site::new("github", json!({})).await;
    // Clients request `/hooks/..` as `/`, which is the page of the web UI.
    let unknown = ["deplo", "DEPLOY", "deploy%2f", "deploy/x", ""].map(|path| (path, StatusCode::NOT_FOUND));
    for (path, status) in unknown.into_iter().chain([("..", StatusCode::METHOD_NOT_ALLOWED)]) {
        let refused = send(site.hook(path).json(&json!({}))).await;
        assert_eq!(refused.status, status, "{path}");
        assert!(!refused.body["detail"].as_str().unwrap().contains("deploy`; did"), "{}", refused.body);
    }
    let refused = send(site.hook("deplo").json(&json!({}))).await;
    assert_eq!(refused.body["detail"], "no trigger has this path");
    let read = site.setup.http.get(format!("http://{}/hooks/deploy", site.setup.server.http_addr()));
    assert_eq!(send(read).await.status, StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn a_path_without_authentication_accepts_programs_and_no_pages() {
    let site = Site::within(settings("memory:", "one")).await;
    let applied = site.setup.post("/jobs", &job(&json!({"path": "open", "auth": "none"}))).await;
    assert_eq!(applied.body["job"]["hooks"], json!(["/hooks/open"]), "{}", applied.body);
    assert_eq!(send(site.hook("open")).await.status, CREATED);
    assert_eq!(send(site.hook("open").json(&json!({}))).await.status, CREATED);
    let form = |request: RequestBuilder| {
        request.header("Content-Type", "application/x-www-form-urlencoded").body("a=1")
    };
    is_refused(
        &send(form(site.hook("open"))).await,
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "unsupported_media_type",
    );
    let page = site.hook("open").header("Origin", "https://evil.example").json(&json!({}));
    is_refused(&send(page).await, StatusCode::FORBIDDEN, "cross_site");
    let page = form(site.hook("open")).header("Sec-Fetch-Site", "cross-site").bearer_auth("x");
    is_refused(&send(page).await, StatusCode::FORBIDDEN, "cross_site");
    assert_eq!(site.runs().await, 2);
}

#[tokio::test]
async fn a_flood_on_one_path_is_bounded_and_leaves_other_paths_alone() {
    let site = Site::within(Settings { hook_rate: 5, ..settings("memory:", "one") }).await;
    site.setup
        .post("/jobs", &job(&json!({"path": "deploy", "auth": "secret", "secret_file": site.secret_file()})))
        .await;
    let mut other = job(&json!({"path": "other", "auth": "none"}));
    other["name"] = json!("other");
    site.setup.post("/jobs", &other).await;
    // Requests without the secret do not use up the rate.
    for _ in 0..50 {
        is_refused(&send(site.hook("deploy")).await, UNPROVEN.0, UNPROVEN.1);
    }
    let sent = (0..200).map(|_| send(site.hook("deploy").bearer_auth(SECRET)));
    let answers = futures_util::future::join_all(sent).await;
    let refused: Vec<&Answer> = answers.iter().filter(|answer| answer.status != CREATED).collect();
    // At least the burst, and what was added while the requests were sent.
    let created = answers.len() - refused.len();
    assert!((5..150).contains(&created), "{created} were accepted");
    for answer in refused {
        is_refused(answer, StatusCode::TOO_MANY_REQUESTS, "too_many_requests");
        assert_eq!(answer.headers["retry-after"], "1");
    }
    assert_eq!(send(site.hook("other")).await.status, CREATED);
    assert_eq!(site.runs().await, created);
}

#[tokio::test]
async fn a_paused_job_and_one_that_cannot_run_refuse_requests() {
    let site = Site::new("secret", json!({})).await;
    let ask = || send(site.hook("deploy").bearer_auth(SECRET));
    site.setup.post("/jobs/deploy/pause", &json!({})).await;
    let refused = ask().await;
    is_refused(&refused, StatusCode::CONFLICT, "conflict");
    assert_eq!(refused.body["detail"], "job `deploy` is paused: its triggers start no runs");
    // Only senders that know the secret learn it.
    is_refused(&send(site.hook("deploy")).await, UNPROVEN.0, UNPROVEN.1);
    site.setup.post("/jobs/deploy/resume", &json!({})).await;
    assert_eq!(ask().await.status, CREATED);
    let mut nowhere = job(&json!({"path": "deploy", "auth": "secret", "secret_file": site.secret_file()}));
    nowhere["target"] = json!("group:nobody");
    site.setup.post("/jobs", &nowhere).await;
    is_refused(&ask().await, StatusCode::CONFLICT, "refused");
    site.setup.delete("/jobs/deploy").await;
    is_refused(&ask().await, StatusCode::NOT_FOUND, "not_found");
}

#[tokio::test]
async fn a_path_belongs_to_one_job_of_all_clusters() {
    let site = Site::new("secret", json!({})).await;
    site.setup.cluster("other").await;
    let mut second = job(&json!({"path": "deploy", "auth": "none"}));
    second["name"] = json!("second");
    for cluster in ["default", "other"] {
        second["cluster"] = json!(cluster);
        let refused = site.setup.post("/jobs", &second).await;
        is_refused(&refused, StatusCode::CONFLICT, "conflict");
        let detail =
            "job `deploy` of cluster `default` has a trigger with the path `deploy`; choose another path";
        assert_eq!(refused.body["detail"], detail);
    }
    // A path that its job gives up is free.
    site.setup.post("/jobs", &job(&json!({"path": "moved", "auth": "none"}))).await;
    assert_eq!(site.setup.post("/jobs", &second).await.status, CREATED);
}

#[tokio::test]
async fn a_circle_of_jobs_is_refused_by_name() {
    let setup = Setup::new().await;
    let job = |name: &str, after: &[&str]| {
        let triggers: Vec<Value> = after.iter().map(|after| json!({"job": {"name": after}})).collect();
        let mut job = json!({"name": name, "tasks": [{"backend": "test", "action": "noop"}]});
        if !triggers.is_empty() {
            job["triggers"] = json!(triggers);
        }
        job
    };
    for (name, after) in [("a", vec!["c"]), ("b", vec!["a"]), ("d", vec!["a", "b"])] {
        assert_eq!(setup.post("/jobs", &job(name, &after)).await.status, CREATED, "{name}");
    }
    let refused = setup.post("/jobs", &job("c", &["b"])).await;
    is_refused(&refused, StatusCode::UNPROCESSABLE_ENTITY, "invalid_definition");
    let detail = refused.body["detail"].as_str().unwrap();
    assert!(detail.ends_with("the jobs would start each other in a circle: c → a → b → c"), "{detail}");
    // Through an update, too.
    assert_eq!(setup.post("/jobs", &job("c", &[])).await.status, CREATED);
    assert_eq!(setup.post("/jobs", &job("c", &["d"])).await.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(setup.delete("/jobs/a").await.status, StatusCode::NO_CONTENT);
    assert_eq!(setup.post("/jobs", &job("c", &["b"])).await.status, StatusCode::OK);
}
