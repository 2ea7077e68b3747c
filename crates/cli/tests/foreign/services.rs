//! Reflection: tools find the services and their messages without the protocol file.

use downbeat_testbed::Site;
use serde_json::json;

use crate::client::Client;

#[tokio::test]
async fn reflection_lists_the_services_and_the_messages_of_the_protocol() {
    let site = Site::build().start().await;
    let mut client = Client::connect(site.server.grpc());
    let reflected = client.ask(&json!({"reflect": true}));
    let services: Vec<&str> =
        reflected["services"].as_array().unwrap().iter().filter_map(|name| name.as_str()).collect();
    for service in ["downbeat.agent.v1.Agent", "grpc.health.v1.Health"] {
        assert!(services.contains(&service), "{services:?}");
    }
    assert!(services.iter().any(|name| name.starts_with("grpc.reflection.v1")), "{services:?}");
    let methods = reflected["methods"].as_object().unwrap();
    let mut names: Vec<&str> = methods.keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["Heartbeat", "Hello", "Output", "Poll", "Register", "Report"]);
    assert_eq!(methods["Hello"], json!(["cluster", "version", "protocol"]));
}
