//! Declared backends, with real processes.

mod support;

use downbeat_backends::{Backend, Declared, DeclaredBackend, Finish};
use downbeat_core::execution::Verdict;
use serde_json::{Value, json};
use support::{Bench, StandIn, params};

fn backup(bench: &Bench, program: &StandIn) -> DeclaredBackend {
    let declared = json!({
        "help": "Backups of this host",
        "actions": {"now": {
            "argv": [program.program, "--level={level}", "{label}", "--since={since}", "--", "{paths}"],
            "env": {"BACKUP_MODE": "{mode}", "FIXED": "yes"},
            "working_dir": bench.root(),
            "idempotent": true,
            "params": {
                "level": {"type": "integer", "required": true, "min": 0, "max": 9},
                "label": {"type": "text"},
                "since": {"type": "duration"},
                "paths": {"type": "texts", "pattern": "[-/a-z ]+"},
                "mode": {"type": "text", "choices": ["full", "quick"]},
            },
        }},
    });
    DeclaredBackend { declared: Declared::read("backup", &declared).unwrap(), ledger: bench.ledger.clone() }
}

#[tokio::test]
async fn values_fill_the_template_and_what_is_absent_leaves_no_trace() {
    let bench = Bench::new();
    let program = bench.stand_in("backup");
    let backup = backup(&bench, &program);
    assert!(backup.schema().action("now").unwrap().idempotent);
    for (given, args, mode) in [
        (json!({"level": 3}), &["--level=3", "--"][..], None),
        (
            json!({"level": 0, "label": "$(id) {level}", "since": "1h", "paths": ["/a b", "-x"], "mode": "full"}),
            &["--level=0", "$(id) {level}", "--since=1h", "--", "/a b", "-x"],
            Some("full"),
        ),
        (json!({"level": 1, "paths": "/one"}), &["--level=1", "--", "/one"], None),
    ] {
        assert_eq!(bench.run(&backup, "now", given).await, Finish::succeeded());
        let seen = program.seen().unwrap();
        assert_eq!(seen.argv[1..], *args);
        assert_eq!(seen.environment.get("BACKUP_MODE").map(String::as_str), mode);
        assert_eq!(seen.environment["FIXED"], "yes");
        assert_eq!(seen.directory, bench.root().to_str().unwrap());
    }
}

#[tokio::test]
async fn what_could_be_taken_for_an_option_is_refused_where_nothing_protects_it() {
    let bench = Bench::new();
    let program = bench.stand_in("own");
    let own = |params: Value, argv: Value| {
        let declared = json!({"actions": {"do": {"argv": argv, "params": params}}});
        DeclaredBackend { declared: Declared::read("own", &declared).unwrap(), ledger: bench.ledger.clone() }
    };
    let text = json!({"x": {"type": "text"}});
    let it = program.program.to_str().unwrap();
    for (declared, passes) in [
        (own(text.clone(), json!([it, "{x}"])), false),
        (own(text.clone(), json!([it, "{x}={x}"])), false),
        (own(json!({"x": {"type": "texts"}}), json!([it, "{x}"])), false),
        (own(json!({"x": {"type": "text", "pattern": ".*"}}), json!([it, "{x}"])), true),
        (own(text.clone(), json!([it, "--", "{x}"])), true),
        (own(text.clone(), json!([it, "--x={x}"])), true),
        (own(text.clone(), json!([it, "--", "a", "--x={x}"])), true),
        (own(text, json!([it, "{x}", "--", "{x}"])), false),
    ] {
        let given = params(&json!({"x": "--delete"}));
        let outcome = bench.try_run(&declared, "do", &given).await;
        assert_eq!(outcome.is_ok(), passes, "{outcome:?}");
        if let Err(refused) = outcome {
            assert!(refused.starts_with("x") && refused.contains("must not start with a dash"), "{refused}");
            assert_eq!(program.seen(), None);
        }
        assert!(bench.try_run(&declared, "do", &params(&json!({"x": "a-b"}))).await.is_ok());
        program.seen();
    }
    let number = own(json!({"x": {"type": "integer"}}), json!([it, "{x}"]));
    assert!(bench.try_run(&number, "do", &params(&json!({"x": -1}))).await.is_err());
}

#[test]
fn what_could_not_be_meant_is_refused_with_its_key() {
    let action = |action: Value| json!({"actions": {"do": action}});
    let with = |param: Value| action(json!({"argv": ["/bin/x", "{p}"], "params": {"p": param}}));
    let key = "backends.own.actions.do";
    for (declared, where_, reason) in [
        (json!({}), "backends.own.actions".to_owned(), "must be a section"),
        (json!({"actions": {}}), "backends.own.actions".to_owned(), "declare at least one"),
        (json!({"actions": {"Do": {}}}), "backends.own.actions.Do".to_owned(), "is not a valid name"),
        (json!({"action": {}}), "backends.own.action".to_owned(), "did you mean `actions`?"),
        (action(json!({})), format!("{key}.argv"), "is empty"),
        (action(json!({"argv": "/bin/x"})), format!("{key}.argv"), "must be a list of strings"),
        (action(json!({"argv": ["x"]})), format!("{key}.argv"), "absolute path"),
        (action(json!({"argv": ["/bin/x", "{p}"]})), format!("{key}.argv"), "declare it in"),
        (action(json!({"argv": ["/bin/x", "{{p}}"]})), format!("{key}.argv"), "must not be doubled"),
        (action(json!({"argv": ["/bin/{p}"]})), format!("{key}.argv"), "must not be a param"),
        (action(json!({"argv": ["/bin/bash", "-c", "x"]})), format!("{key}.argv"), "as a script"),
        (
            action(json!({"argv": ["/bin/x"], "params": {"p": {"type": "text"}}})),
            format!("{key}.params.p"),
            "is never used",
        ),
        (action(json!({"argv": ["/bin/x"], "env": {"A": "{q}"}})), format!("{key}.env"), "unknown param `q`"),
        (action(json!({"argv": ["/bin/x"], "working_dir": "x"})), format!("{key}.working_dir"), "absolute"),
        (with(json!({"type": "text", "pattern": "("})), format!("{key}.params.p.pattern"), "unclosed group"),
        (
            with(json!({"type": "text", "min": 1})),
            format!("{key}.params.p.min"),
            "is only for the type `integer`",
        ),
        (
            with(json!({"type": "integer", "pattern": "x"})),
            format!("{key}.params.p.pattern"),
            "is only for the types `text` and `texts`",
        ),
        (
            with(json!({"type": "text", "max_bytes": 1_000_000})),
            format!("{key}.params.p.max_bytes"),
            "at most 130048",
        ),
        (
            action(json!({"argv": ["/bin/x", "--p={p}"], "params": {"p": {"type": "texts"}}})),
            format!("{key}.params.p"),
            "needs its own element",
        ),
    ] {
        let refused = Declared::read("own", &declared).unwrap_err();
        assert_eq!(refused.key, where_, "{refused}");
        assert!(refused.reason.contains(reason), "{refused}");
    }
    let clash = Declared::read("exec", &json!({})).unwrap_err();
    assert!(clash.to_string().contains("built-in"), "{clash}");
}

#[tokio::test]
async fn cancelling_ends_the_program() {
    let bench = Bench::new();
    let program = bench.stand_in("backup");
    program.waits();
    let finish = bench.cancel_when_ready(&backup(&bench, &program), "now", json!({"level": 1})).await;
    assert_eq!(finish.verdict, Verdict::Cancelled);
    assert_eq!(bench.alive(), 0);
}
