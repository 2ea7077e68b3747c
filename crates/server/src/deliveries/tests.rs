//! Deliveries to real services on this machine, by servers that die and by several at once.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::routing::any;
use bytes::Bytes;
use downbeat_core::backend::Params;
use downbeat_core::delivery::{Delivery, DeliveryState, DeliveryStatus, Facts, build};
use downbeat_core::ids::{ClusterId, DeliveryId, ServerId};
use downbeat_core::run::RunState;
use downbeat_core::spec::{Notification, notification_of_json};
use downbeat_core::{Change, Timestamp};
use downbeat_store::conformance::make;
use downbeat_store::{MemoryStore, Store};
use downbeat_testbed::{Database, eventually};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::net::TcpListener;
use tokio::process::{Child, ChildStdout, Command};
use tokio::runtime::Builder;
use uuid::Uuid;

use crate::{Caller, Server, Settings, Surroundings, start_within};

const SOMEBODY: ServerId = ServerId(Uuid::nil());

/// A request that the service got.
#[derive(Clone, Debug)]
struct Got {
    path: String,
    headers: HeaderMap,
    body: Bytes,
}

impl Got {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

/// A service that records requests, and answers by their path.
#[derive(Clone, Debug, Default)]
struct Receiver(Arc<Mutex<Vec<Got>>>);

impl Receiver {
    async fn start() -> (Self, SocketAddr) {
        let receiver = Self::default();
        let router = Router::new().fallback(any(answer)).with_state(receiver.clone());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        (receiver, address)
    }

    fn got(&self, path: &str) -> Vec<Got> {
        self.0.lock().unwrap().iter().filter(|got| got.path == path).cloned().collect()
    }

    async fn wait_for(&self, path: &str, count: usize) -> Vec<Got> {
        eventually("the service got the message", || async {
            Some(self.got(path)).filter(|got| got.len() >= count)
        })
        .await
    }
}

async fn answer(
    State(receiver): State<Receiver>,
    uri: axum::http::Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let path = uri.path().to_owned();
    let before = receiver.got(&path).len();
    receiver.0.lock().unwrap().push(Got { path: path.clone(), headers, body });
    match path.as_str() {
        "/fails-once" if before == 0 => (StatusCode::INTERNAL_SERVER_ERROR, "not now").into_response(),
        "/gone" => (StatusCode::GONE, "moved away").into_response(),
        "/never" => std::future::pending().await,
        "/hangs-once" if before == 0 => std::future::pending().await,
        "/large" => Body::from(vec![b'x'; 10 * 1024 * 1024]).into_response(),
        "/loop" => Redirect::temporary("/loop").into_response(),
        _ => StatusCode::NO_CONTENT.into_response(),
    }
}

fn settings(name: &str) -> Settings {
    let hooks_allow = vec!["127.0.0.1".to_owned()];
    Settings { name: name.to_owned(), hooks_allow, ..Settings::default() }
}

async fn started(name: &str, store: Arc<dyn Store>) -> Server {
    start_within(settings(name), store, Surroundings::default()).await.unwrap()
}

fn notification(value: &Value) -> Notification {
    notification_of_json(value).unwrap()
}

/// Adds an ended run to the store.
async fn add_run(store: &Arc<dyn Store>) {
    for change in [make::created(1), make::moved(1, &[RunState::Failed], 40)] {
        assert_eq!(store.commit(SOMEBODY, &[change]).await.unwrap().outcomes, [Ok(())]);
    }
}

fn delivery(notification: &Notification, place: &str) -> Delivery {
    let (run, params, now) = (make::run_id(1), Params::new(), Timestamp::now());
    let facts = Facts {
        cluster: ClusterId::DEFAULT,
        cluster_name: "default",
        run: &run,
        job: Some("backup"),
        event: "failed",
        status: "failed",
        error: Some("disk full"),
        params: &params,
        created_at: now,
        started_at: Some(now),
        finished_at: Some(now),
        now,
    };
    build(notification, &facts, place)
}

/// Queues a webhook to a path of the service, with further fields.
async fn queue(server: &Server, address: SocketAddr, path: &str, more: &Value) -> DeliveryId {
    let mut fields = json!({"action": "webhook", "url": format!("http://{address}{path}"), "timeout": "1s"});
    fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    queue_one(server, delivery(&notification(&fields), path)).await
}

async fn queue_one(server: &Server, delivery: Delivery) -> DeliveryId {
    let id = delivery.id;
    let change = Change::DeliveryQueued { delivery, epoch: 1 };
    assert_eq!(server.service().parts.journal.commit_one(change).await.unwrap(), Ok(()));
    id
}

async fn until_tried(store: &Arc<dyn Store>, id: DeliveryId, status: DeliveryStatus) -> Delivery {
    eventually("the delivery was tried", || async {
        let delivery = store.delivery(id).await.unwrap().unwrap();
        Some(delivery).filter(|delivery| delivery.last.is_some() && delivery.state.status() == status)
    })
    .await
}

/// Starts a service and a server with an ended run.
async fn site() -> (Receiver, SocketAddr, Arc<dyn Store>, Server) {
    let (receiver, address) = Receiver::start().await;
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    add_run(&store).await;
    let server = started("one", Arc::clone(&store)).await;
    (receiver, address, store, server)
}

#[tokio::test]
async fn a_webhook_is_delivered_once_with_the_facts_of_the_run() {
    let (receiver, address, store, server) = site().await;
    let id = queue(&server, address, "/ok", &json!({})).await;
    let delivered = until_tried(&store, id, DeliveryStatus::Delivered).await;
    assert_eq!((delivered.tries, delivered.last.unwrap().code), (1, Some(204)));
    let got = receiver.got("/ok");
    assert_eq!(got.len(), 1);
    assert_eq!(got[0].header("x-downbeat-delivery"), id.to_string());
    assert_eq!(got[0].header("content-type"), "application/json");
    assert_eq!(got[0].header("x-downbeat-signature"), "");
    let body: Value = serde_json::from_slice(&got[0].body).unwrap();
    assert_eq!((&body["job"], &body["error"]), (&json!("backup"), &json!("disk full")));
    let metrics = server.service().parts.metrics.encode();
    let line = r#"downbeat_deliveries_total{action="webhook",outcome="delivered"} 1"#;
    assert!(metrics.contains(line), "{metrics}");
    server.stop().await;
}

/// HMAC as RFC 2104 defines it, apart from the crate that the server uses.
fn hmac_sha256(key: &[u8], text: &[u8]) -> String {
    let mut block = [0; 64];
    block[..key.len()].copy_from_slice(key);
    let hash = |bytes: &[u8]| downbeat_core::ids::sha256_hex(bytes);
    let unhex = |hex: String| -> Vec<u8> {
        (0..hex.len())
            .step_by(2)
            .map(|place| u8::from_str_radix(&hex[place..place + 2], 16).unwrap())
            .collect()
    };
    let pad = |with: u8| block.iter().map(|byte| byte ^ with).collect::<Vec<u8>>();
    let inner = unhex(hash(&[pad(0x36), text.to_vec()].concat()));
    hash(&[pad(0x5c), inner].concat())
}

#[tokio::test]
async fn a_signed_webhook_can_be_verified_by_its_receiver() {
    let (receiver, address, _, server) = site().await;
    let secrets = tempfile::tempdir().unwrap();
    let path = secrets.path().join("hook.secret");
    std::fs::write(&path, "open sesame, please\n").unwrap();
    queue(&server, address, "/signed", &json!({"secret_file": path})).await;
    let got = receiver.wait_for("/signed", 1).await.remove(0);
    let signature = got.header("x-downbeat-signature");
    let (time, hex) = signature.strip_prefix("t=").unwrap().split_once(",v1=").unwrap();
    let age = Timestamp::now().as_second() - time.parse::<i64>().unwrap();
    assert!((0..60).contains(&age), "{signature}");
    let text = [time.as_bytes(), b".", &got.body].concat();
    assert_eq!(hex, hmac_sha256(b"open sesame, please", &text));
    server.stop().await;
}

#[tokio::test]
async fn a_missing_secret_sends_nothing_and_is_tried_again() {
    let (receiver, address, store, server) = site().await;
    let id = queue(&server, address, "/unsigned", &json!({"secret_env": "NO_SUCH_SECRET"})).await;
    let pending = until_tried(&store, id, DeliveryStatus::Pending).await;
    let error = pending.last.unwrap().error.unwrap();
    assert!(error.contains("NO_SUCH_SECRET"), "{error}");
    assert_eq!(receiver.got("/unsigned").len(), 0);
    server.stop().await;
}

#[tokio::test]
async fn a_service_that_fails_gets_the_same_message_again() {
    let (receiver, address, store, server) = site().await;
    let id = queue(&server, address, "/fails-once", &json!({})).await;
    let pending = until_tried(&store, id, DeliveryStatus::Pending).await;
    let last = pending.last.unwrap();
    assert_eq!(last.code, Some(500));
    assert!(last.error.unwrap().contains("not now"));
    let delivered = until_tried(&store, id, DeliveryStatus::Delivered).await;
    assert_eq!(delivered.tries, 2);
    let got = receiver.got("/fails-once");
    assert_eq!(got.len(), 2);
    assert_eq!(got[0].header("x-downbeat-delivery"), got[1].header("x-downbeat-delivery"));
    assert_eq!((got[0].header("x-downbeat-attempt"), got[1].header("x-downbeat-attempt")), ("1", "2"));
    assert_eq!(got[0].body, got[1].body);
    server.stop().await;
}

#[tokio::test]
async fn misbehaving_services_are_bounded_and_delay_no_other() {
    let (receiver, address, store, server) = site().await;
    let never = queue(&server, address, "/never", &json!({})).await;
    let large = queue(&server, address, "/large", &json!({})).await;
    let looping = queue(&server, address, "/loop", &json!({})).await;
    let gone = queue(&server, address, "/gone", &json!({})).await;
    assert_eq!(until_tried(&store, large, DeliveryStatus::Delivered).await.tries, 1);
    let gone = until_tried(&store, gone, DeliveryStatus::Failed).await;
    assert_eq!((gone.tries, gone.last.unwrap().code), (1, Some(410)));
    let text = |delivery: Delivery| delivery.last.unwrap().error.unwrap();
    let looping = text(until_tried(&store, looping, DeliveryStatus::Pending).await);
    assert!(looping.contains("redirected more than 3 times"), "{looping}");
    let never = text(until_tried(&store, never, DeliveryStatus::Pending).await);
    assert!(never.contains("did not answer within 1s"), "{never}");
    assert_eq!(receiver.got("/loop").len(), 4);
    server.stop().await;
}

#[tokio::test]
async fn a_webhook_to_the_server_itself_is_given_up_at_once() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    add_run(&store).await;
    let settings = Settings { hooks_allow: Vec::new(), ..settings("strict") };
    let server = start_within(settings, Arc::clone(&store), Surroundings::default()).await.unwrap();
    let fields = json!({"action": "slack", "url": "http://localhost:4680/api/v1/status"});
    let id = queue_one(&server, delivery(&notification(&fields), "self")).await;
    let failed = until_tried(&store, id, DeliveryStatus::Failed).await;
    let error = failed.last.unwrap().error.unwrap();
    assert!(error.contains("hooks_allow"), "{error}");
    server.stop().await;
}

#[tokio::test]
async fn a_delivery_is_sent_again_on_request() {
    let (receiver, address, store, server) = site().await;
    let id = queue(&server, address, "/ok", &json!({})).await;
    until_tried(&store, id, DeliveryStatus::Delivered).await;
    let again = server.service().send_again(&Caller::API, &id.to_string()).await.unwrap();
    assert_eq!(again.id, id);
    let got = receiver.wait_for("/ok", 2).await;
    assert_eq!(got[1].header("x-downbeat-delivery"), id.to_string());
    until_tried(&store, id, DeliveryStatus::Delivered).await;
    assert!(server.service().send_again(&Caller::API, "nonsense").await.is_err());
    server.stop().await;
}

#[test]
fn a_server_that_dies_while_it_sends_leaves_the_delivery_to_the_next() {
    let runtime = || Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (outside, first) = (runtime(), runtime());
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let (receiver, address) = outside.block_on(Receiver::start());
    outside.block_on(add_run(&store));
    let dying = first.block_on(started("dying", Arc::clone(&store)));
    let id = first.block_on(queue(&dying, address, "/hangs-once", &json!({})));
    outside.block_on(receiver.wait_for("/hangs-once", 1));
    // As a killed process does, without a graceful stop: nothing is recorded.
    first.shutdown_background();
    drop(dying);
    outside.block_on(async {
        let taken = store.delivery(id).await.unwrap().unwrap();
        assert_eq!((taken.tries, &taken.last), (1, &None));
        let server = started("next", Arc::clone(&store)).await;
        let delivered = until_tried(&store, id, DeliveryStatus::Delivered).await;
        assert_eq!(delivered.tries, 2);
        let got = receiver.got("/hangs-once");
        assert_eq!(got.len(), 2);
        assert_eq!(got[0].header("x-downbeat-delivery"), got[1].header("x-downbeat-delivery"));
        server.stop().await;
    });
}

#[tokio::test]
async fn three_servers_on_one_database_send_each_delivery_once() {
    const COUNT: usize = 60;
    let (receiver, address) = Receiver::start().await;
    let database = Database::create().await;
    let mut servers = Vec::new();
    for name in ["one", "two", "three"] {
        let store = downbeat_store::open(&database.url).await.unwrap();
        if servers.is_empty() {
            add_run(&store).await;
        }
        servers.push((started(name, Arc::clone(&store)).await, store));
    }
    for number in 0..COUNT {
        let (server, _) = &servers[number % 3];
        queue(server, address, &format!("/of-three/{number}"), &json!({})).await;
    }
    let store = Arc::clone(&servers[0].1);
    eventually("all are delivered", || async {
        let due = store.due_deliveries(None, 100).await.unwrap();
        due.is_empty().then_some(())
    })
    .await;
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for got in receiver.0.lock().unwrap().iter() {
        *counts.entry(got.header("x-downbeat-delivery").to_owned()).or_default() += 1;
    }
    assert_eq!(counts.len(), COUNT);
    assert!(counts.values().all(|count| *count == 1), "{counts:?}");
    for (server, _) in servers {
        server.stop().await;
    }
}

#[tokio::test]
async fn a_delivery_from_before_a_restart_is_sent_when_it_is_due() {
    let (receiver, address) = Receiver::start().await;
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    add_run(&store).await;
    let fields =
        json!({"action": "slack", "url": format!("http://{address}/later"), "text": "{{ run.job }}!"});
    let mut late = delivery(&notification(&fields), "later");
    let due_at = Timestamp::now() + Duration::from_millis(1500);
    late.state = DeliveryState::Pending { due_at };
    let queued = Change::DeliveryQueued { delivery: late, epoch: 1 };
    assert_eq!(store.commit(SOMEBODY, &[queued]).await.unwrap().outcomes, [Ok(())]);
    let server = started("one", Arc::clone(&store)).await;
    let got = receiver.wait_for("/later", 1).await;
    assert!(Timestamp::now() >= due_at);
    assert_eq!(got[0].body, r#"{"text":"backup!"}"#);
    server.stop().await;
}

/// Starts a real mail server. Returns its process, its port and the lines that it prints: one for each e-mail.
async fn mail_server() -> (Child, u16, Lines<BufReader<ChildStdout>>) {
    let python = std::env::var("DOWNBEAT_TEST_SMTP")
        .expect("this test needs a mail server: export DOWNBEAT_TEST_SMTP=$(make -s aiosmtpd)");
    let mut child = Command::new(python)
        .args(["-c", include_str!("mail_server.py")])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let port = lines.next_line().await.unwrap().unwrap().parse().unwrap();
    (child, port, lines)
}

#[tokio::test]
async fn an_email_is_delivered_by_smtp() {
    let (_mail_server, port, mut mails) = mail_server().await;
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    add_run(&store).await;
    let smtp_url = Some(format!("smtp://127.0.0.1:{port}"));
    let settings =
        Settings { smtp_url, smtp_from: Some("downbeat@example.org".to_owned()), ..settings("mail") };
    let server = start_within(settings, Arc::clone(&store), Surroundings::default()).await.unwrap();
    let to = |to: &str| json!({"action": "email", "to": to, "subject": "{{ run.job }}\nBcc: x@example.org"});
    let id = queue_one(&server, delivery(&notification(&to("ops@example.org")), "mail")).await;
    until_tried(&store, id, DeliveryStatus::Delivered).await;
    let mail: Value = serde_json::from_str(&mails.next_line().await.unwrap().unwrap()).unwrap();
    assert_eq!((&mail["from"], &mail["to"]), (&json!("downbeat@example.org"), &json!(["ops@example.org"])));
    let content = mail["content"].as_str().unwrap();
    assert!(content.contains(&format!("Message-ID: <{id}@downbeat>")), "{content}");
    assert!(content.contains("Subject: backup Bcc: x@example.org"), "{content}");
    assert!(content.contains("disk full"), "{content}");
    let refused = queue_one(&server, delivery(&notification(&to("nobody@example.org")), "nobody")).await;
    let error = until_tried(&store, refused, DeliveryStatus::Failed).await.last.unwrap().error.unwrap();
    assert!(error.contains("no such mailbox"), "{error}");
    server.stop().await;
}

#[tokio::test]
async fn an_email_without_a_mail_server_is_given_up_with_the_setting_to_set() {
    let (_, _, store, server) = site().await;
    let fields = json!({"action": "email", "to": "ops@example.org"});
    let id = queue_one(&server, delivery(&notification(&fields), "mail")).await;
    let error = until_tried(&store, id, DeliveryStatus::Failed).await.last.unwrap().error.unwrap();
    assert!(error.contains("smtp_url"), "{error}");
    server.stop().await;
}
