//! Status, servers, health and metrics.

use downbeat_core::Timestamp;
use downbeat_core::execution::Stream;
use downbeat_store::OutputChunk;
use downbeat_testbed::Database;
use downbeat_testbed::in_process::{Setup, noop};
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::json;

#[tokio::test]
async fn the_status_counts_everything_there_is() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    let id = setup.submit(&noop()).await;
    let work = agent.take().await;
    agent.finish(&work, 0).await;
    setup.ended(&id).await;
    let status = setup.ok("/status").await;
    assert_eq!((&status["store"], &status["server"]), (&json!("memory"), &json!("one")));
    assert_eq!(
        status["runs"],
        json!({"pending": 0, "running": 0, "completed": 1, "failed": 0, "cancelled": 0})
    );
    assert_eq!(status["executions"]["succeeded"], 1);
    assert_eq!(status["nodes"], json!({"online": 1, "stale": 0, "offline": 0}));
    assert!(status["uptime"].as_str().unwrap().ends_with('s'));
    let servers = setup.ok("/servers").await;
    assert_eq!(servers["data"], status["servers"]);
    assert_eq!(servers["data"][0]["name"], "one");
    assert_eq!(servers["data"][0]["http"], setup.server.http_addr().to_string());
}

#[tokio::test]
async fn the_status_says_how_much_the_store_holds() {
    let (dir, database) = (tempfile::tempdir().unwrap(), Database::create().await);
    let file = format!("sqlite:{}", dir.path().join("downbeat.db").display());
    for store in ["memory:", &file, &database.url] {
        let setup = Setup::on(store).await;
        let mut agent = setup.agent("web-01", &[]).await;
        let id = setup.submit(&noop()).await;
        let work = agent.take().await;
        agent.finish(&work, 0).await;
        setup.ended(&id).await;
        let views = setup.server.service().views();
        let execution = views.executions_of(&id.as_str().into()).await.unwrap().remove(0).id;
        let text = "grüße".to_owned();
        let chunk = OutputChunk { execution, offset: 0, stream: Stream::Stdout, text, at: Timestamp::now() };
        views.append_output(&[chunk], 100).await.unwrap();
        let status = setup.ok("/status").await;
        let mut volume = status["volume"].clone();
        let disk = volume.as_object_mut().unwrap().remove("disk_bytes");
        assert_eq!(disk.is_some_and(|bytes| bytes.as_u64() > Some(50_000)), store != "memory:", "{status}");
        let events = views.last_seq().await.unwrap();
        // A growth is there after a minute.
        assert_eq!(
            volume,
            json!({"runs": 1, "executions": 1, "events": events, "output_bytes": 7}),
            "{store}"
        );
        let (_, metrics) = setup.root("/metrics").await;
        for name in ["executions", "events", "output_bytes", "disk_bytes"] {
            assert!(metrics.contains(&format!("\ndownbeat_store_{name} ")), "no {name} in\n{metrics}");
        }
        setup.server.stop().await;
    }
    database.drop().await;
}

#[tokio::test]
async fn a_server_says_that_it_lives_and_is_ready() {
    let setup = Setup::new().await;
    assert_eq!(setup.root("/healthz").await, (StatusCode::OK, "ok\n".to_owned()));
    assert_eq!(setup.root("/readyz").await, (StatusCode::OK, "ready\n".to_owned()));
}

#[tokio::test]
async fn the_figures_follow_what_happens() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    let id = setup.submit(&noop()).await;
    let work = agent.take().await;
    agent.finish(&work, 0).await;
    setup.ended(&id).await;
    let (status, text) = setup.root("/metrics").await;
    assert_eq!(status, StatusCode::OK);
    for line in [
        r#"downbeat_runs{state="completed"} 1"#,
        r#"downbeat_runs{state="running"} 0"#,
        r#"downbeat_executions_total{outcome="succeeded"} 1"#,
        r#"downbeat_nodes{status="online"} 1"#,
        "downbeat_queue_depth 0",
        "downbeat_pending_to_leased_seconds_count 1",
        r#"downbeat_http_requests_total{method="POST",path="/api/v1/runs",status="201"} 1"#,
    ] {
        assert!(text.lines().any(|have| have == line), "no `{line}` in\n{text}");
    }
    assert!(text.contains("downbeat_commit_batch_size_count"));
    assert!(text.contains("downbeat_process_resident_memory_bytes"));
}

#[tokio::test]
async fn metrics_are_in_the_format_that_the_client_accepts() {
    let setup = Setup::new().await;
    let url = format!("http://{}/metrics", setup.server.http_addr());
    let prometheus = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
    let cases = [(None, true), (Some("*/*"), true), (Some(prometheus), true), (Some("text/plain"), false)];
    for (accept, is_open) in cases {
        let request = setup.http.get(&url);
        let request = match accept {
            Some(accept) => request.header("Accept", accept),
            None => request,
        };
        let answer = request.send().await.unwrap();
        let media = answer.headers()["content-type"].to_str().unwrap().to_owned();
        let text = answer.text().await.unwrap();
        assert_eq!(media.starts_with("application/openmetrics-text;"), is_open, "{accept:?}: {media}");
        assert_eq!(media.starts_with("text/plain; version=0.0.4"), !is_open, "{accept:?}: {media}");
        assert_eq!(text.ends_with("# EOF\n"), is_open, "{accept:?}");
        assert_eq!(text.contains("# TYPE downbeat_http_requests_total counter"), !is_open, "{accept:?}");
    }
}

#[tokio::test]
async fn every_response_names_its_build_and_the_last_event() {
    let setup = Setup::new().await;
    let answer = setup.get("/status").await;
    assert_eq!(answer.headers["downbeat-build"], env!("CARGO_PKG_VERSION"));
    assert_eq!(answer.headers["downbeat-event"], "0");
    let _agent = setup.agent("web-01", &[]).await;
    setup.submit(&noop()).await;
    for path in ["/runs", "/nodes/nobody", "/nowhere"] {
        let answer = setup.get(path).await;
        let events = setup.ok("/events?follow=0").await;
        let last = events["data"].as_array().unwrap().last().unwrap()["seq"].to_string();
        assert_eq!(answer.headers["downbeat-event"], last.as_str(), "{path}");
    }
}

#[tokio::test]
async fn large_responses_are_compressed_and_streams_are_not() {
    let setup = Setup::new().await;
    let path = |path: &str| setup.request(Method::GET, path);
    let encoding = async |request: RequestBuilder, accepted: &str| {
        let response = request.header("Accept-Encoding", accepted).send().await.unwrap();
        response.headers().get("content-encoding").map(|value| value.to_str().unwrap().to_owned())
    };
    assert_eq!(encoding(path("/openapi.json"), "gzip").await.as_deref(), Some("gzip"));
    assert_eq!(encoding(path("/openapi.json"), "gzip, zstd").await.as_deref(), Some("zstd"));
    assert_eq!(encoding(path("/openapi.json"), "identity").await, None);
    assert_eq!(encoding(path("/clusters"), "gzip").await, None, "small");
    assert_eq!(encoding(path("/events"), "gzip").await, None, "a stream");
    assert_eq!(encoding(path("/replication"), "gzip").await, None, "a stream");
}

#[tokio::test]
async fn the_schema_of_the_job_file_is_served_alone() {
    let setup = Setup::new().await;
    let answer = setup.get("/schema/job").await;
    assert_eq!(answer.headers["content-type"], "application/schema+json");
    assert_eq!(answer.body, downbeat_core::spec::schema());
}
