//! The requests that a replica refuses, and the status that it reports.

use downbeat_proto::Link;
use downbeat_proto::grpc::Client;
use downbeat_proto::message::{Fault, Hello, PROTOCOL};
use downbeat_server::{Caller, Force, Settings, StartError};
use downbeat_testbed::in_process::{Setup, noop, send};
use downbeat_testbed::{Database, eventually};
use reqwest::{Method, StatusCode};

use crate::site::{caught_up, replica, replica_settings, sqlite, url};

#[tokio::test]
async fn every_write_is_refused_with_the_primarys_address() {
    let primary = Setup::new().await;
    let replica = replica(&primary, "memory:").await;
    caught_up(&primary, &replica).await;
    let document = replica.ok("/openapi.json").await;
    let mut refused = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys().filter(|method| *method != "get") {
            let method: Method = method.to_uppercase().parse().unwrap();
            let target = path.replace("{id}", "web-1");
            let answer = send(replica.request(method.clone(), &target).json(&noop())).await;
            if path.ends_with("/plan") || path.ends_with("/validate") {
                // Dry runs; without a node there is nothing to plan for.
                assert_ne!(answer.body["code"], "read_only_replica", "{path}");
                continue;
            }
            assert_eq!(answer.status, StatusCode::CONFLICT, "{method} {path}");
            assert_eq!(answer.content_type, "application/problem+json");
            assert_eq!(answer.body["code"], "read_only_replica");
            assert_eq!(answer.body["primary"], url(&primary));
            assert!(answer.body["detail"].as_str().unwrap().contains(&url(&primary)), "{}", answer.body);
            assert_eq!(answer.headers["location"], format!("{}{target}", url(&primary)));
            refused += 1;
        }
    }
    assert!(refused >= 4, "{refused}");
    let answer = replica.get("/replication").await;
    assert_eq!((answer.status, &answer.body["code"]), (StatusCode::CONFLICT, &"read_only_replica".into()));
    assert_eq!(primary.server.service().views().last_seq().await.unwrap(), 0, "nothing was changed anywhere");
    let direct = replica.server.service().cancel(&Caller::API, &"x".into(), Force::Off).await;
    assert!(direct.is_err(), "there is no other way either");
}

#[tokio::test]
async fn a_replica_shows_its_role_its_primary_and_its_lag() {
    let primary = Setup::new().await;
    let replica = replica(&primary, "memory:").await;
    let _agent = primary.agent("web-1", &[]).await;
    caught_up(&primary, &replica).await;
    let status = replica.ok("/status").await;
    assert_eq!((&status["role"], &status["store"]), (&"replica".into(), &"memory".into()));
    let standing = &status["replica"];
    assert_eq!((&standing["primary"], &standing["seq"]), (&url(&primary).into(), &1.into()));
    assert!(standing["lag"].is_string() && standing["error"].is_null(), "{standing}");
    let servers = eventually("the servers", async || {
        let servers = replica.ok("/servers").await;
        (servers["pagination"]["total"] == 2).then_some(servers)
    })
    .await;
    let roles: Vec<_> =
        servers["data"].as_array().unwrap().iter().map(|server| (&server["name"], &server["role"])).collect();
    assert_eq!(roles, [(&"one".into(), &"primary".into()), (&"replica".into(), &"replica".into())]);
    let (_, figures) = replica.root("/metrics").await;
    for line in [
        "downbeat_replica 1",
        "downbeat_replica_connected 1",
        "downbeat_replica_lag_events 0",
        "downbeat_replica_copies 1",
    ] {
        assert!(figures.lines().any(|have| have == line), "no `{line}` in\n{figures}");
    }
    assert!(figures.lines().any(|line| line.starts_with("downbeat_replica_lag_seconds ")), "{figures}");
    let (_, figures) = primary.root("/metrics").await;
    assert!(figures.lines().any(|line| line == "downbeat_replica 0"), "{figures}");
    assert!(primary.ok("/status").await.get("replica").is_none());
}

#[tokio::test]
async fn a_replica_is_not_ready_before_it_has_a_copy() {
    let primary = Setup::new().await;
    // Nothing listens there any more.
    let gone = url(&primary);
    primary.server.stop().await;
    let replica = Setup::with(replica_settings(std::slice::from_ref(&gone), "memory:")).await;
    let (status, text) = replica.root("/readyz").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(text.contains("not complete") && text.contains(&gone), "{text}");
    let runs = replica.get("/runs").await;
    assert_eq!((runs.status, &runs.body["code"]), (StatusCode::SERVICE_UNAVAILABLE, &"not_ready".into()));
    let status = eventually("the failure to be reported", async || {
        let status = replica.ok("/status").await;
        status["replica"]["error"].is_string().then_some(status)
    })
    .await;
    assert_eq!((&status["replica"]["connected"], &status["replica"]["lag"]), (&false.into(), &().into()));
    assert_eq!(replica.root("/healthz").await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_replica_is_ready_when_it_has_a_copy() {
    let primary = Setup::new().await;
    let replica = replica(&primary, "memory:").await;
    eventually("readiness", async || (replica.root("/readyz").await.0 == StatusCode::OK).then_some(())).await;
}

#[tokio::test]
async fn agents_get_the_address_of_the_primary() {
    let primary = Setup::new().await;
    let replica = replica(&primary, "memory:").await;
    eventually("the servers", async || {
        (replica.ok("/servers").await["pagination"]["total"] == 2).then_some(())
    })
    .await;
    let link = Client::connect(&replica.server.grpc_addr().to_string()).await.unwrap();
    let hello = Hello { cluster: "default".to_owned(), version: String::new(), protocol: PROTOCOL };
    let fault = link.hello(hello).await.unwrap_err();
    let Fault::Unavailable(text) = fault else { panic!("{fault:?}") };
    assert!(
        text.contains(&url(&primary)) && text.contains(&primary.server.grpc_addr().to_string()),
        "{text}"
    );
}

#[tokio::test]
async fn stores_that_cannot_have_a_copy_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let used = sqlite(&dir, "used.db");
    let primary = Setup::on(&used).await;
    let _agent = primary.agent("web-1", &[]).await;
    let of = [url(&primary)];
    let copy = sqlite(&dir, "copy.db");
    let replica = Setup::with(replica_settings(&of, &copy)).await;
    caught_up(&primary, &replica).await;
    replica.server.stop().await;
    primary.server.stop().await;
    let refused = async |settings: Settings| match downbeat_server::start(settings).await {
        Err(error @ StartError::Store(_)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(refused(replica_settings(&of, &used)).await.contains("contains a server's runs"));
    assert!(refused(downbeat_testbed::in_process::settings(&copy, "x")).await.contains("replica's copy"));
    let database = Database::create().await;
    assert!(refused(replica_settings(&of, &database.url)).await.contains("cannot use PostgreSQL"));
    database.drop().await;
}
