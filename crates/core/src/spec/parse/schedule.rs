//! Reads `schedule`: one or several, each a cron expression or a map.

use jiff::Timestamp;

use super::field::{Checker, Hint, misspelt};
use super::path::Path;
use super::tree::{Content, Entry, Node};
use crate::limits;
use crate::nearest::advice;
use crate::schedule::{Days, EVERY_LEAST_S, EVERY_MOST_S, Rule, Times, Weekday, Zone};
use crate::shown::shown;
use crate::span::Span;
use crate::spec::{CatchUp, CatchUpPolicy, On, Schedule, When};

/// The names that other tools use for the fields of a schedule.
const OTHER_NAMES: &[Hint] = &[
    ("interval", "did you mean `every`?"),
    ("tz", "did you mean `timezone`?"),
    ("time_zone", "did you mean `timezone`?"),
    ("catchup", "did you mean `catch_up`?"),
    ("splay", "did you mean `jitter`?"),
];

impl Checker<'_> {
    pub(super) fn schedules(&mut self, path: Path<'_>, node: &Node<'_>) -> Vec<Schedule> {
        let Content::List(items) = node.content() else {
            return self.schedule(path, node).into_iter().collect();
        };
        let (count, most) = (items.len(), limits::SCHEDULES_PER_JOB);
        if !(1..=most).contains(&count) {
            let message = format!("the list has {count} schedules, but needs 1 to {most}");
            self.problem(path, node.at, message);
            return Vec::new();
        }
        items.iter().enumerate().filter_map(|(index, item)| self.schedule(path.index(index), item)).collect()
    }

    fn schedule(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<Schedule> {
        let entries = match node.content() {
            Content::Text(_) => {
                let (_, rule) = self.cron(path, node)?;
                return Some(Schedule::new(&rule, None));
            }
            Content::Map(entries) => entries,
            _ => return self.refuse_kind(path, node, "a cron expression, or a map with `cron` or `every`"),
        };
        let rule = self.when(path, node, entries);
        let (mut zone, mut exclude) = (None, Days::default());
        let (mut catch_up, mut jitter) = (None, None);
        for entry in entries {
            let field = path.field(&entry.key);
            let value = &entry.value;
            match entry.key.as_ref() {
                "cron" | "every" => {}
                "timezone" => zone = self.zone(field, value),
                "catch_up" => catch_up = self.catch_up(field, value),
                "exclude" => exclude = self.days(field, value).unwrap_or_default(),
                "jitter" => {
                    let range = Span::default()..=Span::from_secs(limits::JITTER_MOST_S);
                    jitter = self.span(field, value, range).filter(|jitter| !jitter.is_zero());
                }
                _ => self.unknown_field(path, entry, &[On::Schedule], OTHER_NAMES),
            }
        }
        let (when, rule) = rule?;
        let timezone = zone.as_ref().map(|zone| zone.name().to_owned());
        let times = Times::new(rule, zone.unwrap_or_default(), exclude.clone());
        if times.next(Timestamp::UNIX_EPOCH).is_none() {
            self.problem(path.field("exclude"), node.at, "it never fires: `exclude` has all of its days");
        }
        Some(Schedule { when, timezone, catch_up, exclude, jitter })
    }

    /// Reads `cron` or `every`, of which there must be one.
    fn when(&mut self, path: Path<'_>, node: &Node<'_>, entries: &[Entry<'_>]) -> Option<(When, Rule)> {
        let of = |name: &str| entries.iter().find(|entry| entry.key == name);
        match (of("cron"), of("every")) {
            (Some(_), Some(every)) => {
                let message = "a schedule has either `cron` or `every`; write two schedules to have both";
                self.refuse(path.field("every"), every.at, message)
            }
            (Some(cron), None) => self.cron(path.field("cron"), &cron.value),
            (None, Some(every)) => {
                let range = Span::from_secs(EVERY_LEAST_S)..=Span::from_secs(EVERY_MOST_S);
                let span = self.span(path.field("every"), &every.value, range)?;
                if span.0.subsec_nanos() != 0 {
                    return self.refuse(path.field("every"), every.value.at, "must be whole seconds");
                }
                Some((When::Every(span), Rule::Every(span.0.as_secs())))
            }
            (None, None) => {
                if !misspelt(entries, "cron", &[On::Schedule]) && !misspelt(entries, "every", &[On::Schedule])
                {
                    let message = "the field `cron` or `every` is missing: when the job starts, such as cron: \"0 3 * * *\"";
                    self.problem(path, node.at, message);
                }
                None
            }
        }
    }

    fn cron(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<(When, Rule)> {
        let text = self.text(path, node, "a cron expression")?;
        match text.parse::<Rule>() {
            Ok(rule @ Rule::Every(seconds)) => Some((When::Every(Span::from_secs(seconds)), rule)),
            Ok(rule @ Rule::Cron(_)) => Some((When::Cron(text.trim().to_owned()), rule)),
            Err(error) => self.refuse(path, node.at, format!("`{}`: {error}", shown(text))),
        }
    }

    fn zone(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<Zone> {
        let name = self.text(path, node, "the name of a time zone, such as Europe/Berlin")?;
        Zone::named(name).map_or_else(|error| self.refuse(path, node.at, error.to_string()), Some)
    }

    /// Reads `1h`, `none`, or a map.
    fn catch_up(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<CatchUp> {
        let windows = Span::from_secs(1)..=Span::from_secs(limits::CATCH_UP_MOST_S);
        let entries = match node.content() {
            Content::Map(entries) => entries,
            Content::Text(text) if text == CatchUpPolicy::None.as_str() => return Some(CatchUp::NONE),
            _ => {
                let window = self.span(path, node, windows)?;
                return Some(CatchUp { policy: CatchUpPolicy::All, window });
            }
        };
        let (mut policy, mut window, mut has_window) = (CatchUpPolicy::All, None, false);
        for entry in entries {
            let field = path.field(&entry.key);
            match entry.key.as_ref() {
                "policy" => policy = self.choice(field, &entry.value, &CatchUpPolicy::ALL)?,
                "window" => {
                    has_window = true;
                    window = self.span(field, &entry.value, windows.clone());
                }
                _ => self.unknown_field(path, entry, &[On::CatchUp], &[]),
            }
        }
        match (policy, has_window) {
            (CatchUpPolicy::None, true) => {
                self.refuse(path, node.at, "with `policy: none` nothing is caught up; remove `window`")
            }
            (CatchUpPolicy::None, false) => Some(CatchUp::NONE),
            (_, true) => window.map(|window| CatchUp { policy, window }),
            (_, false) if misspelt(entries, "window", &[On::CatchUp]) => None,
            (_, false) => self.refuse(
                path,
                node.at,
                "the field `window` is missing: how late a start may be, such as 1h",
            ),
        }
    }

    fn days(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<Days> {
        let mut days = Days::default();
        for entry in self.fields_of(path, node, On::Exclude)? {
            let field = path.field(&entry.key);
            match entry.key.as_ref() {
                "dates" => {
                    let items = self.list(field, &entry.value, "dates such as 2026-12-24 or 12-24")?;
                    if items.len() > limits::EXCLUDED_DATES {
                        let (count, most) = (items.len(), limits::EXCLUDED_DATES);
                        let message = format!("there are {count} dates; at most {most} are possible");
                        return self.refuse(field, entry.value.at, message);
                    }
                    for (index, item) in items.iter().enumerate() {
                        let path = field.index(index);
                        match self.text(path, item, "a date").map(str::parse) {
                            Some(Ok(day)) => days.dates.push(day),
                            Some(Err(error)) => self.problem(path, item.at, format!("{error}")),
                            None => {}
                        }
                    }
                }
                "weekdays" => {
                    let items = self.list(field, &entry.value, "weekdays such as sat, sun")?;
                    for (index, item) in items.iter().enumerate() {
                        days.weekdays.extend(self.weekday(field.index(index), item));
                    }
                }
                _ => self.unknown_field(path, entry, &[On::Exclude], &[]),
            }
        }
        Some(days)
    }

    /// Reads `sat`, `SAT` or `Saturday`.
    fn weekday(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<Weekday> {
        let text = self.text(path, node, "a weekday")?;
        let lower = text.to_lowercase();
        let is_meant = |day: &Weekday| day.as_str() == lower || day.name() == lower;
        Weekday::ALL.into_iter().find(is_meant).or_else(|| {
            let valid = Weekday::ALL.map(Weekday::as_str);
            let message = format!("`{}` is unknown; {}", shown(text), advice(text, &valid, "weekdays"));
            self.refuse(path, node.at, message)
        })
    }
}
