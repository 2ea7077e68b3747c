use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::schedule::Days;

fn at(text: &str) -> Timestamp {
    format!("2026-03-10T{text}Z").parse().unwrap()
}

fn schedule(cron: &str, catch_up: Option<CatchUp>, jitter: Option<Span>) -> Schedule {
    Schedule { when: When::Cron(cron.to_owned()), timezone: None, catch_up, exclude: Days::default(), jitter }
}

fn catch_up(policy: CatchUpPolicy, minutes: u64) -> Option<CatchUp> {
    Some(CatchUp { policy, window: Span::from_secs(minutes * 60) })
}

fn timetable(schedules: &[Schedule]) -> Timetable {
    Timetable::new("default:backup", schedules).unwrap()
}

/// Returns a decision on one line: `03:00 03:10; paused 2: 02:40-02:50; → 03:20`.
fn shown(decision: &Decision) -> String {
    let time = |at: Timestamp| at.strftime("%H:%M").to_string();
    let mut parts: Vec<String> = decision.firings.iter().map(|firing| time(firing.at)).collect();
    for Skipped { reason, first, last, count } in &decision.skipped {
        parts.push(format!("{reason} {count}: {}-{}", time(*first), time(*last)));
    }
    let next = decision.next.map_or_else(|| "never".to_owned(), time);
    format!("{}; → {next}", parts.join(", "))
}

#[test]
fn what_fires_now_and_what_is_caught_up() {
    use CatchUpPolicy::{All, Latest, None as Nothing};
    for (case, policy, decided, now, expected) in [
        ("nothing is due", catch_up(All, 60), "03:00:00", "03:09:59", "; → 03:10"),
        ("on time", catch_up(All, 60), "03:00:00", "03:10:00", "03:10; → 03:20"),
        ("decided again", catch_up(All, 60), "03:10:00", "03:10:00", "; → 03:20"),
        ("a little late is on time", catch_up(Nothing, 0), "03:00:00", "03:10:10", "03:10; → 03:20"),
        (
            "too late to be on time",
            catch_up(Nothing, 0),
            "03:00:00",
            "03:10:11",
            "too_late 1: 03:10-03:10; → 03:20",
        ),
        ("the default covers a restart", None, "03:00:00", "03:11:00", "03:10; → 03:20"),
        ("the default skips an outage", None, "03:00:00", "03:22:00", "too_late 2: 03:10-03:20; → 03:30"),
        (
            "suspended for an hour: all",
            catch_up(All, 60),
            "03:00:00",
            "04:00:05",
            "03:10, 03:20, 03:30, 03:40, 03:50, 04:00; → 04:10",
        ),
        (
            "all, within the window",
            catch_up(All, 25),
            "03:00:00",
            "04:01:00",
            "03:40, 03:50, 04:00, too_late 3: 03:10-03:30; → 04:10",
        ),
        (
            "suspended for an hour: latest",
            catch_up(Latest, 60),
            "03:00:00",
            "04:01:00",
            "04:00, superseded 5: 03:10-03:50; → 04:10",
        ),
        (
            "latest, and one is on time",
            catch_up(Latest, 60),
            "03:00:00",
            "03:30:05",
            "03:30, superseded 2: 03:10-03:20; → 03:40",
        ),
        (
            "latest, outside the window",
            catch_up(Latest, 1),
            "03:00:00",
            "03:38:00",
            "too_late 3: 03:10-03:30; → 03:40",
        ),
        ("none", catch_up(Nothing, 0), "03:00:00", "04:00:05", "04:00, too_late 5: 03:10-03:50; → 04:10"),
        ("the clock was set back", catch_up(All, 60), "04:00:00", "03:00:00", "; → 04:10"),
    ] {
        let decision = timetable(&[schedule("*/10 * * * *", policy, None)]).decide(
            at(decided),
            at(now),
            Activity::Active,
        );
        assert_eq!(shown(&decision), expected, "{case}");
    }
}

#[test]
fn a_paused_job_skips_its_times_and_does_not_catch_them_up() {
    let table = timetable(&[schedule("*/10 * * * *", catch_up(CatchUpPolicy::All, 600), None)]);
    let paused = table.decide(at("03:00:00"), at("04:05:00"), Activity::Paused);
    assert_eq!(shown(&paused), "paused 6: 03:10-04:00; → 04:10");
    let resumed = table.decide(paused.decided, at("04:10:00"), Activity::Active);
    assert_eq!(shown(&resumed), "04:10; → 04:20");
}

#[test]
fn a_time_of_two_schedules_starts_one_run() {
    let late = catch_up(CatchUpPolicy::All, 60);
    let table = timetable(&[schedule("0 * * * *", None, None), schedule("*/30 * * * *", late, None)]);
    let decision = table.decide(at("03:50:00"), at("04:40:00"), Activity::Active);
    assert_eq!(shown(&decision), "04:00, 04:30; → 05:00", "04:00 is too late for the first schedule only");
    assert_eq!(
        table.upcoming(at("03:50:00"), 3).iter().map(|firing| firing.at).collect::<Vec<_>>(),
        [at("04:00:00"), at("04:30:00"), at("05:00:00"),]
    );
}

#[test]
fn a_clock_that_was_a_year_ahead_does_not_stop_the_schedule_for_a_year() {
    let table = timetable(&[schedule("*/10 * * * *", None, None)]);
    let next_year = "2027-03-10T03:00:00Z".parse().unwrap();
    let decision = table.decide(next_year, at("03:00:00"), Activity::Active);
    assert_eq!((decision.decided, shown(&decision)), (at("03:00:00"), "; → 03:10".to_owned()));
}

#[test]
fn jitter_delays_each_start_by_its_own_time_and_is_the_same_everywhere() {
    let jittered = schedule("*/10 * * * *", None, Some(Span::from_secs(300)));
    let delays = |key: &str| -> Vec<SignedDuration> {
        let table = Timetable::new(key, std::slice::from_ref(&jittered)).unwrap();
        table.upcoming(at("03:00:00"), 5).iter().map(|firing| firing.due.duration_since(firing.at)).collect()
    };
    let ours = delays("default:backup");
    assert_eq!(ours, delays("default:backup"));
    assert_ne!(ours, delays("default:report"));
    assert!(ours.iter().all(|delay| *delay <= SignedDuration::from_mins(5)), "{ours:?}");
    assert!(ours.iter().collect::<BTreeSet<_>>().len() > 3, "{ours:?}");
}

#[test]
fn a_decision_at_the_very_moment_of_a_start_fires_it_once() {
    let table = timetable(&[schedule("*/10 * * * *", None, Some(Span::from_secs(300)))]);
    let mut decided = at("03:00:00");
    for _ in 0..20 {
        let due = table.upcoming(decided, 1)[0];
        let decision = table.decide(decided, due.due, Activity::Active);
        assert_eq!((&decision.firings[..], decision.decided), (&[due][..], due.due));
        assert_eq!(table.decide(decision.decided, due.due, Activity::Active).firings, []);
        let late = due.due + SignedDuration::from_millis(1);
        assert_eq!(table.decide(decision.decided, late, Activity::Active).firings, []);
        decided = decision.decided;
    }
}

#[test]
fn after_a_long_outage_each_decision_is_bounded_and_all_together_are_complete() {
    let table = timetable(&[schedule("* * * * * *", catch_up(CatchUpPolicy::All, 60), None)]);
    let (mut decided, now) = (at("00:00:00"), at("03:00:00"));
    let (mut fired, mut skipped, mut decisions) = (0, 0, 0);
    loop {
        let decision = table.decide(decided, now, Activity::Active);
        let times: usize = decision.skipped.iter().map(|skipped| skipped.count).sum();
        assert!(decision.firings.len() <= STARTS_AT_ONCE && times <= SKIPPED_AT_ONCE);
        (fired, skipped, decisions) = (fired + decision.firings.len(), skipped + times, decisions + 1);
        decided = decision.decided;
        if decision.next.is_none_or(|next| next > now) {
            break;
        }
    }
    assert_eq!((fired, skipped, decided), (3_601, 7_199, now));
    assert!((4..8).contains(&decisions), "{decisions} decisions");
}

/// A job with any schedules, and any policy that catches up everything.
fn any_schedule(policy: impl Strategy<Value = CatchUp>) -> impl Strategy<Value = Schedule> {
    let crons = ["* * * * *", "30 * * * * *", "*/7 * * * *", "*/20 5,6 * * * *", "15 3 * * *", "0 * * * *"];
    (prop::sample::select(crons.to_vec()), policy, prop::option::of(1_u64..3_600))
        .prop_map(|(cron, catch_up, jitter)| schedule(cron, Some(catch_up), jitter.map(Span::from_secs)))
}

fn any_policy() -> impl Strategy<Value = CatchUp> {
    (prop::sample::select(CatchUpPolicy::ALL.to_vec()), 1_u64..7_200)
        .prop_map(|(policy, seconds)| CatchUp { policy, window: Span::from_secs(seconds) })
}

/// Steps of the clock between decisions, in seconds: mostly small, sometimes an hour forward or back.
fn any_steps() -> impl Strategy<Value = Vec<i64>> {
    let step = prop_oneof![6 => 0_i64..120, 1 => Just(3_600), 1 => Just(-3_600), 1 => 0_i64..10_000];
    prop::collection::vec(step, 1..20)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn however_the_clock_jumps_no_time_is_missed_and_none_fires_twice(
        schedules in prop::collection::vec(any_schedule(Just(CatchUp { policy: CatchUpPolicy::All, window: Span::from_secs(1_000_000) })), 1..3),
        steps in any_steps(),
    ) {
        let table = timetable(&schedules);
        let start = at("00:00:00");
        let (mut decided, mut now, mut fired) = (start, start, Vec::new());
        for step in steps {
            now += SignedDuration::from_secs(step);
            let mut decision = table.decide(decided, now, Activity::Active);
            prop_assert!(decision.skipped.is_empty());
            fired.append(&mut decision.firings);
            prop_assert!(decision.decided >= decided);
            decided = decision.decided;
            while decision.next.is_some_and(|next| next <= now) {
                decision = table.decide(decided, now, Activity::Active);
                fired.append(&mut decision.firings);
                decided = decision.decided;
            }
        }
        // A time of two schedules may be due twice, because of their jitter. Its run has one id.
        let mut found: Vec<Timestamp> = fired.iter().map(|firing| firing.at).collect();
        found.sort();
        if schedules.len() == 1 {
            let times = found.len();
            found.dedup();
            prop_assert_eq!(found.len(), times, "a time fired twice");
        }
        found.dedup();
        let mut expected: Vec<Timestamp> = Vec::new();
        for one in &table.schedules {
            let all = one.times.after(before(start, one.jitter.0)).take_while(|time| *time <= decided);
            let due = all.map(|time| one.firing(&table.key, time)).filter(|firing| firing.due > start && firing.due <= decided);
            expected.extend(due.map(|firing| firing.at));
        }
        expected.sort();
        expected.dedup();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn each_time_of_one_schedule_either_fires_or_is_counted_as_skipped(
        one in any_schedule(any_policy()),
        steps in any_steps(),
    ) {
        let table = timetable(&[one]);
        let start = at("00:00:00");
        let (mut decided, mut now, mut count) = (start, start, 0);
        for step in steps {
            now += SignedDuration::from_secs(step);
            loop {
                let decision = table.decide(decided, now, Activity::Active);
                count += decision.firings.len() + decision.skipped.iter().map(|skipped| skipped.count).sum::<usize>();
                decided = decision.decided;
                if decision.next.is_none_or(|next| next > now) {
                    break;
                }
            }
        }
        let one = &table.schedules[0];
        let all = one.times.after(before(start, one.jitter.0)).take_while(|time| *time <= decided);
        let due = all.map(|time| one.firing(&table.key, time).due).filter(|due| *due > start && *due <= decided);
        prop_assert_eq!(count, due.count());
    }
}

#[test]
fn a_decision_is_cut_before_a_run_that_could_not_be_started() {
    let policy = Some(CatchUp { policy: CatchUpPolicy::All, window: Span::from_secs(20) });
    let table = timetable(&[schedule("* * * * * *", policy, None)]);
    let at = |second| Timestamp::from_second(second).unwrap();
    let decision = table.decide(at(70), at(100), Activity::Active);
    assert_eq!(decision.firings.len(), 21);
    let whole = decision.skipped[0];
    assert_eq!((whole.first, whole.last, whole.count), (at(71), at(79), 9));
    let cut = decision.clone().before(at(85));
    assert_eq!(
        cut.firings.iter().map(|firing| firing.at).collect::<Vec<_>>(),
        (80..85).map(at).collect::<Vec<_>>()
    );
    assert_eq!((cut.skipped, cut.next), (vec![whole], Some(at(85))));
    // The next decision begins with the run that is missing.
    let next = table.decide(cut.decided, at(100), Activity::Active);
    assert_eq!(next.firings[0].at, at(85));
    assert_eq!(next.skipped, []);
    // Times that are skipped after the cut belong to the next decision.
    let cut = decision.before(at(75));
    assert_eq!((cut.firings.len(), cut.skipped[0].count), (0, 4));
}
