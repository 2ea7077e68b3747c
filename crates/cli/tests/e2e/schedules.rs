//! Schedules and crontabs, without a server; and a job with a schedule that is run by hand.

use downbeat_testbed::{Dev, Done, run_in};
use serde_json::Value;

fn here(args: &[&str]) -> Done {
    run_in(&std::env::temp_dir(), args)
}

fn json(done: &Done) -> Value {
    assert_eq!(done.code, 0, "{done:?}");
    serde_json::from_str(&done.stdout).unwrap()
}

#[test]
fn a_preview_shows_the_next_times_around_a_change_of_clocks() {
    let preview = ["schedule", "preview", "--cron", "30 2 * * *", "--timezone", "europe/berlin", "--after"];
    let spring =
        json(&here(&[&preview[..], &["2026-03-28T12:00:00Z", "--count", "2", "-o", "json"]].concat()));
    let field = |times: &Value, name: &str| -> Vec<String> {
        let data = times["data"].as_array().unwrap();
        data.iter().map(|time| time[name].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(field(&spring, "local"), ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]);
    assert_eq!(field(&spring, "at"), ["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]);
    assert_eq!(field(&spring, "timezone"), ["Europe/Berlin", "Europe/Berlin"]);
    let autumn = here(&[&preview[..], &["2026-10-24T12:00:00Z", "--count", "2"]].concat());
    assert_eq!(autumn.code, 0, "{autumn:?}");
    let times: Vec<&str> =
        autumn.stdout.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(times, ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"], "{autumn:?}");
    let yaml = here(&["schedule", "preview", "--cron", "@hourly", "--count", "1", "-o", "yaml"]);
    assert!(yaml.code == 0 && yaml.stdout.starts_with("data:\n  - at:"), "{yaml:?}");
}

#[test]
fn an_impossible_preview_is_refused() {
    for (args, expected) in [
        (&["--cron", "0 0 30 2 *"][..], "--cron `0 0 30 2 *`: it never fires"),
        (&["--cron", "0 25 * * *"], "the hour `25` is not from 0 to 23"),
        (&["--cron", "@daily", "--timezone", "Europe/Berln"], "did you mean `Europe/Berlin`?"),
        (&["--file", "/nonexistent.yaml"], "no such file"),
        (&[], "missing: --cron <CRON>"),
    ] {
        let done = here(&[&["schedule", "preview"], args].concat());
        assert_eq!((done.code, done.stdout.as_str()), (2, ""), "{done:?}");
        assert!(done.stderr.contains(expected) && done.stderr.lines().count() == 1, "{done:?}");
    }
}

#[test]
fn a_crontab_becomes_files_that_are_valid_and_are_never_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let crontab = folder.path().join("crontab");
    std::fs::write(&crontab, "0 3 * * * /opt/backup\n@daily /opt/clean 'a b'\n@reboot /opt/start\n").unwrap();
    let import = |more: &[&str]| {
        let base = ["job", "import", "crontab", "crontab", "--timezone", "Europe/Berlin", "--target", "all"];
        run_in(folder.path(), &[&base[..], more].concat())
    };
    let printed = import(&[]);
    assert_eq!(printed.code, 2, "a line is left out: {printed:?}");
    assert!(printed.stderr.contains("1 line of crontab did not become a job"), "{printed:?}");
    assert!(printed.stderr.contains("crontab:3: `@reboot`"), "{printed:?}");
    assert!(printed.stdout.starts_with("# from line 1 of crontab\nname: backup\n"), "{printed:?}");
    let written = import(&["--out", "jobs"]);
    assert_eq!(written.stdout, "jobs/backup.yaml\njobs/clean.yaml\n", "{written:?}");
    for file in ["jobs/backup.yaml", "jobs/clean.yaml"] {
        let checked = run_in(folder.path(), &["job", "validate", "-f", file]);
        assert_eq!(checked.code, 0, "{checked:?}");
    }
    let preview = run_in(
        folder.path(),
        &["schedule", "preview", "-f", "jobs/clean.yaml", "--count", "1", "-o", "json"],
    );
    assert_eq!(json(&preview)["data"][0]["timezone"], "Europe/Berlin");
    let again = import(&["--out", "jobs"]);
    assert_eq!(again.code, 5, "{again:?}");
    assert!(again.stderr.contains("jobs/backup.yaml exists already; nothing was written"), "{again:?}");
}

#[test]
fn a_job_file_with_a_schedule_that_is_run_by_hand_starts_once_and_is_not_stored() {
    let dev = Dev::start();
    dev.write(
        "report.yaml",
        "name: report\nschedule: {cron: 0 3 * * *, timezone: Europe/Berlin}\ntasks:\n  - {backend: test, action: noop}\n",
    );
    let done = dev.run(&["job", "run", "-f", "report.yaml", "--wait"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(json(&dev.run(&["job", "list", "-o", "json"]))["data"], serde_json::json!([]));
}
