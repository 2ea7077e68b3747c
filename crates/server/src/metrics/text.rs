//! Converts metrics from OpenMetrics to the older text format of Prometheus.

use std::collections::HashSet;

/// Returns OpenMetrics text as text of version 0.0.4. There, a counter has the name of its samples, which end in
/// `_total`, and units and the end are not marked.
pub(crate) fn prometheus_text(open_metrics: &str) -> String {
    let is_counter = |line: &str| Some(line.strip_prefix("# TYPE ")?.strip_suffix(" counter")?.to_owned());
    let counters: HashSet<String> = open_metrics.lines().filter_map(is_counter).collect();
    let mut text = String::with_capacity(open_metrics.len());
    for line in open_metrics.lines() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words.as_slice() {
            ["#", "EOF" | "UNIT", ..] => continue,
            ["#", what @ ("TYPE" | "HELP"), name, rest] if counters.contains(*name) => {
                text.push_str(&format!("# {what} {name}_total {rest}"));
            }
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_the_name_of_their_samples_and_only_openmetrics_marks_units_and_the_end() {
        let open = "# HELP a_seconds Time.\n# TYPE a_seconds counter\n# UNIT a_seconds seconds\n\
                    a_seconds_total{x=\"# TYPE b counter\"} 1\n# HELP b How many.\n# TYPE b gauge\nb 2\n# EOF\n";
        let plain = "# HELP a_seconds_total Time.\n# TYPE a_seconds_total counter\n\
                     a_seconds_total{x=\"# TYPE b counter\"} 1\n# HELP b How many.\n# TYPE b gauge\nb 2\n";
        assert_eq!(prometheus_text(open), plain);
    }
}
