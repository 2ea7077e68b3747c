//! The web UI: its page for every path, its files under their hash, and which requests are refused.

use downbeat_testbed::in_process::Setup;
use reqwest::header::HeaderMap;
use reqwest::{Method, RequestBuilder, StatusCode};

fn request(setup: &Setup, method: Method, path: &str) -> RequestBuilder {
    setup.http.request(method, format!("http://{}{path}", setup.server.http_addr()))
}

async fn get(setup: &Setup, path: &str) -> (StatusCode, HeaderMap, Vec<u8>) {
    let response = request(setup, Method::GET, path).send().await.unwrap();
    let (status, headers) = (response.status(), response.headers().clone());
    (status, headers, response.bytes().await.unwrap().to_vec())
}

/// Returns the paths of the files that the page names.
async fn files(setup: &Setup) -> Vec<String> {
    let (_, _, body) = get(setup, "/ui/").await;
    let page = String::from_utf8(body).unwrap();
    let quoted = page.split('"').filter(|text| text.starts_with("/ui/a/"));
    quoted.map(str::to_owned).collect()
}

#[tokio::test]
async fn every_path_of_the_ui_is_the_page_and_the_root_leads_there() {
    let setup = Setup::new().await;
    let (_, _, page) = get(&setup, "/ui/").await;
    for path in ["/", "/ui", "/ui/runs", "/ui/runs/some-id/matrix?x=1", "/ui/nodes/a%20b"] {
        let (status, headers, body) = get(&setup, path).await;
        assert_eq!((status, &body), (StatusCode::OK, &page), "{path}");
        assert_eq!(headers["content-type"], "text/html; charset=utf-8");
        assert_eq!(headers["cache-control"], "no-cache");
    }
}

#[tokio::test]
async fn the_page_may_load_nothing_from_elsewhere_and_nothing_inline() {
    let setup = Setup::new().await;
    let (_, headers, body) = get(&setup, "/ui/").await;
    let policy = headers["content-security-policy"].to_str().unwrap();
    assert!(policy.contains("default-src 'self'") && policy.contains("frame-ancestors 'none'"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    let page = String::from_utf8(body).unwrap();
    assert!(!page.contains("<style") && !page.contains("style=") && !page.contains("http"), "{page}");
}

#[tokio::test]
async fn a_page_that_the_browser_has_is_not_sent_again() {
    let setup = Setup::new().await;
    let (_, headers, _) = get(&setup, "/ui/").await;
    let tag = headers["etag"].to_str().unwrap();
    for known in [tag.to_owned(), format!("\"other\", {tag}"), format!("W/{tag}")] {
        let request = request(&setup, Method::GET, "/ui/runs").header("if-none-match", known);
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), StatusCode::NOT_MODIFIED);
        assert_eq!(response.headers()["etag"], tag);
    }
    let changed = request(&setup, Method::GET, "/ui/").header("if-none-match", "\"other\"");
    assert_eq!(changed.send().await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn files_are_kept_for_good_and_unknown_ones_are_not_the_page() {
    let setup = Setup::new().await;
    let files = files(&setup).await;
    assert!(files.len() >= 2, "{files:?}");
    for path in &files {
        let (status, headers, body) = get(&setup, path).await;
        assert_eq!(status, StatusCode::OK, "{path}");
        assert!(headers["cache-control"].to_str().unwrap().contains("immutable"));
        let packed =
            request(&setup, Method::GET, path).header("accept-encoding", "gzip").send().await.unwrap();
        assert_eq!(packed.headers()["content-encoding"], "gzip");
        assert_eq!(packed.headers()["content-type"], headers["content-type"]);
        assert!(packed.bytes().await.unwrap().len() < body.len());
    }
    let of_another_build = files[0].replacen("/ui/a/", "/ui/a/0", 1);
    for path in ["/ui/a/", "/ui/a/app.js", &of_another_build, &format!("{}x", files[0])] {
        let (status, headers, _) = get(&setup, path).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{path}");
        assert_eq!(headers["content-type"], "application/problem+json");
    }
}

#[tokio::test]
async fn the_page_is_refused_under_a_foreign_name() {
    let setup = Setup::new().await;
    for path in ["/", "/ui/", "/ui/a/x/app.js"] {
        let request = request(&setup, Method::GET, path).header("host", "evil.example");
        assert_eq!(request.send().await.unwrap().status(), StatusCode::MISDIRECTED_REQUEST, "{path}");
    }
}
