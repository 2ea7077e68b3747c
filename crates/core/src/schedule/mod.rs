//! Decides when jobs start by themselves: cron expressions and intervals (`cron`, `field`), time zones (`zone`), days
//! that are left out (`days`), the times that follow from all of them (`times`), which of them start a run now (`due`), and which job is next
//! (`timer`); and turns crontabs into jobs (`crontab`). No clock: callers pass times in.

mod cron;
mod crontab;
mod days;
mod due;
mod field;
mod timer;
mod times;
mod zone;

pub use cron::{BadCron, Cron, EVERY_LEAST_S, EVERY_MOST_S, Rule};
pub use crontab::{ImportOptions, Imported, ImportedJob, Remark, import as import_crontab};
pub use days::{BadDay, Day, Days, Weekday};
pub use due::{Activity, BadSchedule, Decision, Firing, SkipReason, Skipped, Timetable, key};
pub use timer::Timer;
pub use times::Times;
pub use zone::{UnknownZone, Zone};
