//! Checks that the job files of the repository do what their comments describe.

use downbeat_testbed::{Dev, example, run_in};

/// File, the exit code of its run, and how many instances succeed.
const EXAMPLES: [(&str, i32, u64); 12] = [
    ("hello.yaml", 0, 9),
    ("rolling.yaml", 0, 9),
    ("pipeline.yaml", 0, 9),
    ("graph.yaml", 0, 7),
    ("fan_out.yaml", 0, 5),
    ("limits.yaml", 0, 6),
    ("cache.yaml", 0, 2),
    ("retry.yaml", 0, 6),
    ("on_failure.yaml", 1, 6),
    ("placed.yaml", 0, 3),
    ("rollout.yaml", 0, 6),
    ("outputs.yaml", 0, 7),
];

/// Those that need a container engine; the tests of containers run them.
const ELSEWHERE: [&str; 1] = ["container.yaml"];

#[test]
fn every_example_is_in_the_list_and_valid() {
    let mut found: Vec<String> = std::fs::read_dir(example(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".yaml"))
        .collect();
    found.sort();
    let mut listed: Vec<&str> = EXAMPLES.iter().map(|(name, ..)| *name).chain(ELSEWHERE).collect();
    listed.sort_unstable();
    assert_eq!(found, listed);
    for name in listed {
        let done = run_in(&std::env::temp_dir(), &["job", "validate", "-f", &example(name)]);
        assert_eq!(done.code, 0, "{done:?}");
    }
}

#[test]
fn every_example_ends_as_it_says() {
    let dev = Dev::start();
    for (name, code, succeeded) in EXAMPLES {
        let done = dev.run(&["job", "run", "-f", &example(name), "--wait", "-o", "json"]);
        assert_eq!(done.code, code, "{name}: {done:?}");
        let run: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
        assert_eq!(run["counts"]["succeeded"], succeeded, "{name}: {run}");
    }
}

/// Fenced blocks of a Markdown text that begin with this line.
fn blocks<'a>(text: &'a str, fence: &str) -> Vec<&'a str> {
    let begins = text.match_indices(fence).map(|(at, _)| &text[at + fence.len()..]);
    begins.map(|rest| rest.split("```").next().unwrap()).collect()
}

#[test]
fn the_job_file_in_the_readme_is_the_one_that_is_run() {
    let readme = std::fs::read_to_string(example("../README.md")).unwrap();
    let file = std::fs::read_to_string(example("rolling.yaml")).unwrap();
    assert_eq!(blocks(&readme, "```yaml\n"), [file.as_str()]);
}

#[test]
fn a_step_that_is_retried_is_printed_once() {
    let dev = Dev::start();
    let done = dev.run(&["job", "run", "-f", &example("retry.yaml"), "--watch"]);
    assert_eq!(done.code, 0, "{done:?}");
    let steps: Vec<&str> = done.stdout.lines().filter(|line| line.starts_with("step ")).collect();
    assert_eq!(steps.len(), 2, "{done:?}");
    assert!(steps[0].starts_with("step 0 flaky: 3/3 succeeded in "), "{done:?}");
    assert!(steps[0].ends_with(" after 3 attempts"), "{done:?}");
}
