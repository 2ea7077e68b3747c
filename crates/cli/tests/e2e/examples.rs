//! The job files of the repository do what they say.

use crate::cluster::{Dev, Done, downbeat, example};

/// File, the exit code of its run, and how many instances succeed.
const EXAMPLES: [(&str, i32, u64); 7] = [
    ("hello.yaml", 0, 9),
    ("rolling.yaml", 0, 9),
    ("pipeline.yaml", 0, 9),
    ("graph.yaml", 0, 15),
    ("retry.yaml", 0, 6),
    ("on_failure.yaml", 1, 6),
    ("placed.yaml", 0, 3),
];

#[test]
fn every_example_is_in_the_list_and_valid() {
    let mut found: Vec<String> = std::fs::read_dir(example(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".yaml"))
        .collect();
    found.sort();
    let mut listed = EXAMPLES.map(|(name, ..)| name);
    listed.sort_unstable();
    assert_eq!(found, listed);
    for name in listed {
        let done = Done::of(
            downbeat(std::env::temp_dir().as_path())
                .args(["job", "validate", "-f", &example(name)])
                .output()
                .unwrap(),
        );
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
