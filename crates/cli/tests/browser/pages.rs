//! Requests of pages to a server that the browser reaches.

use serde_json::json;

use crate::chromium::Chromium;
use crate::evil::Site;
use downbeat_testbed::{Dev, until};

const PAGE: &str = include_str!("evil.html");

#[test]
fn a_page_of_another_site_runs_nothing_and_changes_nothing() {
    let dev = Dev::start_with(&["--nodes", "1"]);
    let run = dev.submit(&["--target", "all", "exec", "run", "--command", "sleep 1000"]);
    until("the work to begin", || (dev.run_status(&run) == "running").then_some(()));
    let events = || dev.run(&["event", "list", "--limit", "1000", "-o", "json"]).json()["data"].clone();
    let pwned = dev.dir.path().join("pwned");
    let command = format!("touch {}", pwned.display());
    let job = json!({
        "target": "all",
        "tasks": [{"backend": "exec", "action": "shell", "params": {"command": command}}],
    });
    let before = until("what the agent reported", || {
        let events = events();
        events.to_string().contains("execution_started").then_some(events)
    });

    // The control does what the server must not do: it accepts everything.
    let (page, control) = (Site::new(), Site::new());
    for (url, site) in [("evil.example", "of another site"), ("127.0.0.1", "of another port")] {
        page.set_page(
            PAGE.replace(
                "TARGETS",
                &json!([dev.url(), format!("http://127.0.0.1:{}", control.port)]).to_string(),
            )
            .replace("RUN", &run)
            .replace("JOB", &job.to_string()),
        );
        let already = page.requests().len();
        let browser = Chromium::open(&format!("http://{url}:{}/", page.port));
        until(&format!("the page {site}"), || {
            page.requests()[already..].iter().any(|request| request.line == "POST /done").then_some(())
        });
        drop(browser);
    }

    // The page could have: its requests are sent, some of them without a type.
    let sent: Vec<Option<String>> = control
        .requests()
        .into_iter()
        .filter(|request| request.line == "POST /api/v1/runs")
        .map(|request| request.content_type)
        .collect();
    assert!(sent.len() >= 2 * 5, "{sent:?}");
    assert!(sent.contains(&None), "{sent:?}");
    assert!(sent.iter().flatten().any(|kind| kind.starts_with("text/plain")), "{sent:?}");
    assert!(control.has_got("POST /api/v1/nodes/node-1/drain"));
    assert!(control.has_got(&format!("POST /api/v1/runs/{run}/cancel")));

    assert_eq!(events(), before, "nothing happened");
    assert_eq!(dev.run_status(&run), "running");
    assert!(!pwned.exists());
}

#[test]
fn a_name_that_was_rebound_to_the_server_reads_nothing() {
    let dev = Dev::start_with(&["--nodes", "1"]);
    let url = dev.url();
    let port = url.rsplit(':').next().unwrap();
    for path in ["nodes", "docs", "events"] {
        let page = Chromium::dump(&format!("http://rebound.example:{port}/api/v1/{path}"));
        assert!(page.contains("unknown_host") && !page.contains("node-1"), "{page}");
    }
    // Read by the server's own name, it is there.
    let page = Chromium::dump(&format!("http://localhost:{port}/api/v1/nodes"));
    assert!(page.contains("node-1"), "{page}");
}

#[test]
fn the_page_of_the_api_works() {
    let dev = Dev::start_with(&["--nodes", "1"]);
    let page = Chromium::dump(&format!("{}/api/v1/docs", dev.url()));
    // Its script has read the document and lists its content.
    assert!(page.contains("/api/v1/runs/{id}/cancel"), "{page}");
}
