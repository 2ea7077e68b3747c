//! Everything at once: faults of all kinds from a printed seed while clients submit, cancel and watch; then everything
//! heals, and the records are compared with the book.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use downbeat_testbed::seed;

use crate::check::check;
use crate::cluster::{Cluster, Plan};
use crate::evidence::Evidence;
use crate::faults::{Deck, inject};
use crate::gather::{all_ended, gather};
use crate::load::submitter;
use crate::report::{Clients, table};
use crate::schedules;
use crate::standing::{self, DOOMED, editor};
use crate::watcher::Watcher;

/// In CI. `make chaos` takes minutes.
const SECONDS: u64 = 20;
/// Faults that may be there at once.
const TRACKS: u64 = 2;
const SUBMITTERS: u64 = 4;
/// A run that has not ended this long after the last fault healed never will.
const SETTLE: Duration = Duration::from_secs(90);

pub(crate) fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

type Counts = Arc<Mutex<BTreeMap<&'static str, u64>>>;

/// One fault after the other until the time is over.
async fn torment(cluster: Arc<Cluster>, seed: u64, until: Instant, counts: Counts) {
    let mut deck = Deck::new(seed);
    while Instant::now() < until {
        let fault = deck.draw();
        let begun = Instant::now();
        if !inject(&cluster, fault, &mut deck.dice).await {
            continue;
        }
        *counts.lock().unwrap().entry(fault.name()).or_default() += 1;
        println!("  {:>5.1} s  {}", begun.elapsed().as_secs_f64(), fault.name());
        let pause = Duration::from_millis(200 + deck.dice.below(2_000));
        tokio::time::sleep(pause).await;
    }
}

/// A server whose start failed is started again; one that ends by itself is remembered.
async fn supervise(cluster: Arc<Cluster>, stop: Arc<AtomicBool>) -> Vec<String> {
    let mut died = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        died.extend(cluster.supervise());
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    died
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_happens_the_records_are_what_was_done() {
    let seed = seed();
    let length = Duration::from_secs(setting("DOWNBEAT_TEST_CHAOS_SECONDS", SECONDS));
    let servers = usize::try_from(setting("DOWNBEAT_TEST_CHAOS_SERVERS", 3)).unwrap();
    let cluster = Arc::new(Cluster::start(Plan { servers, agents: 4, special: true }).await);
    println!("logs and book: {}", cluster.site());
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..SUBMITTERS)
        .map(|number| {
            let name = format!("client-{number}");
            tokio::spawn(submitter(Arc::clone(&cluster), name, seed ^ (1 + number), Arc::clone(&stop)))
        })
        .collect();
    standing::create(&cluster, DOOMED).await;
    cluster.doomed.iter().for_each(|agent| agent.start());
    let (edits_end, doom) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let editors = [
        tokio::spawn(editor(Arc::clone(&cluster), "default", seed ^ 101, Arc::clone(&edits_end))),
        tokio::spawn(editor(Arc::clone(&cluster), DOOMED, seed ^ 102, Arc::clone(&doom))),
    ];
    let watchers: Vec<_> =
        (0..2).map(|first| Watcher::start(cluster.client.clone(), first % servers)).collect();
    schedules::apply(&cluster).await;
    let counts = Counts::default();
    let until = Instant::now() + length;
    let supervisor = tokio::spawn(supervise(Arc::clone(&cluster), Arc::clone(&stop)));
    let tracks: Vec<_> = (0..TRACKS)
        .map(|track| {
            let seed = seed.wrapping_add(track << 32);
            tokio::spawn(torment(Arc::clone(&cluster), seed, until, Arc::clone(&counts)))
        })
        .collect();
    // While its nodes work.
    tokio::time::sleep(length * 2 / 3).await;
    doom.store(true, Ordering::Relaxed);
    standing::delete(&cluster, DOOMED).await;
    for track in tracks {
        track.await.unwrap();
    }
    edits_end.store(true, Ordering::Relaxed);
    let healing = Instant::now();
    let died = cluster.heal().await;
    let healed = healing.elapsed();
    stop.store(true, Ordering::Relaxed);
    let (mut submissions, mut complaints, mut seen) = (Vec::new(), Vec::new(), Clients::default());
    let died = died.into_iter().chain(supervisor.await.unwrap());
    complaints.extend(died.map(|name| format!("{name} ended by itself")));
    for client in clients {
        let submitted = client.await.unwrap();
        submissions.extend(submitted.submissions);
        complaints.extend(submitted.complaints);
        seen.refusals += submitted.refusals;
    }
    for editor in editors {
        let edits = editor.await.unwrap();
        complaints.extend(edits.complaints);
        let mut counts = counts.lock().unwrap();
        edits.counts.into_iter().for_each(|(kind, count)| *counts.entry(kind).or_default() += count);
    }
    schedules::pause(&cluster).await;
    complaints.extend(standing::ended(&cluster.doomed).await);
    let ended = all_ended(&cluster, SETTLE).await;
    let unfinished = standing::settled(&cluster, "default", SETTLE).await;
    complaints.extend(unfinished.iter().map(|walk| format!("a node does not finish its list: {walk}")));
    let settled = healing.elapsed();
    println!(
        "  everything was up after {:.1} s; every run ended after {:.1} s: {ended}",
        healed.as_secs_f64(),
        settled.as_secs_f64()
    );
    let mut evidence = Evidence { submissions, ..gather(&cluster).await };
    let last = evidence.feeds[0].last().map_or(0, |event| event.seq);
    for watcher in watchers {
        let watched = watcher.finish(last, Duration::from_secs(30)).await;
        seen.reconnects += watched.reconnects;
        complaints.extend(watched.complaints);
        evidence.watched.push(watched.events);
    }
    evidence.complaints = complaints;
    let violations = check(&evidence);
    println!("{}", table(&counts.lock().unwrap(), &evidence, &seen, &violations));
    assert!(violations.is_empty(), "{} violations; DOWNBEAT_TEST_SEED={seed}", violations.len());
}
