//! Tests of the clock with a store and with this machine's clock. `steady` has the table of readings.

use downbeat_store::{DirectWrites, MemoryStore, Wrapped, Wrapper};
use uuid::Uuid;

use super::*;

const PAUSE: Duration = Duration::from_secs(1);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn wall(seconds: i64) -> (Wall, Arc<Mutex<Timestamp>>) {
    let time = Arc::new(Mutex::new(at(seconds)));
    let shared = Arc::clone(&time);
    (Arc::new(move || *shared.lock().unwrap()), time)
}

fn server(id: u128, seen_at: Timestamp) -> ServerRecord {
    ServerRecord {
        id: ServerId(Uuid::from_u128(id)),
        name: format!("s{id}"),
        http: String::new(),
        grpc: String::new(),
        version: String::new(),
        started_at: at(0),
        seen_at,
        level: 1,
    }
}

/// A shared store whose clock the test sets.
#[derive(Debug)]
struct Shared {
    memory: Arc<MemoryStore>,
    now: Arc<Mutex<Timestamp>>,
}

#[async_trait::async_trait]
impl Wrapper for Shared {
    fn store(&self) -> &dyn Store {
        &*self.memory
    }

    fn is_shared(&self) -> bool {
        true
    }

    async fn now(&self) -> Result<Option<Timestamp>, store::Error> {
        Ok(Some(*self.now.lock().unwrap()))
    }
}

fn shared(seconds: i64) -> (Arc<MemoryStore>, Wrapped<Shared>) {
    let memory = Arc::new(MemoryStore::new());
    let now = Arc::new(Mutex::new(at(seconds)));
    (Arc::clone(&memory), Wrapped(Shared { memory, now }))
}

#[tokio::test(start_paused = true)]
async fn without_a_clock_in_the_store_the_machines_own_is_followed_and_its_jumps_are_not() {
    let (wall, time) = wall(10_000);
    let clock = Clock::new(wall);
    assert_eq!(clock.now(), at(10_000));
    for jump_s in [-3_600, 7_200] {
        *time.lock().unwrap() = at(10_000 + jump_s);
        let before = clock.now();
        tokio::time::advance(Duration::from_secs(10)).await;
        let elapsed = clock.now().duration_since(before).as_millis();
        assert!((9_900..=10_100).contains(&elapsed), "{elapsed} ms after a jump of {jump_s} s");
    }
}

#[tokio::test(start_paused = true)]
async fn the_stores_clock_counts_on_whatever_the_machines_own_does() {
    let (wall, time) = wall(100);
    let clock = Clock::new(wall);
    clock.set(at(5_000), Instant::now(), Instant::now());
    assert_eq!(clock.now(), at(5_000));
    *time.lock().unwrap() = at(9_999_999);
    tokio::time::advance(Duration::from_secs(3)).await;
    assert_eq!(clock.now(), at(5_003));
}

#[tokio::test(start_paused = true)]
async fn half_of_the_round_trip_is_added_and_a_slow_answer_changes_nothing() {
    let clock = Clock::new(wall(0).0);
    let asked = Instant::now();
    tokio::time::advance(Duration::from_millis(200)).await;
    clock.set(at(50), asked, Instant::now());
    assert_eq!(clock.now(), at(50) + Duration::from_millis(100));
    let asked = Instant::now();
    tokio::time::advance(Duration::from_secs(20)).await;
    clock.set(at(50), asked, Instant::now());
    assert_eq!(clock.now(), at(70) + Duration::from_millis(100));
    tokio::time::advance(Duration::from_secs(20)).await;
    assert_eq!(clock.now(), at(90) + Duration::from_millis(100));
}

#[tokio::test(start_paused = true)]
async fn a_store_whose_clock_jumps_moves_the_time_slowly() {
    let (_, store) = shared(50_000);
    let clock = Clock::new(wall(0).0);
    clock.begin(&store, PAUSE).await.unwrap();
    *store.0.now.lock().unwrap() = at(50_000 - 7_200);
    clock.set_by(&store).await.unwrap();
    tokio::time::advance(Duration::from_secs(100)).await;
    assert_eq!(clock.now(), at(50_099));
}

#[tokio::test(start_paused = true)]
async fn a_server_starts_with_the_time_of_the_others_after_the_stores_clock_was_set() {
    for set_by_s in [3_600, 14, -14, -3_600] {
        let (memory, store) = shared(50_000 + set_by_s);
        memory.put_server(&server(1, at(50_000))).await.unwrap();
        let begun = Instant::now();
        let alive = tokio::spawn(async move {
            for second in 1.. {
                tokio::time::sleep(PAUSE).await;
                memory.put_server(&server(1, at(50_000 + second))).await.unwrap();
            }
        });
        // The server starts between two heartbeats of the other one.
        tokio::time::sleep(PAUSE * 9 / 10).await;
        let clock = Clock::new(wall(0).0);
        clock.begin(&store, PAUSE).await.unwrap();
        alive.abort();
        let behind = (at(50_000) + begun.elapsed()).duration_since(clock.now());
        let most = SignedDuration::try_from(PAUSE / 8).unwrap();
        assert!(behind.abs() <= most, "{behind:?} behind after the clock was set by {set_by_s} s");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_starts_with_the_stores_time_if_all_others_are_gone() {
    let (memory, store) = shared(50_000);
    memory.put_server(&server(1, at(40_000))).await.unwrap();
    let clock = Clock::new(wall(0).0);
    clock.begin(&store, PAUSE).await.unwrap();
    assert!((at(50_000)..at(50_003)).contains(&clock.now()), "{}", clock.now());
}

#[tokio::test(start_paused = true)]
async fn a_server_does_not_start_before_a_recorded_heartbeat() {
    let memory = MemoryStore::new();
    memory.put_server(&server(1, at(50_000))).await.unwrap();
    let clock = Clock::new(wall(46_400).0);
    clock.begin(&memory, PAUSE).await.unwrap();
    assert_eq!(clock.now(), at(50_000));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_was_suspended_follows_the_others() {
    let clock = Clock::new(wall(0).0);
    clock.set(at(50_000), Instant::now(), Instant::now());
    assert!(
        !clock.follow(&[server(1, at(50_000) + PRECISE), server(2, at(1))]),
        "clocks may differ by this much"
    );
    assert!(clock.follow(&[server(1, at(53_600)), server(2, at(1))]));
    assert_eq!(clock.now(), at(53_600));
}
