//! Any bytes are a definition or a list of problems, and a definition survives being stored and read back.

#![no_main]

use std::sync::LazyLock;

use downbeat_core::backend::Catalogue;
use downbeat_core::spec::{self, Definition, Problem};
use libfuzzer_sys::fuzz_target;

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(Catalogue::builtin);

fuzz_target!(|bytes: &[u8]| {
    for origin in ["fuzz.yaml", "fuzz.json"] {
        match spec::parse_bytes(bytes, origin, &CATALOGUE) {
            Ok(definition) => check_definition(&definition),
            Err(problems) => check_problems(&problems, bytes),
        }
    }
    if let Ok(value) = serde_json::from_slice(bytes) {
        match spec::from_json(&value, &CATALOGUE) {
            Ok(definition) => check_definition(&definition),
            Err(problems) => assert!(!problems.is_empty()),
        }
    }
});

fn check_definition(definition: &Definition) {
    assert!(!definition.tasks.is_empty());
    let json = serde_json::to_value(definition).expect("a definition is JSON");
    let checked = spec::from_json(&json, &CATALOGUE).expect("what was accepted is accepted again");
    assert_eq!(&checked, definition);
    let trusted: Definition = serde_json::from_value(json).expect("what was stored can be read");
    assert_eq!(&trusted, definition);
}

fn check_problems(problems: &[Problem], bytes: &[u8]) {
    assert!(!problems.is_empty() && problems.len() <= 100);
    let lines = bytes.iter().filter(|byte| matches!(byte, b'\n' | b'\r')).count() + 1;
    for problem in problems {
        let text = problem.render("fuzz");
        assert!(text.len() < 10_000, "a message of {} bytes", text.len());
        assert!(!text.contains(|c: char| c.is_control()), "{text:?}");
        assert!(problem.line as usize <= lines + 1, "{text:?} is outside of the file");
    }
}
