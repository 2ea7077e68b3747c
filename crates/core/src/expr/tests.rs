//! Tests the meaning of expressions, and that no expression can do harm.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::backend::{ParamProblem, Params};

fn template(params: &Params) -> Result<Option<Template>, ParamProblem> {
    Template::of("test", "echo", params)
}

fn references(params: &Params) -> Result<Option<References>, ParamProblem> {
    Ok(template(params)?.map(|template| template.references()))
}

fn render(params: &Params, scope: &Scope) -> Result<Params, ParamProblem> {
    template(params)?.map_or_else(|| Ok(params.clone()), |template| template.render(scope))
}

fn scope() -> Scope {
    let outputs =
        Data::from(&json!({"version": "1.2", "count": 3, "list": ["a", "b"], "sly": "{{ run.id }}"}));
    let step = |outputs: Data| Data::map([("outputs".to_owned(), outputs)]);
    let nodes = Data::map([("web-01".to_owned(), step(outputs.clone()))]);
    Scope {
        event: None,
        item: None,
        run: Data::from(&json!({"id": "run-1", "job": "deploy"})),
        params: Data::from(&json!({
            "text": "a b", "number": 5, "float": 1.5, "yes": true, "list": [1, "x", null], "empty": [], "void": "",
            "map": {"a": {"b": 1}}, "nothing": null, "huge": u64::MAX, "_if": 1, "zero": 0
        })),
        node: Some(Data::from(&json!({
            "id": "n-1", "hostname": "web-01", "groups": ["web"], "labels": {"disk": "ssd", "a.b/c": "d"},
            "capabilities": {"cpu": 4}, "slots": 2, "version": "0.1.0"
        }))),
        steps: BTreeMap::from([
            ("build".to_owned(), step(outputs.clone())),
            ("build-web".to_owned(), Data::map([("nodes".to_owned(), nodes)])),
        ]),
    }
}

/// Returns a scope with large params.
fn large() -> Scope {
    let params = Data::from(&json!({"big": "x".repeat(1_000_000), "letters": vec!["x"; 1_000]}));
    Scope { params, ..scope() }
}

fn params(value: Value) -> Params {
    Params::from([("p".to_owned(), value)])
}

fn rendered(value: Value) -> Result<Value, String> {
    rendered_in(&scope(), value)
}

fn rendered_in(scope: &Scope, value: Value) -> Result<Value, String> {
    render(&params(value), scope).map(|mut params| params.remove("p").unwrap()).map_err(|p| p.to_string())
}

#[test]
fn expressions_become_their_values() {
    for (text, expected) in [
        ("{{ params.number }}", json!(5)),
        ("{{params.text}}", json!("a b")),
        (" {{ params.number }}", json!(" 5")),
        ("{{ params.yes }}!", json!("true!")),
        ("{{ params.float }}/{{ params.huge }}", json!("1.5/18446744073709551615")),
        ("{{ params.huge }}", json!(u64::MAX)),
        ("{{ params.list }}", json!([1, "x", null])),
        ("-{{ params.list }}-{{ params.map }}", json!("-[1,\"x\",null]-{\"a\":{\"b\":1}}")),
        ("{{ params.map.a.b }}", json!(1)),
        ("{{ params['map'][\"a\"].b }}", json!(1)),
        ("{{ params.list[1] }}{{ params.list.0 }}", json!("x1")),
        ("{{ params.text[0:1] }}", json!("a")),
        ("{{ steps.build.outputs.version }}", json!("1.2")),
        (
            "{{ steps.build.outputs }}",
            json!({"version": "1.2", "count": 3, "list": ["a", "b"], "sly": "{{ run.id }}"}),
        ),
        ("{{ steps['build-web'].nodes['web-01'].outputs.version }}", json!("1.2")),
        ("{{ steps[\"build-web\"].nodes[node.hostname].outputs.count }}", json!(3)),
        ("{{ node.labels.disk }} {{ node.labels['a.b/c'] }} {{ node.capabilities.cpu }}", json!("ssd d 4")),
        ("{{ node.groups }}", json!(["web"])),
        ("{{ run.job }}-{{ run.id }}", json!("deploy-run-1")),
        ("{{ params.text ~ '-' ~ params.number ~ params.yes }}", json!("a b-5true")),
        ("{{ 'a' ~ 'b' == 'ab' and not 'c' ~ 'd' in ['x'] }}", json!(true)),
        ("{{ ('a' ~ params.number)|upper ~ 'c' }}", json!("A5c")),
        ("{{ 'x' ~ params.list[0] ~ ['y' ~ 'z'][0] }}", json!("x1yz")),
        ("{{ {'a': 'b' ~ 'c'} }}", json!({"a": "bc"})),
        ("{{ 'a' ~ 'b' if params.yes else 'c' ~ 'd' }}", json!("ab")),
        ("{{ 'a' if not params.yes else 'c' ~ 'd' }}", json!("cd")),
        ("{{ params._if }}", json!(1)),
        ("{{ params.number >= 5 }}", json!(true)),
        ("{{ 'web' in node.groups }}", json!(true)),
        ("{{ params.number == -5 }} {{ -5 }} {{ [1, -2.5e1] }}", json!("false -5 [1,-25.0]")),
        ("{{ params.zero or 'none' }}", json!("none")),
        ("{{ steps.gone.outputs.x | default('d') }}", json!("d")),
        ("{{ steps.gone.nodes['web-01'].outputs.x | default('d') }}", json!("d")),
        ("{{ params.nothing | default(7) }}", json!(7)),
        ("{{ node.labels.rack | default('?') }}", json!("?")),
        ("{{ steps.gone.outputs.x if not params.yes else 'fine' }}", json!("fine")),
        ("{{ params.text | upper }} {{ 'ÄB' | lower }} [{{ ' x ' | trim }}]", json!("A B äb [x]")),
        ("{{ params.text | replace(' ', '--') }}", json!("a--b")),
        ("{{ params.list[:2] | join(',') }}{{ ['a', 1, true] | join }}", json!("1,xa1true")),
        ("{{ params.text | split }}", json!(["a", "b"])),
        ("{{ 'a,b,,c' | split(',') | length }}", json!(4)),
        ("{{ params.list | first }}{{ steps.build.outputs.list | last }}", json!("1b")),
        ("{{ params.empty | first | default('none') }}", json!("none")),
        ("{{ 'abc' | length }}{{ params.map | length }}", json!("31")),
        ("{{ ' 42 ' | int }}", json!(42)),
        ("{{ params.float | int }}", json!(1)),
        ("{{ params.number | string }}", json!("5")),
        ("{{ params.map | tojson }}", json!("{\"a\":{\"b\":1}}")),
        ("{{ '{{' }}.Names{{ '}}' }}", json!("{{.Names}}")),
        ("{{ steps.build.outputs.sly }}", json!("{{ run.id }}")),
        ("{{\n  params.number\n}}", json!(5)),
        ("{{ params.void }}", json!("")),
        ("{{ true }}", json!(true)),
        ("$ { no } }} {%", json!("$ { no } }} {%")),
    ] {
        assert_eq!(rendered(json!(text)), Ok(expected), "{text}");
    }
}

#[test]
fn values_inside_lists_and_maps_are_rendered_and_keys_are_not() {
    let value = json!(["{{ params.number }}", {"{{ k }}": ["{{ run.id }}", 1, null]}, true]);
    assert_eq!(rendered(value), Ok(json!([5, {"{{ k }}": ["run-1", 1, null]}, true])));
}

#[test]
fn problems_name_the_param_the_part_and_what_is_wrong() {
    let deep = format!("{{{{ {}1{} }}}}", "(".repeat(20), ")".repeat(20));
    let many = format!("{{{{ 1{} }}}}", " ~ 1".repeat(150));
    let long = format!("{{{{ '{}' }}}}", "x".repeat(2_000));
    for (value, expected) in [
        (
            json!("{{ x"),
            "p: `{{` is not closed by `}}`; a literal `{{` is written as an expression: {{ \"{{\" }}",
        ),
        (
            json!("{{ }}"),
            "p: in `{{  }}`: the expression is empty; write a name between the braces, such as params.x",
        ),
        (
            json!(["a", "{{ version }}"]),
            "p[1]: in `{{ version }}`: there is no `version`; names begin with: run, params, steps, …",
        ),
        (
            json!({"k": ["{{ parms.x }}"]}),
            "p.k: in `{{ parms.x }}`: there is no `parms`; did you mean `params`?",
        ),
        (
            json!("{{ steps.build-web.outputs.x }}"),
            "p: in `{{ steps.build-web.outputs.x }}`: `-` is not available in expressions; write a name with a dash in brackets: steps[\"build-web\"]",
        ),
        (
            json!("{{ node.labels.my-label }}"),
            "p: in `{{ node.labels.my-label }}`: `-` is not available in expressions; write a name with a dash in brackets: node.labels[\"my-label\"]",
        ),
        (
            json!("{{ params.number - 1 }}"),
            "p: in `{{ params.number - 1 }}`: `-` is not available in expressions: they do not calculate; `~` joins strings",
        ),
        (
            json!("{{ 'x' * 1000000000 }}"),
            "p: in `{{ 'x' * 1000000000 }}`: `*` is not available in expressions: they do not calculate; `~` joins strings",
        ),
        (
            json!("{{ range(10) }}"),
            "p: in `{{ range(10) }}`: there is no `range`; names begin with: run, node, index, …",
        ),
        (
            json!("{{ params.x() }}"),
            "p: in `{{ params.x() }}`: calls are not available in expressions; there are filters: x | upper",
        ),
        (
            json!("{{ 'x'.upper() }}"),
            "p: in `{{ 'x'.upper() }}`: calls are not available in expressions; there are filters: x | upper",
        ),
        (
            json!("{{ (1)(2) }}"),
            "p: in `{{ (1)(2) }}`: calls are not available in expressions; there are filters: x | upper",
        ),
        (
            json!("{{ params.x is defined }}"),
            "p: in `{{ params.x is defined }}`: `is` is not available in expressions; compare with `==` or `in`",
        ),
        (
            json!("{{ params.x | uper }}"),
            "p: in `{{ params.x | uper }}`: there is no filter `uper`; did you mean `upper`?",
        ),
        (
            json!("{{ params.x | concat }}"),
            "p: in `{{ params.x | concat }}`: there is no filter `concat`; filters: int, first, join, …",
        ),
        (
            json!("{{ params.x | first.y }}"),
            "p: in `{{ params.x | first.y }}`: the result of `first` needs parentheses before a part of it is selected: (x | first).y",
        ),
        (json!("{{ params }}"), "p: in `{{ params }}`: the name of the param is missing; write params.NAME"),
        (
            json!("{{ (params).x }}"),
            "p: in `{{ (params).x }}`: the name of the param is missing; write params.NAME",
        ),
        (
            json!("{{ params[run.id] }}"),
            "p: in `{{ params[run.id] }}`: the name of the param is missing; write params.NAME",
        ),
        (
            json!("{{ steps }}"),
            "p: in `{{ steps }}`: the name of the step is missing; write steps.NAME.outputs.OUTPUT",
        ),
        (
            json!("{{ steps['a\\u0062'].outputs.x }}"),
            "p: in `{{ steps['a\\u0062'].outputs.x }}`: the name of the step is missing; write steps.NAME.outputs.OUTPUT",
        ),
        (
            json!("{{ steps['a' 'b'].outputs.x }}"),
            "p: in `{{ steps['a' 'b'].outputs.x }}`: the name of the step is missing; write steps.NAME.outputs.OUTPUT",
        ),
        (
            json!("{{ steps.build }}"),
            "p: in `{{ steps.build }}`: a step has `outputs` and `nodes`; write steps.build.outputs.OUTPUT, or steps.build.nodes[\"HOSTNAME\"].outputs.OUTPUT",
        ),
        (
            json!("{{ steps['a-b'].output.x }}"),
            "p: in `{{ steps['a-b'].output.x }}`: a step has `outputs` and `nodes`; write steps[\"a-b\"].outputs.OUTPUT, or steps[\"a-b\"].nodes[\"HOSTNAME\"].outputs.OUTPUT",
        ),
        (
            json!("{{ steps.build.nodes }}"),
            "p: in `{{ steps.build.nodes }}`: the node or the output is missing; write steps.build.nodes[\"HOSTNAME\"].outputs.OUTPUT",
        ),
        (
            json!("{{ node }}"),
            "p: in `{{ node }}`: `node` is not a value; write node.id; it has: id, hostname, groups, labels, capabilities, slots, version",
        ),
        (
            json!("{{ node.host }}"),
            "p: in `{{ node.host }}`: `node` has no `host`; it has: id, hostname, groups, labels, capabilities, slots, version",
        ),
        (
            json!("{{ run.jobs }}"),
            "p: in `{{ run.jobs }}`: `run` has no `jobs`; did you mean `job`? (it has: id, job, scheduled_at)",
        ),
        (
            json!("{{ params.list[0:2:-1] }}"),
            "p: in `{{ params.list[0:2:-1] }}`: a part of a list has a beginning and an end: x[1:3]",
        ),
        (
            json!("{{ params.x = 1 }}"),
            "p: in `{{ params.x = 1 }}`: `=` is not available in expressions; compare with `==`",
        ),
        (json!("{{ params.x; }}"), "p: in `{{ params.x; }}`: `;` is not available in expressions"),
        (
            json!("{{ 'x }} }}"),
            "p: `{{` is not closed by `}}`; a literal `{{` is written as an expression: {{ \"{{\" }}",
        ),
        (json!("{{ 0x10 }}"), "p: in `{{ 0x10 }}`: `0x10` is neither a number nor a name"),
        (json!("{{ 1 2 }}"), "p: in `{{ 1 2 }}`: unexpected input after expression"),
        (json!("{{ params.x ~ }}"), "p: in `{{ params.x ~ }}`: unexpected end of input, expected expression"),
        (json!("{{ ~ params.x }}"), "p: in `{{ ~ params.x }}`: unexpected `~`"),
        (json!("{{ [1 }}"), "p: in `{{ [1 }}`: unexpected end of input, expected `,`"),
        (
            json!(deep),
            "p: in `{{ ((((((((((((((((((((1)))))))))))))))))))) }}`: brackets are nested more than 16 levels deep",
        ),
        (
            json!(many),
            "p: in `{{ 1 ~ 1 ~ 1 ~ 1 ~ 1 ~ 1 ~ 1 ~ 1 ~ 1 ~ 1 ~ 1 ~ 1 ~ 1 ~ 1 ~ 1 ~ … }}`: the expression has more than 200 parts",
        ),
        (
            json!(long),
            "p: in `{{ 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx… }}`: the expression has 2002 bytes; at most 1024 are allowed",
        ),
        // Errors that only a value can show.
        (json!("{{ params.nothing }}"), "p: `params.nothing` has no value"),
        (json!("x{{ params.map.c.d }}"), "p: `params.map.c.d` has no value"),
        (json!("{{ params.nothing ~ 'x' }}"), "p: `params.nothing` has no value"),
        (json!("{{ params.gone | upper }}"), "p: `params.gone` has no value"),
        (
            json!("{{ steps.gone.outputs.x }}"),
            "p: `steps.gone.outputs.x` has no value: step `gone` was skipped, or did not set it",
        ),
        (
            json!("{{ steps.build.nodes['web-02'].outputs.version }}"),
            "p: `steps.build.nodes['web-02'].outputs.version` has no value: step `build` was skipped, or did not set it",
        ),
        (json!("{{ node.labels.rack }}"), "p: `node.labels.rack` has no value on this node"),
        (json!("{{ none }}"), "p: `{{ none }}` has no value"),
        (json!("{{ params.empty | first }}"), "p: `{{ params.empty | first }}` has no value"),
        (
            json!("{{ params.number | upper }}"),
            "p: in `{{ params.number | upper }}`: `upper` expects a string, not a number; `string` converts to one",
        ),
        (
            json!("{{ params.text | int }}"),
            "p: in `{{ params.text | int }}`: `int` expects a whole number, and this string is not one",
        ),
        (
            json!("{{ params.text | default }}"),
            "p: in `{{ params.text | default }}`: an argument of a filter is missing",
        ),
        (
            json!("{{ params.text | replace('', 'x') }}"),
            "p: in `{{ params.text | replace('', 'x') }}`: `replace` needs a string to search for, not an empty string",
        ),
        (json!("{{ {1: 2} }}"), "p: in `{{ {1: 2} }}`: the keys of a map must be strings"),
        (json!("{{ 1e999 }}"), "p: in `{{ 1e999 }}`: the number is too large"),
        (json!("{{ 99999999999999999999 }}"), "p: in `{{ 99999999999999999999 }}`: the number is too large"),
    ] {
        assert_eq!(rendered(value.clone()), Err(expected.to_owned()), "{value:.100}");
    }
}

#[test]
fn what_would_grow_beyond_all_bounds_is_an_error() {
    let large = large();
    let repeated = |what: &str, times: usize| vec![what; times].join(" ~ ");
    for text in [
        format!("{{{{ {} }}}}", repeated("params.big", 40)),
        format!("{{{{ [{}] }}}}", vec!["params.big"; 40].join(", ")),
        "{{ params.big | replace('x', params.big) }}".to_owned(),
        "{{ params.letters | join(params.big) }}".to_owned(),
        "{{ params.big | split('x') }}".to_owned(),
        "{{ [params.big, params.big] | tojson }}".to_owned(),
        "{{ params.big }}{{ params.big }}".to_owned(),
    ] {
        let problem = rendered_in(&large, json!(text)).unwrap_err();
        assert!(
            problem.contains("larger than 1048576 bytes") || problem.contains("at most 10000 pieces"),
            "{problem}"
        );
    }
    let list = vec![json!("{{ params.big }}"); 3];
    assert!(
        rendered_in(&large, json!(list)).unwrap_err().starts_with("p[1]: "),
        "the bound is for all of a task's params"
    );
    let many = "{{ 1 }}".repeat(1_001);
    assert_eq!(
        rendered_in(&large, json!(many)).unwrap_err(),
        "p: the params of a task hold at most 1000 expressions"
    );
}

#[test]
fn nothing_nested_as_deep_as_it_may_be_overflows_a_stack() {
    for text in [
        format!("{}1{}", "(".repeat(16), ")".repeat(16)),
        format!("{}1{}", "[".repeat(16), "]".repeat(16)),
        format!("{}1{}", "{'a':".repeat(16), "}".repeat(16)),
        format!("{}1", "not ".repeat(199)),
        format!("1{}", " ~ 1".repeat(99)),
        format!("1{}", " if 1 else 1".repeat(49)),
        format!("1{}", "|string".repeat(99)),
        format!("1{}", " and 1".repeat(99)),
        format!("1{}", " < 1".repeat(99)),
        format!("params.map{}", ".a".repeat(98)),
        format!("params.map{}1{}", "[params.map".repeat(16), "]".repeat(16)),
    ] {
        // Not every one has a value, but all of them must return.
        let _ = rendered(json!(format!("{{{{ {text} }}}}")));
    }
}

#[test]
fn what_is_used_is_known_whichever_branch_it_stands_in() {
    let found = references(&Params::from([
        ("a".to_owned(), json!(["{{ params.x if params.y else steps.one.outputs.z }}"])),
        ("b".to_owned(), json!({"k": "{{ true or steps['two-2'].nodes[node.hostname].outputs.z }}"})),
    ]));
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let expected = References {
        event: false,
        params: names(&["x", "y"]),
        steps: names(&["one", "two-2"]),
        step_nodes: true,
        node: true,
        run: false,
        item: false,
    };
    assert_eq!(found, Ok(Some(expected)));
    assert_eq!(references(&params(json!({"a": ["{ }", 1, "}}"]}))), Ok(None));
    assert_eq!(references(&params(json!("{{ 1 }}"))), Ok(Some(References::default())));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_text_without_braces_stays_as_it_is(text in "\\PC{0,40}") {
        prop_assume!(!text.contains("{{"));
        prop_assert_eq!(rendered(json!(text.clone())), Ok(json!(text)));
    }

    #[test]
    fn no_text_makes_it_panic(text in "\\PC{0,60}") {
        let _ = rendered(json!(format!("{{{{{text}}}}}")));
    }

    /// Builds texts from the language's own words, so that most of them get past the first checks.
    #[test]
    fn no_expression_makes_it_panic_and_what_is_seen_is_what_is_used(
        words in prop::collection::vec(prop::sample::select(vec![
            "params", "steps", "node", "run", ".", ".x", "[", "]", "(", ")", "{", "}", ",", ":", "~", "|", "|upper",
            "|join", "|default('')", "'a'", "\"b\"", "1", "-1", "1.5", "1e5", "not ", " in ", " and ", " or ", " if ",
            " else ", "==", "<", "params.text", "params.list", "params.map", "params.yes", "steps.build.outputs.version",
            "steps['build-web'].nodes['web-01'].outputs", "node.labels", "run.id", "-", "is", "none", "é", "0", "[0]",
            "[-1]", "[1:]", "[:-1]", "[5:1]", "[2:0:-1]", "|first", "|int", "|split(',')", "|replace('a', 'b')", "|tojson",
            "|length",
        ]), 0..12),
    ) {
        let text = format!("{{{{ {} }}}}", words.concat());
        let value = params(json!(text));
        let Ok(Some(found)) = references(&value) else { return Ok(()) };
        if let Ok(full) = render(&value, &scope()) {
            // Removing unused values changes nothing.
            let mut less = scope();
            less.steps.retain(|name, _| found.steps.contains(name));
            if !found.node {
                less.node = None;
            }
            if !found.run {
                less.run = Data::from(&json!({}));
            }
            prop_assert_eq!(render(&value, &less), Ok(full));
        }
    }
}

#[test]
fn what_a_shell_reads_keeps_its_braces() {
    let params: Params = serde_json::from_value(serde_json::json!({
        "command": "docker ps --format '{{.ID}}' --filter {{", "env": {"V": "{{ params.v }}"},
    }))
    .unwrap();
    let template = Template::of("exec", "shell", &params).unwrap().unwrap();
    let scope = Scope {
        event: None,
        item: None,
        run: Data::map([]),
        params: Data::map([("v".to_owned(), Data::from(&serde_json::json!("1")))]),
        node: None,
        steps: std::collections::BTreeMap::new(),
    };
    let rendered = template.render(&scope).unwrap();
    assert_eq!(rendered["command"], params["command"]);
    assert_eq!(rendered["env"]["V"], "1");
    for (text, expected) in [
        ("{{ params.x }}", true),
        ("a {{steps[\"b\"].outputs.c}}", true),
        ("{{ node.hostname }}", true),
        ("{{.ID}}", false),
        ("{{ range .Nodes }}", false),
        ("{{ nodes }}", false),
        ("{{", false),
    ] {
        assert_eq!(looks_like_expression(text), expected, "{text}");
    }
}
