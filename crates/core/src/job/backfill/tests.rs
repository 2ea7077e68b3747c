use uuid::Uuid;

use super::*;
use crate::ids::ClusterId;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn run() -> RunId {
    RunId::from("run")
}

/// A backfill of the seconds 10, 20 and 30, of which two run at once.
fn backfill() -> BackfillRecord {
    BackfillRecord::new(Backfill {
        id: BackfillId(Uuid::from_u128(7)),
        job: JobKey::new(ClusterId::DEFAULT, "report"),
        version: 3,
        from: at(5),
        to: at(35),
        times: 3,
        parallel: 2,
        again: false,
        by: "ada".to_owned(),
        created_at: at(100),
    })
}

fn live(next: i64, open: &[i64]) -> BackfillRecord {
    let mut record = backfill();
    record.live.next = at(next);
    record.live.open = open.iter().map(|second| (at(*second), run())).collect();
    record
}

fn cancelled(mut record: BackfillRecord) -> BackfillRecord {
    record.cancel(&BackfillCancel { by: "ada".to_owned(), at: at(101) }).unwrap();
    record
}

fn next(record: &BackfillRecord, ended: &[(i64, RunState)], has_job: bool) -> BackfillNext {
    let ended = ended.iter().map(|(second, state)| BackfillEnd { at: at(*second), state: Some(*state) });
    let first = |from: Timestamp| (1..).map(|tens| at(tens * 10)).find(|time| *time >= from);
    next_of_backfill(record, BackfillFacts { ended: ended.collect(), has_job }, first)
}

#[test]
fn what_a_backfill_needs_next() {
    let record = |next, ended: &[(i64, RunState)], is_end| {
        let ended = ended.iter().map(|(second, state)| BackfillEnd { at: at(*second), state: Some(*state) });
        let (from, until) = (at(next), at(next));
        let (existing, refused, ended) = (false, None, ended.collect());
        BackfillNext::Record(BackfillStep { from, until, existing, refused, ended, is_end })
    };
    let done = RunState::Completed;
    let cases = [
        ("the oldest time first", backfill(), vec![], true, BackfillNext::Start(at(10))),
        ("the next one while there is room", live(11, &[10]), vec![], true, BackfillNext::Start(at(20))),
        ("not more than may be open", live(21, &[10, 20]), vec![], true, BackfillNext::Wait),
        ("ends first", live(21, &[10, 20]), vec![(10, done)], true, record(21, &[(10, done)], false)),
        ("the last time is open", live(31, &[30]), vec![], true, BackfillNext::Wait),
        ("the end of the range does not count", live(32, &[]), vec![], true, record(32, &[], true)),
        ("cancelled: no more starts", cancelled(live(11, &[10])), vec![], true, BackfillNext::CancelRuns),
        ("cancelled: until nothing is open", cancelled(live(11, &[])), vec![], true, record(11, &[], true)),
        ("the job was deleted", live(11, &[10]), vec![], false, BackfillNext::Cancel),
        ("deleted and cancelled", cancelled(live(11, &[10])), vec![], false, BackfillNext::CancelRuns),
    ];
    for (case, record, ended, has_job, expected) in cases {
        assert_eq!(next(&record, &ended, has_job), expected, "{case}");
    }
    let mut over = live(31, &[]);
    over.live.ended_at = Some(at(200));
    assert_eq!(next(&over, &[], true), BackfillNext::Nothing);
}

#[test]
fn every_time_is_decided_once() {
    let mut record = backfill();
    let first = record.clone();
    record.start(at(5), at(10), &run()).unwrap();
    // A server with an older view.
    assert_eq!(record.start(at(5), at(10), &run()), Err(Refusal::StaleVersion));
    let existing = BackfillStep::over_existing(&first.live, at(10));
    assert_eq!(record.step(&existing, at(101)), Err(Refusal::StaleVersion));
    let existing = BackfillStep::over_existing(&record.live, at(20));
    record.step(&existing, at(101)).unwrap();
    assert_eq!(record.left(), 1);
    record.start(at(21), at(30), &run()).unwrap();
    assert_eq!(record.start(at(31), at(40), &run()), Err(Refusal::WrongState), "two are open");
    let end = |second, state| BackfillEnd { at: at(second), state };
    let ended = vec![end(10, Some(RunState::Completed)), end(30, None)];
    let step = BackfillStep { ended, ..BackfillStep::at(&record.live) };
    assert_eq!(
        record.step(&BackfillStep { is_end: true, ..BackfillStep::at(&record.live) }, at(102)),
        Err(Refusal::WrongState)
    );
    record.step(&step, at(102)).unwrap();
    // The same end is not counted twice.
    assert_eq!(record.step(&step, at(102)), Err(Refusal::StaleVersion));
    assert_eq!(
        (record.live.counts.succeeded, record.live.counts.failed, record.live.counts.existing),
        (1, 1, 1)
    );
    assert_eq!(record.left(), 0);
    record.step(&BackfillStep { is_end: true, ..BackfillStep::at(&record.live) }, at(103)).unwrap();
    assert_eq!(record.live.ended_at, Some(at(103)));
    assert_eq!(record.start(at(31), at(40), &run()), Err(Refusal::WrongState));
    assert_eq!(record.cancel(&BackfillCancel { by: String::new(), at: at(104) }), Err(Refusal::WrongState));
}

#[test]
fn nothing_starts_after_the_cancellation() {
    let mut record = cancelled(live(11, &[10]));
    assert_eq!(record.start(at(11), at(20), &run()), Err(Refusal::WrongState));
    let ended = vec![BackfillEnd { at: at(10), state: Some(RunState::Cancelled) }];
    record.step(&BackfillStep { ended, ..BackfillStep::at(&record.live) }, at(102)).unwrap();
    assert_eq!(record.live.counts.cancelled, 1);
}

#[test]
fn a_time_that_runs_again_has_an_id_of_its_own() {
    let (once, again) = (backfill().made, Backfill { again: true, ..backfill().made });
    let time: Timestamp = "2026-01-31T03:00:00Z".parse().unwrap();
    assert_eq!(once.run_id("default", time), RunId::scheduled("default", "report", time));
    let id = again.run_id("default", time);
    assert_eq!(
        id.as_str(),
        "default:report:2026-01-31T03:00:00Z:backfill-00000000-0000-0000-0000-000000000007"
    );
    assert_eq!(id.schedule(), Some(("default", "report", time)));
    assert_ne!(once.run_key(time), again.run_key(time));
}
