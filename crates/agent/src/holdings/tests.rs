//! The rules of holding work, without running any.

use downbeat_core::ids::{ExecutionId, LeaseToken, RunId};
use downbeat_core::limits::{HELD_PER_MESSAGE, SLOTS_PER_NODE, UNDELIVERED};
use downbeat_core::work::Origin;
use uuid::Uuid;

use super::*;

/// No room for anything.
const NOTHING: Free = Free { fleet: 0, placed: 0, debug: Some(0) };

fn assignment(number: u128, placed: bool) -> Assignment {
    Assignment {
        execution: ExecutionId(Uuid::from_u128(number)),
        token: LeaseToken(Uuid::from_u128(number)),
        of: Origin::Step { run: RunId::from("run"), step: 0, item: None },
        attempt: 1,
        kind: if placed { WorkKind::Placed } else { WorkKind::Fleet },
        backend: "test".to_owned(),
        action: "noop".to_owned(),
        params: Default::default(),
        timeout: Duration::from_secs(1),
        stop_on_disconnect: false,
        outputs: Vec::new(),
    }
}

fn debug_command(number: u128) -> Assignment {
    Assignment { kind: WorkKind::Debug, ..assignment(number, false) }
}

fn held_of(number: u128) -> LeaseRef {
    assignment(number, true).lease()
}

fn numbers(ready: &[Ready]) -> Vec<u128> {
    ready.iter().map(|ready| ready.assignment.execution.0.as_u128()).collect()
}

#[test]
fn fleet_work_runs_one_at_a_time_in_order_in_parallel_with_placed_work() {
    let mut holdings = Holdings::new(2);
    let work = vec![assignment(1, false), assignment(2, true), assignment(3, false), assignment(4, false)];
    assert_eq!(numbers(&holdings.assign(work, Instant::now())), [1, 2]);
    assert_eq!(holdings.offer().1, Free { fleet: 0, placed: 1, debug: Some(4) });
    let (fate, next) = holdings.ended(held_of(1));
    assert_eq!((fate, numbers(next.as_slice())), (Fate::Report, vec![3]));
    assert_eq!(numbers(holdings.ended(held_of(3)).1.as_slice()), [4]);
}

#[test]
fn an_assignment_repeated_after_its_end_does_not_run_again() {
    let mut holdings = Holdings::new(4);
    holdings.assign(vec![assignment(1, true), assignment(2, true)], Instant::now());
    holdings.ended(held_of(1));
    holdings.acknowledged(held_of(1));
    holdings.refused(held_of(2));
    holdings.ended(held_of(2));
    assert!(holdings.is_empty());
    assert_eq!(
        numbers(&holdings.assign(vec![assignment(1, true), assignment(2, true)], Instant::now())),
        [0_u128; 0]
    );
}

#[test]
fn an_assignment_sent_twice_runs_once_even_after_its_end() {
    let mut holdings = Holdings::new(4);
    assert_eq!(
        numbers(&holdings.assign(vec![assignment(1, true), assignment(1, true)], Instant::now())),
        [1]
    );
    holdings.ended(held_of(1));
    assert!(holdings.assign(vec![assignment(1, true)], Instant::now()).is_empty());
    assert_eq!(holdings.held(), [held_of(1)], "held until it is acknowledged");
    holdings.acknowledged(held_of(1));
    assert!(holdings.is_empty());
}

#[test]
fn a_refused_lease_stops_its_work_and_drops_its_result_but_keeps_its_slot_until_the_end() {
    let mut holdings = Holdings::new(1);
    let ready = holdings.assign(vec![assignment(1, true), assignment(2, true)], Instant::now());
    holdings.refused(held_of(1));
    assert!(ready[0].stop.token().is_cancelled());
    assert_eq!(holdings.held(), [held_of(2)]);
    assert_eq!(holdings.offer().1.placed, 0);
    let (fate, next) = holdings.ended(held_of(1));
    assert_eq!((fate, numbers(next.as_slice())), (Fate::Drop, vec![2]));
}

#[test]
fn stopping_queued_work_removes_it_from_the_queue_and_reports_it() {
    let mut holdings = Holdings::new(1);
    holdings.assign(vec![assignment(1, true), assignment(2, true)], Instant::now());
    assert_eq!(holdings.stop(held_of(2)).map(|a| a.lease()), Some(held_of(2)));
    assert!(holdings.stop(held_of(2)).is_none(), "reported once");
    assert!(holdings.ended(held_of(1)).1.is_none());
    assert!(holdings.holds(held_of(2)), "held until it is acknowledged");
}

#[test]
fn a_draining_agent_offers_nothing_and_ends_what_it_has() {
    let mut holdings = Holdings::new(1);
    holdings.assign(vec![assignment(1, true), assignment(2, true)], Instant::now());
    holdings.draining = true;
    assert_eq!(holdings.begin_poll(), (1, NOTHING));
    assert!(!holdings.is_idle());
    assert!(holdings.ended(held_of(1)).1.is_some());
    holdings.ended(held_of(2));
    assert!(holdings.is_idle() && !holdings.is_empty());
}

#[test]
fn only_work_that_must_not_overlap_is_ended_when_cut_off() {
    let (mut holdings, term, now) = (Holdings::new(2), Duration::from_secs(25), Instant::now());
    let reason = Reason::CutOff(term);
    let exclusive = Assignment { stop_on_disconnect: true, ..assignment(2, true) };
    let ready = holdings.assign(vec![assignment(1, true), exclusive], now);
    let stopped = || ready.iter().map(|ready| ready.stop.token().is_cancelled()).collect::<Vec<_>>();
    assert!(holdings.begin(held_of(2), term, now));
    assert_eq!(holdings.cut_off(term, now, reason), Some(now + term));
    holdings.renewed(&[held_of(2)], now + term / 2);
    assert_eq!(holdings.cut_off(term, now + term, reason), Some(now + term + term / 2));
    assert_eq!(stopped(), [false, false]);
    assert_eq!(holdings.cut_off(term, now + term * 2, reason), None);
    assert_eq!(stopped(), [false, true]);
}

#[test]
fn work_that_must_not_overlap_begins_only_with_a_lease_that_cannot_have_ended() {
    let (mut holdings, term, now) = (Holdings::new(2), Duration::from_secs(25), Instant::now());
    let ready = holdings.assign(vec![Assignment { stop_on_disconnect: true, ..assignment(1, true) }], now);
    assert!(!holdings.begin(held_of(1), term, now + term), "its lease may have ended on the way");
    holdings.cut_off(term, now + term, Reason::CutOff(term));
    assert!(!ready[0].stop.token().is_cancelled(), "it has not started");
    holdings.renewed(&[held_of(1)], now + term);
    assert!(holdings.begin(held_of(1), term, now + term));
}

#[test]
fn recorded_work_is_not_started_again_by_a_server_that_is_behind() {
    let mut holdings = Holdings::new(1);
    assert_eq!(numbers(&holdings.assign(vec![assignment(1, true)], Instant::now())), [1]);
    holdings.ended(held_of(1));
    holdings.acknowledged(held_of(1));
    assert!(holdings.is_empty());
    assert_eq!(
        numbers(&holdings.assign(vec![assignment(1, true), assignment(2, true)], Instant::now())),
        [2]
    );
    assert_eq!(holdings.held(), [held_of(2)]);
    // Another lease of the same execution does run.
    let again = Assignment { token: LeaseToken(Uuid::from_u128(9)), ..assignment(1, true) };
    holdings.ended(held_of(2));
    assert_eq!(numbers(&holdings.assign(vec![again], Instant::now())), [1]);
}

#[test]
fn only_the_last_leases_are_remembered() {
    let mut holdings = Holdings::new(1);
    let most = u128::try_from(Former::MOST).unwrap();
    for number in 0..=most {
        holdings.assign(vec![assignment(number, true)], Instant::now());
        holdings.ended(held_of(number));
        holdings.acknowledged(held_of(number));
    }
    assert_eq!(holdings.former.known.len(), Former::MOST);
    assert_eq!(
        numbers(&holdings.assign(vec![assignment(1, true), assignment(0, true)], Instant::now())),
        [0]
    );
}

#[test]
fn a_result_of_a_former_run_is_held_until_it_is_acknowledged_and_takes_no_slot() {
    let mut holdings = Holdings::new(2);
    holdings.hold_former(held_of(1), 10, Instant::now());
    assert_eq!(holdings.held(), [held_of(1)]);
    assert_eq!(holdings.offer().1, Free { fleet: 1, placed: 2, debug: Some(4) });
    assert!(holdings.is_idle() && !holdings.is_empty());
    assert!(holdings.assign(vec![assignment(1, true)], Instant::now()).is_empty(), "it is done already");
    holdings.acknowledged(held_of(1));
    assert!(holdings.is_empty());
}

#[test]
fn an_agent_that_cannot_deliver_its_output_takes_no_new_work_until_it_can() {
    let mut holdings = Holdings::new(2);
    holdings.assign(vec![assignment(1, true), assignment(2, true)], Instant::now());
    for number in [1, 2] {
        holdings.ended(held_of(number));
        holdings.wait_to_send(held_of(number), UNSENT_BYTES / 2);
    }
    assert!(holdings.is_clogged());
    assert_eq!(holdings.offer().1, NOTHING);
    holdings.acknowledged(held_of(1));
    assert!(!holdings.is_clogged());
    assert_eq!(holdings.offer().1, Free { fleet: 1, placed: 2, debug: Some(4) });
}

#[test]
fn an_agent_that_cannot_deliver_its_results_takes_no_new_work_until_it_can() {
    let slots = SLOTS_PER_NODE;
    let mut holdings = Holdings::new(slots);
    let mut last = 0;
    while holdings.offer().1.placed > 0 {
        let work = last + 1..=last + u128::from(holdings.offer().1.placed);
        last = *work.end();
        holdings.assign(work.clone().map(|number| assignment(number, true)).collect(), Instant::now());
        for number in work {
            holdings.ended(held_of(number));
        }
        assert!(holdings.held().len() <= UNSENT_RESULTS + slots as usize, "the number has a limit");
    }
    assert!(holdings.is_clogged());
    let relieved = last - UNSENT_RESULTS as u128 + 1;
    for number in 1..=relieved {
        holdings.acknowledged(held_of(number));
    }
    assert_eq!(holdings.offer().1, Free { fleet: 1, placed: slots, debug: Some(4) });
}

#[test]
fn results_of_a_former_run_count_until_a_server_has_them() {
    let mut holdings = Holdings::new(1);
    for number in 0..UNDELIVERED as u128 {
        holdings.hold_former(held_of(number), 0, Instant::now());
    }
    assert_eq!(holdings.offer().1, NOTHING);
    assert!(holdings.held().len() < HELD_PER_MESSAGE);
    for number in 0..UNDELIVERED as u128 {
        holdings.refused(held_of(number));
    }
    assert_eq!(holdings.offer().1, Free { fleet: 1, placed: 1, debug: Some(4) });
}

#[test]
fn output_that_was_sent_or_dropped_does_not_block_new_work() {
    let mut holdings = Holdings::new(2);
    holdings.hold_former(held_of(1), UNSENT_BYTES, Instant::now());
    assert!(holdings.is_clogged());
    holdings.sent(held_of(1), 1);
    assert!(!holdings.is_clogged(), "only its receipt is pending");
    holdings.wait_to_send(held_of(1), 1);
    assert!(holdings.is_clogged());
    holdings.acknowledged(held_of(1));
    holdings.sent(held_of(1), 1);
    assert!(!holdings.is_clogged() && holdings.unsent_bytes == 0, "nothing counts twice");
}

#[test]
fn debug_commands_start_beside_other_work_and_only_a_few_at_once() {
    let mut holdings = Holdings::new(1);
    let now = Instant::now();
    assert_eq!(numbers(&holdings.assign(vec![assignment(1, false), assignment(2, true)], now)), [1, 2]);
    let most = u128::from(DEBUG_PER_NODE);
    let commands = (10..10 + most + 2).map(debug_command).collect();
    assert_eq!(numbers(&holdings.assign(commands, now)), (10..10 + most).collect::<Vec<_>>());
    assert_eq!(holdings.offer().1, Free { fleet: 0, placed: 0, debug: Some(0) });
    let (fate, next) = holdings.ended(held_of(10));
    assert_eq!(fate, Fate::Report);
    assert_eq!(numbers(&next.into_iter().collect::<Vec<_>>()), [10 + most], "the next one takes its place");
    assert!(holdings.stop(held_of(11 + most)).is_some(), "one that waits never starts");
    let (_, next) = holdings.ended(held_of(11));
    assert!(next.is_none());
    assert_eq!(holdings.offer().1, Free { fleet: 0, placed: 0, debug: Some(1) });
}
