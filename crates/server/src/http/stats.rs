//! Owns statistics: how runs ended over time, and how long they usually take.

use std::time::Duration;

use axum::Json;
use downbeat_api::Stats;
use downbeat_core::{Span, limits};
use serde::Deserialize;
use utoipa::IntoParams;

use super::extract::{Api, Query};
use super::problem::{Failure, HttpResult, Reply};
use crate::stats::Part;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const MINUTE: Duration = Duration::from_secs(60);

/// How many periods there are by default.
const PERIODS: u32 = 24;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct StatsQuery {
    /// The cluster, by name or id.
    cluster: Option<String>,
    /// Only this job, with its steps.
    job: Option<String>,
    /// How far `ends` goes back: `24h` by default, at most `7d`.
    #[param(value_type = Option<String>)]
    last: Option<Span>,
    /// The length of a period in `ends`, in whole minutes; by default a 24th of `last`. At most 1,000 periods.
    #[param(value_type = Option<String>)]
    per: Option<Span>,
}

/// Shows how runs ended over time, and the usual durations of jobs and steps
///
/// The numbers are kept in the memory of each server, which reads the newest runs when it starts.
#[utoipa::path(
    get, operation_id = "showStats", path = "/stats", tag = "system", params(StatsQuery),
    responses((status = 200, description = "Ends of runs by period, and jobs with their medians", body = Stats))
)]
pub(super) async fn show(Api(service, caller): Api, query: Query<StatsQuery>) -> Reply<Stats> {
    let (per, periods) = periods(query.last, query.per)?;
    let cluster = service.cluster(&caller, query.cluster.as_deref()).await?;
    let part = Part { cluster, job: query.0.job, per, periods };
    Ok(Json(service.parts.stats.show(&part, service.now())))
}

fn periods(last: Option<Span>, per: Option<Span>) -> HttpResult<(Duration, u32)> {
    let wrong = |text: &str| Failure::bad_query(format!("the query is wrong: {text}"));
    let last = last.map_or(DAY, |last| last.0);
    let most = MINUTE * u32::try_from(limits::STATS_MINUTES).unwrap_or(u32::MAX);
    if last < MINUTE || last > most {
        return Err(wrong("last: write a duration from 1m to 7d"));
    }
    let per = per
        .map_or_else(|| Duration::from_secs((last / PERIODS).as_secs() / 60 * 60), |per| per.0)
        .max(MINUTE);
    if !per.as_secs().is_multiple_of(60) || per.subsec_nanos() != 0 {
        return Err(wrong("per: write whole minutes, such as 5m or 1h"));
    }
    let periods = last.as_secs().div_ceil(per.as_secs());
    match u32::try_from(periods) {
        Ok(periods) if periods <= limits::PAGE_MOST => Ok((per, periods)),
        _ => Err(wrong("per: there would be more than 1000 periods; write a longer duration")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn periods_of(last: Option<&str>, per: Option<&str>) -> Option<(u64, u32)> {
        let span = |text: &str| text.parse::<Span>().unwrap();
        periods(last.map(span), per.map(span)).ok().map(|(per, periods)| (per.as_secs() / 60, periods))
    }

    #[test]
    fn a_day_has_24_hours_unless_requested_otherwise() {
        for (last, per, minutes_and_periods) in [
            (None, None, Some((60, 24))),
            (Some("1h"), None, Some((2, 30))),
            (Some("5m"), None, Some((1, 5))),
            (Some("7d"), Some("1h"), Some((60, 168))),
            (Some("90m"), Some("1h"), Some((60, 2))),
            (Some("8d"), None, None),
            (Some("30s"), None, None),
            (Some("7d"), Some("1m"), None),
            (None, Some("90s"), None),
        ] {
            assert_eq!(periods_of(last, per), minutes_and_periods, "{last:?} {per:?}");
        }
    }
}
