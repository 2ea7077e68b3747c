//! Checks the times of schedules: against a table, and against a slow walk over every minute around the moments at which
//! clocks change. The suite walks some zones and years; DOWNBEAT_TEST_ZONES=all walks every zone from 1970 to 2040.

use std::collections::BTreeSet;

use downbeat_core::schedule::{Days, Rule, Times, Zone};
use jiff::civil::DateTime;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{SignedDuration, Timestamp};

fn times(rule: &str, zone: &str) -> Times {
    Times::new(rule.parse().unwrap(), Zone::named(zone).unwrap(), Days::default())
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// Returns the first times in the zone, in the form `10-25 02:30+02`.
fn shown(rule: &str, zone: &str, after: &str, count: usize) -> String {
    let tz = TimeZoneDatabase::bundled().get(zone).unwrap();
    let local = |at: Timestamp| at.to_zoned(tz.clone()).strftime("%m-%d %H:%M:%S%:z").to_string();
    times(rule, zone).after(at(after)).take(count).map(local).collect::<Vec<_>>().join(", ")
}

#[test]
fn a_schedule_fires_when_its_fields_match() {
    for (rule, after, expected) in [
        ("30 3 * * *", "2026-01-01T00:00:00Z", "01-01 03:30:00+00:00, 01-02 03:30:00+00:00"),
        ("30 3 * * *", "2026-01-01T03:30:00Z", "01-02 03:30:00+00:00, 01-03 03:30:00+00:00"),
        ("*/20 * * * *", "2026-01-01T00:01:00Z", "01-01 00:20:00+00:00, 01-01 00:40:00+00:00"),
        ("10/20 1 * * *", "2026-01-01T00:01:00Z", "01-01 01:10:00+00:00, 01-01 01:30:00+00:00"),
        ("5-10/5 0 * * *", "2026-01-01T00:01:00Z", "01-01 00:05:00+00:00, 01-01 00:10:00+00:00"),
        ("*/30 59 23 31 12 *", "2026-01-01T00:00:00Z", "12-31 23:59:00+00:00, 12-31 23:59:30+00:00"),
        ("0 0 29 2 *", "2026-01-01T00:00:00Z", "02-29 00:00:00+00:00, 02-29 00:00:00+00:00"),
        ("0 0 L * *", "2026-01-31T00:00:00Z", "02-28 00:00:00+00:00, 03-31 00:00:00+00:00"),
        ("0 0 L,15 * ?", "2026-01-31T00:00:00Z", "02-15 00:00:00+00:00, 02-28 00:00:00+00:00"),
        ("0 12 * JAN-feb MON-fri", "2026-02-26T13:00:00Z", "02-27 12:00:00+00:00, 01-01 12:00:00+00:00"),
        ("0 0 * * 7", "2026-01-01T00:00:00Z", "01-04 00:00:00+00:00, 01-11 00:00:00+00:00"),
        ("0 0 * * sat-sun", "2026-01-01T00:00:00Z", "01-03 00:00:00+00:00, 01-04 00:00:00+00:00"),
        ("0 0 * * 5-7", "2026-01-03T00:00:00Z", "01-04 00:00:00+00:00, 01-09 00:00:00+00:00"),
        // Day and weekday: one of them is enough, unless one of them begins with a star.
        ("0 0 13 * FRI", "2026-02-01T00:00:00Z", "02-06 00:00:00+00:00, 02-13 00:00:00+00:00"),
        ("0 0 */2 * FRI", "2026-02-01T00:00:00Z", "02-13 00:00:00+00:00, 02-27 00:00:00+00:00"),
        ("@daily", "2026-01-01T00:00:00Z", "01-02 00:00:00+00:00, 01-03 00:00:00+00:00"),
        ("@Weekly", "2026-01-01T00:00:00Z", "01-04 00:00:00+00:00, 01-11 00:00:00+00:00"),
        ("@monthly", "2026-01-01T00:00:00Z", "02-01 00:00:00+00:00, 03-01 00:00:00+00:00"),
        ("@yearly", "2026-01-01T00:00:00Z", "01-01 00:00:00+00:00, 01-01 00:00:00+00:00"),
        ("@hourly", "2026-01-01T00:30:00Z", "01-01 01:00:00+00:00, 01-01 02:00:00+00:00"),
        ("@every 90s", "2026-01-01T00:00:00.5Z", "01-01 00:01:30+00:00, 01-01 00:03:00+00:00"),
        ("@every 7d", "2026-01-01T00:00:00Z", "01-08 00:00:00+00:00, 01-15 00:00:00+00:00"),
    ] {
        assert_eq!(shown(rule, "UTC", after, 2), expected, "{rule}");
    }
}

#[test]
fn when_clocks_change_each_time_fires_once() {
    for (rule, zone, after, expected) in [
        // Berlin skips 02:00 to 03:00 on 29 March, and repeats it on 25 October.
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", "03-29 03:00:00+02:00, 03-30 02:30:00+02:00"),
        (
            "*/20 2 * * *",
            "Europe/Berlin",
            "2026-03-28T12:00:00Z",
            "03-29 03:00:00+02:00, 03-30 02:00:00+02:00",
        ),
        (
            "0 2,3 * * *",
            "Europe/Berlin",
            "2026-03-28T12:00:00Z",
            "03-29 03:00:00+02:00, 03-30 02:00:00+02:00",
        ),
        ("30 * * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", "03-29 01:30:00+01:00, 03-29 03:00:00+02:00"),
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", "10-25 02:30:00+02:00, 10-26 02:30:00+01:00"),
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T01:10:00Z", "10-26 02:30:00+01:00, 10-27 02:30:00+01:00"),
        ("0 * * * *", "Europe/Berlin", "2026-10-24T23:30:00Z", "10-25 02:00:00+02:00, 10-25 03:00:00+01:00"),
        ("@every 1h", "Europe/Berlin", "2026-10-24T23:30:00Z", "10-25 02:00:00+02:00, 10-25 02:00:00+01:00"),
        // Lord Howe changes by half an hour.
        (
            "15 2 * * *",
            "Australia/Lord_Howe",
            "2026-10-03T00:00:00Z",
            "10-04 02:30:00+11:00, 10-05 02:15:00+11:00",
        ),
        // São Paulo skipped midnight: the day began at 01:00.
        (
            "0 0 * * *",
            "America/Sao_Paulo",
            "2018-11-03T12:00:00Z",
            "11-04 01:00:00-02:00, 11-05 00:00:00-02:00",
        ),
        // Samoa skipped 30 December 2011.
        ("0 9 * * *", "Pacific/Apia", "2011-12-29T20:00:00Z", "12-31 00:00:00+14:00, 12-31 09:00:00+14:00"),
    ] {
        assert_eq!(shown(rule, zone, after, 2), expected, "{rule} in {zone}");
    }
}

#[test]
fn days_that_are_left_out_do_not_fire() {
    let left_out = Days {
        dates: ["2026-12-24", "12-31"].map(|day| day.parse().unwrap()).to_vec(),
        weekdays: vec![downbeat_core::schedule::Weekday::Sunday],
    };
    for (rule, after, expected) in [
        // 27 December is a Sunday.
        ("0 6 24-31 12 *", "2026-12-01T00:00:00Z", ["12-25", "12-26", "12-28", "12-29", "12-30", "12-24"]),
        ("@every 24h", "2026-12-22T00:00:00Z", ["12-23", "12-25", "12-26", "12-28", "12-29", "12-30"]),
        ("@every 12h", "2026-12-23T12:00:00Z", ["12-25", "12-25", "12-26", "12-26", "12-28", "12-28"]),
    ] {
        let times = Times::new(rule.parse().unwrap(), Zone::default(), left_out.clone());
        let found: Vec<String> =
            times.after(at(after)).take(6).map(|at| at.strftime("%m-%d").to_string()).collect();
        assert_eq!(found, expected, "{rule}");
    }
}

#[test]
fn a_schedule_whose_days_are_all_left_out_never_fires() {
    let mondays = Days { weekdays: vec![downbeat_core::schedule::Weekday::Monday], ..Days::default() };
    let thursdays = Days { weekdays: vec![downbeat_core::schedule::Weekday::Thursday], ..Days::default() };
    let new_year = Days { dates: vec!["01-01".parse().unwrap()], ..Days::default() };
    // 1 January 1970 was a Thursday.
    for (rule, left_out) in [("0 0 * * MON", mondays), ("@every 7d", thursdays), ("@yearly", new_year)] {
        let times = Times::new(rule.parse().unwrap(), Zone::default(), left_out);
        assert_eq!(times.next(Timestamp::UNIX_EPOCH), None, "{rule}");
    }
}

#[test]
fn an_impossible_expression_is_refused_in_one_line_that_helps() {
    for (text, expected) in [
        ("", "has 5 fields (minute, hour, day, month, weekday), or 6 with the second first; this has 0"),
        ("* * * *", "this has 4"),
        ("* * * * * * *", "this has 7"),
        ("60 * * * *", "the minute `60` is not from 0 to 59"),
        ("* 24 * * *", "the hour `24` is not from 0 to 23"),
        ("* * 0 * *", "the day of the month `0` is not from 1 to 31"),
        ("* * * 13 *", "the month `13` is not from 1 to 12"),
        ("* * * * 8", "the weekday `8` is not from 0 to 7"),
        ("* * * * MOM", "the weekday `MOM` is unknown; did you mean `MON`?"),
        ("* * * JNA *", "the month `JNA` is unknown; did you mean `JAN`?"),
        ("+5 * * * *", "the minute `+5` is not from 0 to 59"),
        ("-5 * * * *", "the minute `` is not from 0 to 59"),
        ("1,,2 * * * *", "the minute `` is not from 0 to 59"),
        ("*/0 * * * *", "the step `0` of the minute is not from 1 to 59"),
        ("*/+5 * * * *", "the step `+5` of the minute is not from 1 to 59"),
        ("* 22-4 * * *", "the range `22-4` of the hour goes backwards; write two ranges, such as 22-23,0-4"),
        ("0 0 30 2 *", "it never fires: no month that it names has such a day"),
        ("0 0 31 4,6,9,11 *", "it never fires"),
        ("@dialy", "the name `@dialy` is unknown; did you mean `@daily`?"),
        ("@reboot", "`@reboot` is not a time; add a standing task"),
        ("@every", "`@every` is not an interval; write @every and a duration"),
        ("@every 500ms", "`@every 500ms` is not an interval"),
        ("@every 400d", "whole seconds from 1s to 366d"),
    ] {
        let error = text.parse::<Rule>().expect_err(text).to_string();
        assert!(error.contains(expected), "{text}: {error}");
        assert_eq!(error.lines().count(), 1, "{text}");
    }
    assert!("1,".repeat(200).parse::<Rule>().unwrap_err().to_string().contains("it has 400 bytes"));
}

#[test]
fn an_unknown_time_zone_is_refused_with_the_nearest_name() {
    for (name, expected) in [
        ("Europe/Berln", "the time zone `Europe/Berln` is unknown; did you mean `Europe/Berlin`?"),
        ("berlin", "did you mean `Europe/Berlin`?"),
        ("New York", "did you mean `America/New_York`?"),
        ("", "write a name such as UTC or Europe/Berlin"),
        ("Etc/Unknown", "unknown"),
        ("+02:00", "write a name such as UTC or Europe/Berlin"),
        ("../../etc/passwd", "unknown"),
    ] {
        let error = Zone::named(name).expect_err(name).to_string();
        assert!(error.contains(expected), "{name}: {error}");
    }
    assert_eq!(Zone::named("europe/berlin").unwrap().name(), "Europe/Berlin");
    assert_eq!(Zone::named("utc").unwrap().name(), "UTC");
}

/// A cron expression in the form that the slow walk reads: sets of numbers.
struct Slow {
    text: &'static str,
    minutes: BTreeSet<i8>,
    hours: BTreeSet<i8>,
    /// Matches a date by day, month and weekday (0 is Sunday).
    day: fn(i8, i8, i8) -> bool,
}

impl Slow {
    fn matches(&self, local: DateTime) -> bool {
        local.second() == 0
            && self.minutes.contains(&local.minute())
            && self.hours.contains(&local.hour())
            && (self.day)(local.day(), local.month(), local.weekday().to_sunday_zero_offset())
    }
}

fn slow_rules() -> Vec<Slow> {
    let all_hours: BTreeSet<i8> = (0..24).collect();
    let all_minutes: BTreeSet<i8> = (0..60).collect();
    vec![
        Slow { text: "* * * * *", minutes: all_minutes, hours: all_hours.clone(), day: |_, _, _| true },
        Slow {
            text: "*/15 * * * *",
            minutes: [0, 15, 30, 45].into(),
            hours: all_hours.clone(),
            day: |_, _, _| true,
        },
        Slow { text: "30 * * * *", minutes: [30].into(), hours: all_hours.clone(), day: |_, _, _| true },
        Slow { text: "30 2 * * *", minutes: [30].into(), hours: [2].into(), day: |_, _, _| true },
        Slow { text: "0 0 * * *", minutes: [0].into(), hours: [0].into(), day: |_, _, _| true },
        Slow {
            text: "15,45 1-3 * * *",
            minutes: [15, 45].into(),
            hours: [1, 2, 3].into(),
            day: |_, _, _| true,
        },
        Slow {
            text: "5 0,1,2,23 * * SUN",
            minutes: [5].into(),
            hours: [0, 1, 2, 23].into(),
            day: |_, _, weekday| weekday == 0,
        },
        Slow {
            text: "59 23 1,30 3,10,12 MON",
            minutes: [59].into(),
            hours: [23].into(),
            day: |day, month, weekday| {
                [3, 10, 12].contains(&month) && ([1, 30].contains(&day) || weekday == 1)
            },
        },
    ]
}

/// Walks every minute, and returns each local time with the moment at which it must fire: when it is first reached, or at
/// the first moment after the gap if clocks skip it.
fn slow_walk(tz: &TimeZone, from: Timestamp, until: Timestamp) -> Vec<(Timestamp, DateTime)> {
    let minute = SignedDuration::from_mins(1);
    let mut found = Vec::new();
    let (mut at, mut reached) = (from, tz.to_datetime(from));
    while at < until {
        at += minute;
        let now = tz.to_datetime(at);
        while reached < now {
            reached += minute;
            found.push((at, reached));
        }
    }
    found
}

/// Returns the moments of a walk at which the rule must fire, each once.
fn slow_times(rule: &Slow, walk: &[(Timestamp, DateTime)]) -> Vec<Timestamp> {
    let mut found: Vec<Timestamp> =
        walk.iter().filter(|(_, local)| rule.matches(*local)).map(|(at, _)| *at).collect();
    found.dedup();
    found
}

#[test]
fn times_agree_with_a_walk_over_every_minute_around_each_change_of_clocks() {
    let all = std::env::var("DOWNBEAT_TEST_ZONES").is_ok_and(|zones| zones == "all");
    let some = [
        ("Europe/Berlin", 2025, 2027),
        ("America/New_York", 2026, 2027),
        ("Australia/Lord_Howe", 2026, 2027),
        ("America/Sao_Paulo", 2017, 2019),
        ("Africa/Casablanca", 2026, 2027),
        ("Asia/Beirut", 2026, 2027),
        ("Pacific/Apia", 2011, 2012),
        ("Antarctica/Troll", 2026, 2027),
        ("America/Scoresbysund", 2024, 2025),
        ("Asia/Kathmandu", 1985, 1987),
        ("Pacific/Kwajalein", 1993, 1994),
    ];
    let zones: Vec<(String, i16, i16)> = if all {
        Zone::names().into_iter().map(|name| (name, 1970, 2040)).collect()
    } else {
        some.into_iter().map(|(name, from, until)| (name.to_owned(), from, until)).collect()
    };
    let rules = slow_rules();
    let (mut changes, mut fired, mut differences) = (0, 0, Vec::new());
    for (name, first_year, last_year) in zones {
        let Ok(tz) = TimeZoneDatabase::bundled().get(&name) else { panic!("{name}") };
        let year = |year: i16| jiff::civil::date(year, 1, 1).in_tz("UTC").unwrap().timestamp();
        for change in tz.following(year(first_year)).take_while(|change| change.timestamp() < year(last_year))
        {
            // Some zones had offsets with seconds until 1972. The walk is by minutes.
            let offsets = [change.offset(), tz.to_offset(change.timestamp() - SignedDuration::from_secs(1))];
            if offsets.iter().any(|offset| offset.seconds() % 60 != 0) {
                continue;
            }
            changes += 1;
            let around = SignedDuration::from_hours(27);
            let (from, until) = (change.timestamp() - around, change.timestamp() + around);
            let walk = slow_walk(&tz, from, until);
            for rule in &rules {
                let expected = slow_times(rule, &walk);
                let found: Vec<Timestamp> =
                    times(rule.text, &name).after(from).take_while(|at| *at <= until).collect();
                fired += found.len();
                if found != expected {
                    differences.push(format!("`{}` in {name} at {}", rule.text, change.timestamp()));
                }
            }
        }
    }
    assert!(changes >= 15, "only {changes} changes of clocks");
    assert!(fired > 10_000, "only {fired} moments");
    assert!(differences.is_empty(), "{} differences: {differences:#?}", differences.len());
}
