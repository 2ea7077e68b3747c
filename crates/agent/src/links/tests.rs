//! Which link a call gets, and which failure closes which link.

use downbeat_proto::message::{
    Heartbeat, HeartbeatAnswer, Hello, Output, Poll, PollAnswer, Register, Registered, Report, ReportAnswer,
    Welcome,
};
use futures_util::FutureExt;

use super::*;

const MUCH: usize = 1024 * 1024;

/// A server that accepts connections and is never called.
#[derive(Debug, Default)]
struct Doors {
    connects: std::sync::Mutex<Vec<String>>,
    refuses: AtomicBool,
}

#[derive(Debug)]
struct Uncalled;

#[async_trait]
impl Connector for Arc<Doors> {
    async fn connect(&self, address: &str) -> Result<Arc<dyn Link>, Fault> {
        if self.refuses.load(Ordering::Relaxed) {
            return Err(Fault::Unavailable("refused".to_owned()));
        }
        self.connects.lock().unwrap().push(address.to_owned());
        Ok(Arc::new(Uncalled))
    }
}

#[async_trait]
impl Link for Uncalled {
    async fn hello(&self, _: Hello) -> Result<Welcome, Fault> {
        unreachable!()
    }
    async fn register(&self, _: Register) -> Result<Registered, Fault> {
        unreachable!()
    }
    async fn heartbeat(&self, _: Heartbeat) -> Result<HeartbeatAnswer, Fault> {
        unreachable!()
    }
    async fn poll(&self, _: Poll) -> Result<PollAnswer, Fault> {
        unreachable!()
    }
    async fn report(&self, _: Report) -> Result<ReportAnswer, Fault> {
        unreachable!()
    }
    async fn output(&self, _: Output) -> Result<(), Fault> {
        unreachable!()
    }
}

fn links() -> (Links, Arc<Doors>) {
    let doors = Arc::new(Doors::default());
    let addresses = ["a:1", "b:1"].map(str::to_owned).to_vec();
    let tuning = Tuning { backoff_least: Duration::from_millis(1), ..Tuning::default() };
    (Links::new(Arc::new(doors.clone()), addresses, "node-1".to_owned(), tuning, Dice::new(1)), doors)
}

fn timed_out() -> Result<(), Fault> {
    Err(Fault::TimedOut("no answer".to_owned()))
}

#[tokio::test]
async fn a_timeout_closes_a_link_only_if_nothing_else_was_answered_over_it_since() {
    let (links, doors) = links();
    let (slow, quick) = (links.control_link().await, links.control_link().await);
    links.note_result(&quick, &Ok(())).await;
    links.note_result(&slow, &timed_out()).await;
    assert!(links.control_link().await.is(&slow), "the server is there");
    let again = links.control_link().await;
    links.note_result(&again, &timed_out()).await;
    assert!(!links.control_link().await.is(&again));
    assert_eq!(*doors.connects.lock().unwrap(), ["a:1", "b:1"], "the next server is tried");
}

#[tokio::test]
async fn a_call_that_failed_does_not_wait_for_the_next_connection() {
    let (links, doors) = links();
    let (first, second) = (links.control_link().await, links.control_link().await);
    links.note_result(&first, &timed_out()).await;
    doors.refuses.store(true, Ordering::Relaxed);
    let connecting = links.control_link();
    tokio::pin!(connecting);
    assert!(connecting.as_mut().now_or_never().is_none(), "no server is there");
    assert!(links.note_result(&second, &timed_out()).now_or_never().is_some());
    links.move_on(&second);
    doors.refuses.store(false, Ordering::Relaxed);
    assert!(!connecting.await.is(&second));
}

#[tokio::test]
async fn a_failure_of_the_bulk_link_leaves_the_control_link_alone() {
    let (links, doors) = links();
    let control = links.control_link().await;
    for fault in [timed_out(), Err(Fault::Unavailable("reset".to_owned()))] {
        let bulk = links.link_for_output(MUCH).await;
        assert_eq!(bulk.purpose, Purpose::Bulk);
        links.note_result(&bulk, &fault).await;
        assert!(links.control_link().await.is(&control));
    }
    // After a connection failure the next message uses the control link, so that nothing waits forever.
    assert_eq!(links.link_for_output(MUCH).await.purpose, Purpose::Control);
    assert_eq!(*doors.connects.lock().unwrap(), ["a:1"; 3]);
}

#[tokio::test]
async fn a_second_connection_is_opened_for_much_output_and_closed_when_nobody_needs_it() {
    let (links, doors) = links();
    assert_eq!(links.link_for_output(100).await.purpose, Purpose::Control);
    assert_eq!(links.link_for_output(MUCH).await.purpose, Purpose::Bulk);
    assert_eq!(links.link_for_output(100).await.purpose, Purpose::Bulk, "an open link is used");
    let now = Instant::now();
    links.close_idle(now + BULK_IDLE / 2);
    assert_eq!(links.link_for_output(100).await.purpose, Purpose::Bulk);
    links.close_idle(now + BULK_IDLE * 2);
    assert_eq!(links.link_for_output(100).await.purpose, Purpose::Control);
    assert_eq!(doors.connects.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn where_no_second_connection_is_to_be_had_output_goes_over_the_first() {
    let (links, doors) = links();
    links.control_link().await;
    doors.refuses.store(true, Ordering::Relaxed);
    assert_eq!(links.link_for_output(MUCH).await.purpose, Purpose::Control);
}

#[tokio::test]
async fn the_bulk_link_follows_the_control_link_to_the_next_server() {
    let (links, doors) = links();
    links.link_for_output(MUCH).await;
    let control = links.control_link().await;
    links.note_result(&control, &Err::<(), _>(Fault::Unavailable("gone".to_owned()))).await;
    links.link_for_output(MUCH).await;
    assert_eq!(*doors.connects.lock().unwrap(), ["a:1", "a:1", "b:1", "b:1"]);
}

#[test]
fn pauses_grow_to_a_bound_and_differ() {
    let Tuning { backoff_least, backoff_most, .. } = Tuning::default();
    let mut dice = Dice::new(7);
    for (failures, most_ms) in [(1, 100), (2, 200), (3, 400), (6, 3_200), (7, 5_000), (4_000_000, 5_000)] {
        let most = Duration::from_millis(most_ms);
        let pauses: Vec<Duration> =
            (0..50).map(|_| pause(failures, backoff_least, backoff_most, &mut dice)).collect();
        assert!(pauses.iter().all(|pause| (most / 2..=most).contains(pause)), "{failures}: {pauses:?}");
        assert!(pauses.iter().any(|pause| pause != &pauses[0]));
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_connects_several_times_within_a_term_of_its_leases() {
    let term = Duration::from_secs(3);
    let (links, _) = links();
    links.set_lease_ttl(term);
    for _ in 0..50 {
        let begun = Instant::now();
        let link = links.control_link().await;
        assert!(begun.elapsed() <= term / CONNECTS_IN_TERM, "{:?}", begun.elapsed());
        links.note_result(&link, &Err::<(), _>(Fault::Unavailable("gone".to_owned()))).await;
    }
}

#[test]
fn each_address_is_complained_about_at_once_and_then_once_a_minute() {
    let mut complaints = Complaints::default();
    let begun = Instant::now();
    let due: Vec<u64> =
        (0..=150).filter(|second| complaints.is_due("a:1", begun + Duration::from_secs(*second))).collect();
    assert_eq!(due, [0, 60, 120]);
    assert!(complaints.is_due("b:1", begun));
}
