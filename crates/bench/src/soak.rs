//! Owns the result of `bench claims`: one row for each window of time, side by side if two loads ran at once.

use std::time::Duration;

use serde::Serialize;

use super::figures::Latencies;
use super::shares::{Share, changes_per_commit, cpu_seconds, ms_per_commit};
use super::tables::Tables;
use crate::page::Part;

/// One window of time.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Window {
    /// Its end, from the start of the load.
    pub until_seconds: f64,
    /// Leased executions.
    pub claims: u64,
    pub claims_per_second: f64,
    /// From pending to leased; 0 for executions that were created leased.
    pub wait_p50_ms: f64,
    pub wait_p99_ms: f64,
    pub changes_per_commit: f64,
    pub ms_per_commit: f64,
    pub dead_rows: i64,
    pub database_bytes: i64,
    pub server_rss_bytes: u64,
}

/// One load.
#[derive(Debug, Default, Serialize)]
pub(super) struct Side {
    pub held_transaction: bool,
    /// Executions before the load.
    pub finished: u64,
    pub claims: u64,
    pub seconds: f64,
    /// The claims of the last window relative to the first.
    pub last_of_first: f64,
    pub server_rss_bytes: u64,
    pub windows: Vec<Window>,
    pub servers: Vec<Share>,
    #[serde(flatten)]
    pub tables: Tables,
    #[serde(skip)]
    pub waits: Latencies,
}

/// The whole result.
#[derive(Debug, Serialize)]
pub(super) struct Soak {
    load: &'static str,
    store: String,
    /// The claims of all loads.
    n: u64,
    nodes: u32,
    seconds: f64,
    per_second: f64,
    /// From pending to leased.
    p50_ms: f64,
    p99_ms: f64,
    server_rss_bytes: u64,
    server_cpu_seconds: f64,
    agents_and_bench_cpu_seconds: f64,
    preload_seconds: f64,
    sides: Vec<Side>,
}

impl Window {
    /// Creates a window without its claims, which are counted after the load.
    pub(super) fn of(until: Duration, shares: &[Share], tables: &Tables, server_rss_bytes: u64) -> Self {
        Self {
            until_seconds: until.as_secs_f64(),
            changes_per_commit: changes_per_commit(shares),
            ms_per_commit: ms_per_commit(shares),
            dead_rows: tables.dead_rows(),
            database_bytes: tables.database_bytes,
            server_rss_bytes,
            ..Self::default()
        }
    }

    fn count(&mut self, waits: &Latencies, seconds: f64) {
        self.claims = waits.count();
        self.claims_per_second = waits.count() as f64 / seconds;
        self.wait_p50_ms = waits.ms(0.5);
        self.wait_p99_ms = waits.ms(0.99);
    }
}

impl Side {
    /// Counts the claims. `waits` has one entry for each window; together they took this many microseconds.
    pub(super) fn with_claims(mut self, waits: &[Latencies], micros: i64) -> Self {
        self.seconds = micros as f64 / 1e6;
        let seconds_per_window = self.seconds / waits.len() as f64;
        for (window, waits) in self.windows.iter_mut().zip(waits) {
            window.count(waits, seconds_per_window);
            self.waits.add_all(waits);
        }
        self.claims = self.waits.count();
        let rate = |window: Option<&Window>| window.map_or(0.0, |window| window.claims_per_second);
        self.last_of_first = rate(self.windows.last()) / rate(self.windows.first()).max(f64::MIN_POSITIVE);
        self
    }

    fn name(&self) -> &'static str {
        if self.held_transaction { "held transaction" } else { "no held transaction" }
    }
}

impl Soak {
    pub(super) fn of(
        store: String,
        nodes: u32,
        preloaded: Duration,
        agents_and_bench_cpu_seconds: f64,
        sides: Vec<Side>,
    ) -> Self {
        let mut waits = Latencies::default();
        for side in &sides {
            waits.add_all(&side.waits);
        }
        let seconds = sides.iter().map(|side| side.seconds).fold(0.0, f64::max);
        let cpu = sides.iter().map(|side| cpu_seconds(&side.servers)).sum();
        Self {
            load: "claims",
            store,
            n: waits.count(),
            nodes,
            seconds,
            per_second: waits.count() as f64 / seconds.max(f64::MIN_POSITIVE),
            p50_ms: waits.ms(0.5),
            p99_ms: waits.ms(0.99),
            server_rss_bytes: sides.iter().map(|side| side.server_rss_bytes).sum(),
            server_cpu_seconds: cpu,
            agents_and_bench_cpu_seconds,
            preload_seconds: preloaded.as_secs_f64(),
            sides,
        }
    }

    pub(super) fn page(&self) -> Vec<Part> {
        let finished: u64 = self.sides.iter().map(|side| side.finished).max().unwrap_or(0);
        let mut rows = vec![
            ("load", self.load.to_owned()),
            ("store", self.store.clone()),
            ("finished before", format!("{finished}, run within {:.0} s", self.preload_seconds)),
            ("seconds", format!("{:.0}", self.seconds)),
            ("nodes", self.nodes.to_string()),
            ("server memory", mib(self.server_rss_bytes as f64)),
            ("server cpu", format!("{:.2} s", self.server_cpu_seconds)),
            ("agents and bench cpu", format!("{:.2} s", self.agents_and_bench_cpu_seconds)),
        ];
        for side in &self.sides {
            let text = format!(
                "{} claims, {:.0}/s; the last window has {:.0} % of the first one's",
                side.claims,
                side.claims as f64 / side.seconds.max(f64::MIN_POSITIVE),
                side.last_of_first * 100.0
            );
            rows.push((side.name(), text));
        }
        vec![Part::Facts(rows), self.windows(), self.ends()]
    }

    /// Two loads that ran at once are side by side: the machine's noise is the same for both.
    fn windows(&self) -> Part {
        let head = ["claims/s", "p50", "p99", "ms per commit", "dead rows", "database"];
        let held = ["held: claims/s", "p50", "p99", "ms per commit", "dead rows", "database"];
        let heads = self.sides.iter().flat_map(|side| if side.held_transaction { held } else { head });
        let head = ["window", "until"].into_iter().chain(heads).collect();
        let mut rows = Vec::new();
        let count = self.sides.iter().map(|side| side.windows.len()).min().unwrap_or(0);
        for index in 0..count {
            let first = &self.sides[0].windows[index];
            let mut row = vec![place(index, count), format!("{:.1} min", first.until_seconds / 60.0)];
            for window in self.sides.iter().map(|side| &side.windows[index]) {
                row.extend([
                    format!("{:.0}", window.claims_per_second),
                    format!("{:.1} ms", window.wait_p50_ms),
                    format!("{:.1} ms", window.wait_p99_ms),
                    format!("{:.2}", window.ms_per_commit),
                    window.dead_rows.to_string(),
                    mib(window.database_bytes as f64),
                ]);
            }
            rows.push(row);
        }
        Part::Table { head, rows }
    }
    fn ends(&self) -> Part {
        let head = vec!["load", "table", "rows", "dead rows", "size", "autovacuums"];
        let mut rows = Vec::new();
        for side in &self.sides {
            for state in side.tables.tables.iter().filter(|state| state.rows + state.dead_rows > 0) {
                rows.push(vec![
                    side.name().to_owned(),
                    state.name.clone(),
                    state.rows.to_string(),
                    state.dead_rows.to_string(),
                    mib(state.bytes as f64),
                    state.autovacuums.to_string(),
                ]);
            }
        }
        Part::Table { head, rows }
    }
}

fn place(index: usize, count: usize) -> String {
    let number = index + 1;
    match index {
        0 => format!("{number} start"),
        _ if number == count => format!("{number} end"),
        _ if index == count / 2 => format!("{number} middle"),
        _ => number.to_string(),
    }
}

fn mib(bytes: f64) -> String {
    format!("{:.1} MiB", bytes / 1_048_576.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(ms: u64, count: u64) -> Latencies {
        let mut waits = Latencies::default();
        waits.add_many(Duration::from_millis(ms), count);
        waits
    }

    fn side(held_transaction: bool) -> Side {
        let tables = Tables { database_bytes: 3 << 20, tables: Vec::new() };
        let window = |second| Window::of(Duration::from_secs(second), &[], &tables, 0);
        let windows = vec![window(10), window(20), window(30)];
        let side =
            Side { held_transaction, finished: 5, server_rss_bytes: 7, windows, tables, ..Side::default() };
        side.with_claims(&[waits(1, 1_000), waits(2, 900), waits(4, 500)], 30_000_000)
    }

    #[test]
    fn each_window_has_its_own_claims_and_the_last_is_held_against_the_first() {
        let side = side(false);
        let rates: Vec<f64> = side.windows.iter().map(|window| window.claims_per_second).collect();
        assert_eq!(rates, [100.0, 90.0, 50.0]);
        assert_eq!((side.claims, side.last_of_first), (2_400, 0.5));
        assert!((side.windows[2].wait_p99_ms - 4.0).abs() < 0.01);
    }

    #[test]
    fn two_loads_stand_side_by_side_in_one_table() {
        let soak = Soak::of("postgres".into(), 8, Duration::from_secs(9), 1.0, vec![side(false), side(true)]);
        assert_eq!((soak.n, soak.server_rss_bytes), (4_800, 14));
        assert_eq!(soak.per_second, 160.0);
        let Part::Table { head, rows } = soak.windows() else { panic!("windows are a table") };
        assert!(head.contains(&"held: claims/s"), "{head:?}");
        let windows: Vec<&str> = rows.iter().map(|row| row[0].as_str()).collect();
        assert_eq!(windows, ["1 start", "2 middle", "3 end"]);
        assert_eq!(rows[2].iter().filter(|cell| *cell == "50").count(), 2, "{rows:?}");
    }
}
