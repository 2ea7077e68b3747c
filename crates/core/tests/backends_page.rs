//! Checks that `docs/backends.md` matches the built-in backends: the part between its markers is generated from the
//! catalogue.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use downbeat_core::backend::{ActionSchema, Catalogue, ParamKind, ParamSchema};

const BEGIN: &str = "<!-- written from the catalogue: UPDATE_GOLDEN=1 -->\n";
const END: &str = "<!-- end -->";

fn written() -> String {
    let mut page = String::new();
    for backend in Catalogue::builtin().backends() {
        writeln!(page, "\n### `{}`\n\n{}.\n", backend.name, backend.help).unwrap();
        writeln!(page, "| action | idempotent | param | holds | |\n|---|---|---|---|---|").unwrap();
        for action in &backend.actions {
            rows(&mut page, action);
        }
    }
    page.push('\n');
    page
}

fn rows(page: &mut String, action: &ActionSchema) {
    let idempotent = if action.idempotent { "yes" } else { "no" };
    let mut first = format!("`{}` | {idempotent}", action.name);
    if action.params.is_empty() {
        writeln!(page, "| {first} | | | |").unwrap();
    }
    for param in &action.params {
        let needed = if param.required { "**required**: " } else { "" };
        let help = param.help.replace('|', "\\|");
        writeln!(page, "| {first} | `{}` | {} | {needed}{help} |", param.name, holds(param)).unwrap();
        first = " | ".to_owned();
    }
}

fn holds(param: &ParamSchema) -> String {
    if !param.choices.is_empty() {
        return param.choices.iter().map(|choice| format!("`{choice}`")).collect::<Vec<_>>().join(", ");
    }
    let kind = match param.kind {
        ParamKind::Text => "a string",
        ParamKind::Integer => "a whole number",
        ParamKind::Boolean => "true or false",
        ParamKind::Duration => "a duration",
        ParamKind::Texts => "a string or a list of strings",
        ParamKind::Argv => "a list of strings, or one string that is split at blanks",
        ParamKind::Map => "strings by name",
        ParamKind::Any if param.pattern.is_some() => "a string or a number",
        ParamKind::Any => "a value",
    };
    match (param.min, param.max, param.max_bytes) {
        (Some(min), Some(max), _) => format!("{kind}, {min} to {max}"),
        (_, _, Some(most)) if matches!(param.kind, ParamKind::Text) || kind == "a string or a number" => {
            format!("{kind}, at most {most} bytes")
        }
        (_, _, Some(most)) => format!("{kind}, at most {most} bytes each"),
        _ => kind.to_owned(),
    }
}

#[test]
fn the_page_of_backends_lists_them_as_they_are() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/backends.md");
    let page = fs::read_to_string(&file).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the page says where the list begins");
    let (found, after) = rest.split_once(END).expect("the page says where the list ends");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&file, format!("{before}{BEGIN}{}{END}{after}", written())).unwrap();
        return;
    }
    assert_eq!(found, written(), "regenerate it with UPDATE_GOLDEN=1");
}
