//! Reflection: tools find the services and their messages without the protocol file.

use downbeat_testbed::Site;
use serde_json::json;

use crate::client::Client;

#[tokio::test]
async fn reflection_lists_the_services_and_the_messages_of_the_protocol() {
    let site = Site::build().start().await;
    let mut client = Client::connect(site.server.grpc());
    let reflected = client.ask(&json!({"reflect": true}));
    for version in ["v1", "v1alpha"] {
        let itself = format!("grpc.reflection.{version}.ServerReflection");
        let expected = json!(["downbeat.agent.v1.Agent", "grpc.health.v1.Health", itself]);
        assert_eq!(reflected["services"][version], expected);
    }
    let methods = reflected["methods"].as_object().unwrap();
    let mut names: Vec<&str> = methods.keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["Heartbeat", "Hello", "Output", "Poll", "Register", "Report"]);
    assert_eq!(methods["Hello"], json!(["cluster", "version", "protocol"]));
}
