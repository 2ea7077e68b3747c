//! A server without one of its vital tasks exits, and its runs go on when it starts again.

use std::io::{Read, Write};
use std::net::TcpStream;

use downbeat_testbed::shut_listener;
use serde_json::json;

use crate::site::Site;

/// Opens a stream that only the server ends, and waits for its first bytes.
fn follow(http: &str) -> TcpStream {
    let mut stream = TcpStream::connect(http).unwrap();
    write!(stream, "GET /api/v1/events?since=0 HTTP/1.1\r\nHost: {http}\r\n\r\n").unwrap();
    stream.read_exact(&mut [0; 12]).unwrap();
    stream
}

#[tokio::test]
async fn a_server_whose_port_breaks_exits_with_70_and_names_the_task() {
    let site = Site::with_agents(&["web-1"]).await;
    let ports = [(site.server.grpc(), "agents' port", "grpc"), (site.server.http(), "REST port", "http")];
    for (count, (address, task, gate)) in (1..).zip(ports) {
        let run = site.submit(&json!({"target": "all", "tasks": [site.gated("a", gate)]}), gate).await;
        site.have_begun(count).await;
        // The server does not wait for its clients.
        let _client = follow(site.server.http());
        shut_listener(site.server.pid(), address);
        let ended = site.server.wait();
        assert_eq!(ended.code, 70, "{}", ended.stderr);
        let lines: Vec<&str> = ended.stderr.lines().filter(|line| line.contains("vital task")).collect();
        let cause = format!("vital task `{task}` ended by itself");
        assert!(lines.len() == 1 && lines[0].contains(&cause), "{lines:#?}");

        site.server.serve();
        site.open(gate);
        assert_eq!(site.ended(&run).await["status"], "completed");
    }
}
