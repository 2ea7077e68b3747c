//! Stored jobs: what people do with them, and the runs that their schedules start.

use downbeat_testbed::{Dev, Done, until};
use serde_json::{Value, json};

const NOOP: &str = "tasks:\n  - {backend: test, action: noop}\n";

fn read(done: &Done) -> Value {
    assert_eq!(done.code, 0, "{done:?}");
    serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done:?}"))
}

fn asked(dev: &Dev, args: &[&str]) -> Value {
    read(&dev.run(&[args, &["-o", "json"]].concat()))
}

/// Returns the runs of a job, the newest first.
fn history(dev: &Dev, job: &str) -> Vec<Value> {
    asked(dev, &["job", "history", job])["data"].as_array().unwrap().clone()
}

#[test]
fn a_job_starts_by_its_schedule_until_it_is_paused_and_again_when_it_is_resumed() {
    let dev = Dev::start();
    dev.write("tick.yaml", &format!("name: tick\nschedule: {{every: 1s}}\n{NOOP}"));
    let applied = asked(&dev, &["job", "apply", "-f", "tick.yaml"]);
    assert_eq!(applied["jobs"][0]["outcome"], "created");
    until("two times have started their runs", || (history(&dev, "tick").len() >= 2).then_some(()));
    let run = &history(&dev, "tick")[0];
    let id = run["id"].as_str().unwrap();
    let at = run["scheduled_at"].as_str().unwrap();
    assert_eq!(id, format!("default:tick:{at}"));
    assert_eq!((&run["job_version"], &run["by"]), (&json!(1), &json!("schedule")));
    let shown = dev.run(&["run", "show", id]);
    assert!(shown.stdout.contains("1 of the job"), "{shown:?}");

    let paused = dev.run(&["job", "pause", "tick"]);
    assert_eq!(paused.code, 0, "{paused:?}");
    assert_eq!(asked(&dev, &["job", "show", "tick"])["next"], json!([]));
    let before = history(&dev, "tick").len();
    let again = dev.run(&["job", "pause", "tick"]);
    assert_eq!(again.code, 5, "{again:?}");
    assert!(again.stderr.contains("job `tick` is already paused"), "{again:?}");
    // It can be started by hand meanwhile; no schedule has started it.
    let by_hand = dev.run(&["job", "run", "tick", "--wait"]);
    assert_eq!(by_hand.code, 0, "{by_hand:?}");
    assert_eq!(history(&dev, "tick").len(), before + 1);

    assert_eq!(dev.run(&["job", "resume", "tick"]).code, 0);
    until("it starts again", || (history(&dev, "tick").len() >= before + 2).then_some(()));
    assert_eq!(dev.run(&["job", "delete", "tick"]).code, 0);
    let gone = dev.run(&["job", "show", "tick"]);
    assert_eq!(gone.code, 4, "{gone:?}");
    // Its runs stay, each once.
    let runs = asked(&dev, &["run", "list", "--job", "tick"]);
    let mut ids: Vec<&str> =
        runs["data"].as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap()).collect();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert!(count >= before + 2 && ids.len() == count, "{ids:?}");
}

#[test]
fn versions_of_a_job_are_compared_and_rolled_back() {
    let dev = Dev::start();
    let job = |timeout: &str| format!("name: report\ntimeout: {timeout}\nparams: {{day: monday}}\n{NOOP}");
    dev.write("report.yaml", &job("5m"));
    assert_eq!(dev.run(&["job", "apply", "-f", "report.yaml"]).code, 0);
    assert_eq!(asked(&dev, &["job", "apply", "-f", "report.yaml"])["jobs"][0]["outcome"], "unchanged");
    dev.write("report.yaml", &job("6m"));
    let dry = asked(&dev, &["job", "apply", "-f", "report.yaml", "--dry-run"]);
    assert_eq!((&dry["jobs"][0]["outcome"], &dry["dry_run"]), (&json!("changed"), &json!(true)));
    assert_eq!(asked(&dev, &["job", "show", "report"])["version"], 1);
    let applied = dev.run(&["job", "apply", "-f", "report.yaml"]);
    assert_eq!(applied.stdout, "job report: changed: version 2\n  ~ timeout: \"5m\" → \"6m\"\n");
    let diff = dev.run(&["job", "diff", "report", "2", "1"]);
    assert_eq!(diff.stdout, "  ~ timeout: \"6m\" → \"5m\"\n");
    assert_eq!(dev.run(&["job", "diff", "report", "1", "7"]).code, 4);
    assert_eq!(asked(&dev, &["job", "rollback", "report", "1"])["job"]["version"], 3);
    let shown = asked(&dev, &["job", "show", "report"]);
    assert_eq!(shown["definition"]["timeout"], "5m");
    let versions: Vec<&Value> =
        shown["versions"].as_array().unwrap().iter().map(|version| &version["version"]).collect();
    assert_eq!(versions, [3, 2, 1]);
    let run = dev.run(&["job", "run", "report", "--param", "day=friday", "--wait", "-o", "json"]);
    assert_eq!(run.code, 0, "{run:?}");
    let runs = history(&dev, "report");
    assert_eq!((&runs[0]["job_version"], runs.len()), (&json!(3), 1));
    let wrong = dev.run(&["job", "run", "report", "--param", "dya=friday"]);
    assert!(wrong.code == 2 && wrong.stderr.contains("day"), "{wrong:?}");
}

#[test]
fn a_directory_of_jobs_is_applied_and_the_others_are_pruned() {
    let dev = Dev::start();
    dev.write("old.yaml", &format!("name: old\n{NOOP}"));
    assert_eq!(dev.run(&["job", "apply", "-f", "old.yaml"]).code, 0);
    let folder = tempfile::tempdir().unwrap();
    for name in ["a", "b"] {
        std::fs::write(folder.path().join(format!("{name}.yaml")), format!("name: {name}\n{NOOP}")).unwrap();
    }
    let path = folder.path().to_str().unwrap();
    let names = |dev: &Dev| -> Vec<String> {
        let jobs = asked(dev, &["job", "list"]);
        jobs["data"].as_array().unwrap().iter().map(|job| job["name"].as_str().unwrap().to_owned()).collect()
    };
    let dry = asked(&dev, &["job", "apply", "-f", path, "--prune", "--dry-run"]);
    assert_eq!(dry["deleted"], json!(["old"]));
    assert_eq!(names(&dev), ["old"]);
    let applied = dev.run(&["job", "apply", "-f", path, "--prune"]);
    assert_eq!(
        applied.stdout, "job a: created: version 1\njob b: created: version 1\njob old: deleted\n",
        "{applied:?}"
    );
    assert_eq!(names(&dev), ["a", "b"]);
}

#[test]
fn a_job_that_cannot_be_stored_is_refused() {
    let dev = Dev::start();
    for (file, text, expected) in [
        ("nameless.yaml", NOOP.to_owned(), "a stored job needs a name"),
        ("params.yaml", format!("name: x\nschedule: \"@daily\"\nparams: {{day: null}}\n{NOOP}"), "day"),
        ("never.yaml", format!("name: x\nschedule: \"0 0 30 2 *\"\n{NOOP}"), "it never fires"),
    ] {
        dev.write(file, &text);
        let refused = dev.run(&["job", "apply", "-f", file]);
        assert!(refused.code == 2 && refused.stderr.contains(expected), "{file}: {refused:?}");
    }
    assert_eq!(asked(&dev, &["job", "list"])["data"], json!([]));
}

#[test]
fn a_range_of_the_past_is_run_with_the_time_of_each_run() {
    let dev = Dev::start();
    let task = "tasks:\n  - {backend: test, action: echo, params: {message: 'at {{ run.scheduled_at }}'}}\n";
    dev.write("report.yaml", &format!("name: report\nschedule: \"@daily\"\n{task}"));
    asked(&dev, &["job", "apply", "-f", "report.yaml"]);
    let range = ["--from", "2026-03-01T00:00:00Z", "--to", "2026-03-04T00:00:00Z"];
    let backfill = |more: &[&str]| dev.run(&[&["job", "backfill", "report"], &range[..], more].concat());
    let dry = backfill(&["--dry-run"]);
    assert_eq!(
        (dry.code, dry.stdout.as_str()),
        (
            0,
            "2026-03-01T00:00:00Z\n2026-03-02T00:00:00Z\n2026-03-03T00:00:00Z\n\
             3 times of job report; nothing was started\n"
        ),
        "{dry:?}"
    );
    let done = backfill(&["--parallel", "2", "--wait"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.stdout.contains("completed") && done.stdout.contains("3 succeeded"), "{done:?}");
    assert!(done.stderr.contains("of job report: 3 times: 3 succeeded"), "{done:?}");
    let mut times: Vec<String> =
        history(&dev, "report").iter().map(|run| run["scheduled_at"].as_str().unwrap().to_owned()).collect();
    times.sort();
    assert_eq!(times, ["2026-03-01T00:00:00Z", "2026-03-02T00:00:00Z", "2026-03-03T00:00:00Z"]);
    let logs = dev.run(&["run", "logs", "default:report:2026-03-02T00:00:00Z"]);
    assert!(logs.stdout.contains("at 2026-03-02T00:00:00Z"), "{logs:?}");
    // All times have run; with `--again` they run once more.
    let second = read(&backfill(&["--wait", "-o", "json"]));
    assert_eq!((&second["existing"], history(&dev, "report").len()), (&json!(3), 3));
    let third = read(&backfill(&["--wait", "--again", "-o", "json"]));
    assert_eq!((&third["succeeded"], history(&dev, "report").len()), (&json!(3), 6));
    let listed = asked(&dev, &["job", "backfill", "list", "report"]);
    assert_eq!(listed["data"].as_array().unwrap().len(), 3);
    let id = third["id"].as_str().unwrap();
    let ended = dev.run(&["job", "backfill", "cancel", id]);
    assert!(ended.code == 5 && ended.stderr.contains("has ended"), "{ended:?}");
    let missing = dev.run(&["job", "backfill", "report", "--to", "2026-03-04T00:00:00Z"]);
    assert_eq!(missing.code, 2, "{missing:?}");
}
