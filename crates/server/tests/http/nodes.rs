//! Nodes and clusters.

use downbeat_proto::message::{Fault, Hello, OLDEST_PROTOCOL, PROTOCOL};
use downbeat_testbed::in_process::{Setup, noop};
use reqwest::StatusCode;
use serde_json::{Value, json};

fn hostnames(list: &Value) -> Vec<&str> {
    list["data"].as_array().unwrap().iter().map(|node| node["hostname"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn nodes_are_listed_filtered_and_sorted() {
    let setup = Setup::new().await;
    setup.agent("web-02", &["web"]).await;
    setup.agent("web-01", &["web", "edge"]).await;
    setup.agent("db-01", &["db"]).await;
    assert_eq!(hostnames(&setup.ok("/nodes").await), ["db-01", "web-01", "web-02"]);
    assert_eq!(hostnames(&setup.ok("/nodes?group=web&order=desc").await), ["web-02", "web-01"]);
    assert_eq!(hostnames(&setup.ok("/nodes?sort=registered_at").await), ["web-02", "web-01", "db-01"]);
    assert_eq!(hostnames(&setup.ok("/nodes?status=offline,stale").await), Vec::<&str>::new());
    assert_eq!(hostnames(&setup.ok("/nodes?selector=group:web%20and%20not%20group:edge").await), ["web-02"]);
    assert_eq!(hostnames(&setup.ok("/nodes?q=WEB&sort=seen_at").await), ["web-02", "web-01"]);
    assert_eq!(hostnames(&setup.ok("/nodes?draining=1").await), Vec::<&str>::new());
    assert_eq!(hostnames(&setup.ok("/nodes?draining=0&q=db").await), ["db-01"]);
    let counts = setup.ok("/node-counts?by=group&selector=group:web").await;
    assert_eq!(counts["data"][1], json!({"value": "web", "nodes": {"online": 2, "stale": 0, "offline": 0}}));
    assert_eq!(setup.ok("/node-counts?by=label:zone").await["data"], json!([]));
    assert_eq!(setup.ok("/node-counts?by=status").await["data"][0]["nodes"]["online"], 3);
    let page = setup.ok("/clusters/default/nodes?limit=1&offset=1").await;
    assert_eq!(hostnames(&page), ["web-01"]);
    let next = page["pagination"]["next"].as_str().unwrap();
    assert_eq!(
        page["pagination"],
        json!({"limit": 1, "offset": 1, "total": 3, "has_more": true, "next": next})
    );
    let last = setup.ok(&format!("/clusters/default/nodes?cursor={next}")).await;
    assert_eq!(hostnames(&last), ["web-02"]);
    let other = setup.get(&format!("/nodes?order=desc&cursor={next}")).await;
    assert_eq!((other.status.as_u16(), &other.body["code"]), (400, &json!("bad_query")));
    let node = &page["data"][0];
    let known = downbeat_core::backend::Catalogue::builtin();
    let names: Vec<&str> = known.backends().iter().map(|backend| backend.name.as_str()).collect();
    assert_eq!(node["backends"], json!(names));
    assert_eq!(
        (&node["status"], &node["draining"], &node["slots"]),
        (&json!("online"), &json!(false), &json!(2))
    );
}

#[tokio::test]
async fn a_node_is_found_by_hostname_and_by_id() {
    let setup = Setup::new().await;
    let agent = setup.agent("web-01", &["web"]).await;
    let by_name = setup.ok("/nodes/web-01").await;
    assert_eq!(by_name["id"], json!(agent.node));
    assert_eq!(by_name["labels"], json!({"disk": "ssd"}));
    assert_eq!(by_name["capabilities"], json!({"cpu": 4}));
    let exec = &by_name["backends"][2];
    assert_eq!((&exec["name"], &exec["actions"][0]["name"]), (&json!("exec"), &json!("run")));
    assert_eq!(exec["actions"][0]["params"][0]["required"], true);
    assert_eq!(setup.ok(&format!("/nodes/{}", agent.node)).await, by_name);
    assert_eq!(setup.ok("/nodes/web-01?cluster=default").await, by_name);
}

#[tokio::test]
async fn a_drained_node_takes_no_new_work_until_that_is_taken_back() {
    let setup = Setup::new().await;
    setup.agent("web-01", &[]).await;
    let drained = setup.post("/nodes/web-01/drain", &json!(null)).await;
    assert_eq!((drained.status, &drained.body["draining"]), (StatusCode::OK, &json!(true)));
    assert_eq!(setup.post("/runs", &noop()).await.status, StatusCode::CONFLICT);
    let back = setup.post("/nodes/web-01/undrain", &json!(null)).await;
    assert_eq!(back.body["draining"], false);
    assert_eq!(setup.post("/runs", &noop()).await.status, StatusCode::CREATED);
}

#[tokio::test]
async fn a_nodes_executions_are_listed() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    setup.agent("web-02", &[]).await;
    let id = setup.submit(&noop()).await;
    let work = agent.take().await;
    agent.finish(&work, 0).await;
    setup.run_until(&id, |run| run["counts"]["succeeded"] == 1).await;
    let list = setup.ok("/nodes/web-01/executions").await;
    assert_eq!(list["pagination"]["total"], 1);
    let execution = &list["data"][0];
    assert_eq!((&execution["node"], &execution["task"]), (&json!("web-01"), &json!("test noop")));
    assert_eq!((&execution["run"], &execution["status"]), (&json!(id), &json!("succeeded")));
    assert_eq!(setup.ok("/nodes/web-01/executions?status=failed").await["pagination"]["total"], 0);
}

#[tokio::test]
async fn the_default_cluster_exists_from_the_start() {
    let setup = Setup::new().await;
    setup.agent("web-01", &[]).await;
    let cluster = setup.ok("/clusters/default").await;
    assert_eq!((&cluster["nodes"], &cluster["tasks"]), (&json!(1), &json!(0)));
    assert_eq!(setup.ok("/clusters").await["data"], json!([cluster]));
    assert_eq!(setup.ok(&format!("/clusters/{}", cluster["id"].as_str().unwrap())).await, cluster);
}

#[tokio::test]
async fn agents_of_neighbouring_protocols_are_accepted_and_older_ones_get_advice() {
    let setup = Setup::new().await;
    let link = setup.server.link();
    let hello = |protocol| Hello { cluster: "default".to_owned(), version: "9".to_owned(), protocol };
    for (theirs, spoken) in
        [(PROTOCOL, PROTOCOL), (PROTOCOL + 1, PROTOCOL), (OLDEST_PROTOCOL, OLDEST_PROTOCOL)]
    {
        assert_eq!(link.hello(hello(theirs)).await.unwrap().protocol, spoken, "{theirs}");
    }
    match link.hello(hello(OLDEST_PROTOCOL - 1)).await {
        Err(Fault::Rejected(why)) => assert!(why.ends_with("version 0: upgrade the agent"), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn backends_are_listed_with_the_number_of_nodes_that_offer_them() {
    let setup = Setup::new().await;
    let _agents = [setup.agent("web-01", &[]).await, setup.agent("web-02", &[]).await];
    let backends = setup.ok("/backends").await;
    let test =
        &backends["data"].as_array().unwrap().iter().find(|backend| backend["name"] == "test").unwrap();
    assert_eq!((&test["nodes"], &test["online"]), (&json!(2), &json!(2)));
    assert!(test["actions"].as_array().unwrap().iter().any(|action| action["name"] == "noop"));
    let names: Vec<&str> = backends["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|backend| backend["name"].as_str().unwrap())
        .collect();
    assert!(names.is_sorted(), "{names:?}");
    assert_eq!(setup.ok("/backends?limit=1&offset=1").await["data"], json!([backends["data"][1]]));
    assert_eq!(setup.get("/backends?cluster=nowhere").await.body["code"], "not_found");
}

#[tokio::test]
async fn a_node_whose_hostname_looks_like_an_id_is_found_by_it() {
    let setup = Setup::new().await;
    for hostname in ["0d0bea70-1111-7000-8000-000000000001", "0d0bea7011117000800000000000000a"] {
        let agent = setup.agent(hostname, &[]).await;
        for name in [hostname.to_owned(), agent.node.to_string()] {
            let node = setup.ok(&format!("/nodes/{name}")).await;
            assert_eq!((&node["hostname"], &node["id"]), (&json!(hostname), &json!(agent.node)), "{name}");
        }
        let id = setup.submit(&noop()).await;
        assert_eq!(setup.ok(&format!("/runs?node={hostname}")).await["data"][0]["id"], json!(id));
    }
}
