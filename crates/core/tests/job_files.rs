//! Every file under `job_files/` is a case. `bad/x.yaml` is refused with the text in `bad/x.txt`; `good/x.yaml` is read
//! as `good/x.golden.json`. UPDATE_GOLDEN=1 writes the expected files again; read the difference before you commit it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use downbeat_core::backend::Catalogue;
use downbeat_core::spec::{self, Definition};

fn cases(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/job_files").join(folder);
    let mut files: Vec<PathBuf> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy();
            !name.ends_with(".golden.json") && (name.ends_with(".yaml") || name.ends_with(".json"))
        })
        .collect();
    files.sort();
    files
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

/// Compares with the golden file, or writes it. Returns the difference.
fn held_against(golden: &Path, found: &str) -> Option<String> {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(golden, found).unwrap();
        return None;
    }
    let expected = fs::read_to_string(golden).unwrap_or_default();
    (expected != found).then(|| format!("{}\n--- expected\n{expected}--- found\n{found}", name_of(golden)))
}

#[test]
fn every_bad_job_file_is_refused_with_the_text_beside_it() {
    let catalogue = Catalogue::builtin();
    let files = cases("bad");
    assert!(files.len() >= 45, "only {} cases", files.len());
    let mut differences = Vec::new();
    for file in files {
        let name = name_of(&file);
        let Err(problems) = spec::parse_bytes(&fs::read(&file).unwrap(), &name, &catalogue) else {
            differences.push(format!("{name} was accepted"));
            continue;
        };
        assert!(!problems.is_empty(), "{name}");
        let mut text = String::new();
        for problem in problems {
            writeln!(text, "{}", problem.render(&name)).unwrap();
        }
        differences.extend(held_against(&file.with_extension("txt"), &text));
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn a_command_line_that_only_a_shell_would_understand_is_valid_and_noted() {
    let text = "tasks:\n  - {backend: exec, action: run, params: {command: 'ls *.log | wc -l'}}\n  - {backend: exec, \
                action: run, params: {command: [ls, '|', wc]}}\n  - {backend: docker, action: run, params: {image: \
                alpine, command: 'echo $HOME'}}\n  - {backend: exec, action: shell, params: {command: 'ls | wc'}}\n";
    let noted = spec::parse_noting(text, "job.yaml", &Catalogue::builtin()).unwrap();
    let rendered: Vec<String> = noted.notes.iter().map(|note| note.render("job.yaml")).collect();
    assert_eq!(
        rendered,
        [
            "job.yaml:2:52: tasks[0].params.command: no shell reads `*` here, the program gets it as it is; `exec shell` \
             runs a command in a shell",
            "job.yaml:4:69: tasks[2].params.command: no shell reads `$` here, the program gets it as it is; write [sh, \
             -c, COMMAND] to run it in a shell",
        ]
    );
}

#[test]
fn every_good_job_file_is_read_as_the_definition_beside_it() {
    let catalogue = Catalogue::builtin();
    let mut differences = Vec::new();
    for file in cases("good") {
        let name = name_of(&file);
        let definition = match spec::parse_bytes(&fs::read(&file).unwrap(), &name, &catalogue) {
            Ok(definition) => definition,
            Err(problems) => {
                differences.extend(problems.iter().map(|problem| problem.render(&name)));
                continue;
            }
        };
        let json = serde_json::to_string_pretty(&definition).unwrap() + "\n";
        differences.extend(held_against(&file.with_extension("golden.json"), &json));
        assert_same_when_read_back(&definition, &catalogue, &name);
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn every_example_of_the_repository_is_a_job() {
    let catalogue = Catalogue::builtin();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut seen = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            let name = name_of(&path);
            let definition = spec::parse_bytes(&fs::read(&path).unwrap(), &name, &catalogue)
                .unwrap_or_else(|problems| panic!("{}", problems[0].render(&name)));
            assert_same_when_read_back(&definition, &catalogue, &name);
            seen += 1;
        }
    }
    assert!(seen > 0, "there are no examples");
}

fn assert_same_when_read_back(definition: &Definition, catalogue: &Catalogue, name: &str) {
    let json = serde_json::to_value(definition).unwrap();
    assert_eq!(&spec::from_json(&json, catalogue).unwrap(), definition, "{name} through from_json");
    assert_eq!(&serde_json::from_value::<Definition>(json).unwrap(), definition, "{name} through serde");
    let text = serde_json::to_string(definition).unwrap();
    assert_eq!(&spec::parse(&text, name, catalogue).unwrap(), definition, "{name} through its own text");
}

/// Returns the text of the only `Problem`, for inputs that are generated rather than stored.
fn only_problem(text: &str) -> String {
    let problems = spec::parse(text, "made.yaml", &Catalogue::builtin()).unwrap_err();
    assert_eq!(problems.len(), 1, "{problems:?}");
    problems[0].render("made.yaml")
}

#[test]
fn a_huge_file_is_refused_by_its_size() {
    let text = format!("name: x\ntasks: []\n# {}", "x".repeat(1024 * 1024));
    assert_eq!(
        only_problem(&text),
        "made.yaml:1:1: the file has 1048596 bytes; a job file may have at most 1048576; split the job"
    );
}

#[test]
fn params_that_aliases_blow_up_are_refused() {
    let long = "x".repeat(100_000);
    let task = |params: &str| {
        format!("tasks:\n  - backend: exec\n    action: run\n    params:\n      stdin: &a {long}\n{params}")
    };
    let problem = only_problem(&task(&format!("      command: [echo{}]\n", ", *a".repeat(40))));
    assert!(problem.contains("tasks[0].params.command: takes 4000"), "{problem}");
    let five = "*a, *a, *a, *a, *a";
    let problem = only_problem(&task(&format!("      command: [{five}]\n      args: [{five}]\n")));
    assert!(problem.contains("tasks[0].params: the params of one task are 1100"), "{problem}");
    let task = "  - {backend: test, action: echo, params: {message: *a}}\n";
    let text = format!("name: &a {}\ntasks:\n{}", "x".repeat(200), task.repeat(100));
    assert!(spec::parse(&text, "made.yaml", &Catalogue::builtin()).is_ok(), "some aliases are fine");
}

#[test]
fn more_steps_than_a_run_may_have_are_refused() {
    let text = format!("tasks:\n{}", "- {backend: ping, action: ping}\n".repeat(10_001));
    assert_eq!(
        only_problem(&text),
        "made.yaml:2:3: tasks: there are 10001 steps; a run may have at most 10000; split the job"
    );
    let most = format!("tasks:\n{}", "- {backend: ping, action: ping}\n".repeat(10_000));
    assert_eq!(spec::parse(&most, "made.yaml", &Catalogue::builtin()).unwrap().tasks.len(), 10_000);
}

#[test]
fn more_items_than_a_task_may_go_over_are_refused() {
    let text = |items: usize| {
        format!("tasks:\n- {{backend: ping, action: ping, for_each: [{}]}}\n", "1,".repeat(items))
    };
    assert_eq!(
        only_problem(&text(10_001)),
        "made.yaml:2:43: tasks[0].for_each: there are 10001 items; at most 10000 are possible"
    );
    let most = spec::parse(&text(10_000), "made.yaml", &Catalogue::builtin()).unwrap();
    assert_eq!(most.tasks[0].for_each().unwrap().items.as_array().unwrap().len(), 10_000);
}

#[test]
fn a_cycle_over_ten_thousand_tasks_is_found() {
    let mut text = "tasks:\n".to_owned();
    for index in 0..10_000 {
        writeln!(
            text,
            "- {{name: t{index}, backend: ping, action: ping, depends_on: [t{}]}}",
            (index + 1) % 10_000
        )
        .unwrap();
    }
    let problem = only_problem(&text);
    assert!(
        problem.contains("tasks[0].depends_on: the tasks wait for each other: t0 → t1 → t2 →"),
        "{problem:.300}"
    );
    assert!(problem.len() < 2_000, "the cycle is cut: {} bytes", problem.len());
}

#[test]
fn more_values_than_a_file_may_hold_are_refused() {
    let text = format!("tasks: [{}]", "1,".repeat(500_001));
    assert!(only_problem(&text).ends_with("there are more than 500000 values, with aliases expanded"));
}

#[test]
fn no_more_than_a_hundred_problems_are_listed() {
    let text = format!("tasks:\n{}", "- {backend: pong, action: ping}\n".repeat(1_000));
    let problems = spec::parse(&text, "made.yaml", &Catalogue::builtin()).unwrap_err();
    assert_eq!(problems.len(), 100);
}

#[test]
fn json_bodies_have_problems_with_paths_and_without_positions() {
    let body =
        serde_json::json!({"tasks": [{"backend": "exec", "action": "run", "params": {"command": []}}]});
    let problems = spec::from_json(&body, &Catalogue::builtin()).unwrap_err();
    assert_eq!(problems.len(), 1);
    assert_eq!(problems[0].at, None);
    assert_eq!(
        problems[0].render("request"),
        "request: tasks[0].params.command: is empty; its first string is the program to run"
    );
    let mut deep = serde_json::json!(1);
    for _ in 0..100 {
        deep = serde_json::json!([deep]);
    }
    let problems = spec::from_json(&deep, &Catalogue::builtin()).unwrap_err();
    assert_eq!(problems[0].message, "values are nested more than 32 levels deep");
}
