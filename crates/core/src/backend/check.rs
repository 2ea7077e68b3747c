//! Checks a task's params against its action's schema, and converts them to the form that backends read.

use std::fmt;

use serde_json::Value;

use super::argv;
use super::builtin;
use super::pattern::{BadPattern, Pattern};
use super::schema::{ActionSchema, ParamKind, ParamSchema, Params};
use crate::limits;
use crate::nearest::{advice, nearest};
use crate::parts::parts;
use crate::shown::shown;
use crate::span::{NotASpan, Span};

/// A problem with one param.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamProblem {
    pub param: String,
    /// The invalid part, when the param is a list or a map.
    pub element: Option<Element>,
    pub message: String,
}

/// A part of a param.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Element {
    Index(usize),
    Key(String),
}

impl fmt::Display for ParamProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.param)?;
        match &self.element {
            None => {}
            Some(Element::Index(index)) => write!(f, "[{index}]")?,
            Some(Element::Key(key)) => write!(f, ".{}", shown(key))?,
        }
        write!(f, ": {}", self.message)
    }
}

/// Returns the params in the form that a backend reads (an argv is a list, texts are texts), or all their problems.
pub fn check_params(action: &ActionSchema, given: &Params) -> Result<Params, Vec<ParamProblem>> {
    check_params_but(action, given, |_| false)
}

/// As `check_params`, when some params contain expressions and have no value yet. For these it only checks that the
/// param exists; a command line is split, so that no value becomes two arguments.
pub(crate) fn check_params_but(
    action: &ActionSchema,
    given: &Params,
    pending: impl Fn(&str) -> bool,
) -> Result<Params, Vec<ParamProblem>> {
    let mut problems = Vec::new();
    let mut checked = Params::new();
    for (name, value) in given {
        if problems.len() >= limits::PROBLEMS_LISTED {
            break;
        }
        let mut check = Check { param: name, problems: &mut problems, rule: Rule::none() };
        match action.params.iter().find(|param| &param.name == name) {
            Some(schema) => {
                let is_pending = pending(name);
                let value =
                    if is_pending { check.pending(schema.kind, value) } else { check.value(schema, value) };
                checked.extend(value.map(|value| (name.clone(), value)));
            }
            None => check.note(None, unknown(action, name)),
        }
    }
    for schema in &action.params {
        // A misspelt name was already reported with the right one.
        let misspelt = || {
            given.keys().take(limits::PROBLEMS_LISTED).any(|name| meant(action, name) == Some(&schema.name))
        };
        if schema.required && !given.contains_key(&schema.name) && !misspelt() {
            let message = missing(action, schema);
            problems.push(ParamProblem { param: schema.name.clone(), element: None, message });
        }
    }
    if problems.is_empty() { Ok(checked) } else { Err(problems) }
}

fn unknown(action: &ActionSchema, name: &str) -> String {
    if action.params.is_empty() {
        return format!("action `{}` takes no params; remove `{}`", action.name, shown(name));
    }
    let names: Vec<&str> = names(action).collect();
    format!("action `{}` has no param `{}`; {}", action.name, shown(name), advice(name, &names, "params"))
}

fn names(action: &ActionSchema) -> impl Iterator<Item = &str> {
    action.params.iter().map(|param| param.name.as_str())
}

/// Returns the param that an unknown name was probably meant to be.
fn meant<'a>(action: &'a ActionSchema, name: &str) -> Option<&'a str> {
    if names(action).any(|known| known == name) { None } else { nearest(name, names(action)) }
}

fn missing(action: &ActionSchema, schema: &ParamSchema) -> String {
    let help = if schema.help.is_empty() { String::new() } else { format!(": {}", schema.help) };
    format!("action `{}` needs the param `{}`, {}{help}", action.name, schema.name, valid(schema))
}

/// Describes the valid values of a param.
fn valid(schema: &ParamSchema) -> String {
    if !schema.choices.is_empty() {
        return format!("one of {}", schema.choices.join(", "));
    }
    match (schema.kind, schema.min, schema.max) {
        (ParamKind::Any, _, _) if schema.pattern.is_some() => "a string or a number".to_owned(),
        (ParamKind::Integer, Some(min), Some(max)) => format!("a whole number from {min} to {max}"),
        (ParamKind::Integer, Some(min), None) => format!("a whole number from {min} on"),
        (ParamKind::Integer, None, Some(max)) => format!("a whole number up to {max}"),
        (kind, _, _) => valid_kind(kind).to_owned(),
    }
}

/// Describes the valid values of a kind.
fn valid_kind(kind: ParamKind) -> &'static str {
    match kind {
        ParamKind::Text => "a string",
        ParamKind::Integer => "a whole number",
        ParamKind::Boolean => "true or false",
        ParamKind::Duration => "a duration such as 500ms, 1.5s or 30m",
        ParamKind::Texts => "a string or a list of strings",
        ParamKind::Argv => "a list of strings, or one string that is split at blanks",
        ParamKind::Map => "a map of strings",
        ParamKind::Any => "any value",
    }
}

/// Describes a pattern. Patterns of the built-in backends are described in words; only a pattern that a user wrote is
/// shown as it is.
fn described_pattern(pattern: &str, help: &str) -> String {
    match (builtin::form(pattern), help) {
        (Some(form), _) => format!("be {form}"),
        (None, "") => format!("match {pattern}"),
        (None, help) => format!("match {pattern} ({help})"),
    }
}

fn unusable(error: &BadPattern) -> String {
    format!(
        "cannot be checked: the pattern that is declared for it is not usable here ({error}); correct it in the node's \
         settings"
    )
}

/// Describes the value that was found instead.
fn described(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Bool(value) => format!("{value}"),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) => format!("the string \"{}\"", shown(text)),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a map".to_owned(),
    }
}

struct Check<'c> {
    param: &'c str,
    problems: &'c mut Vec<ParamProblem>,
    rule: Rule<'c>,
}

/// The rule for every text of a param.
struct Rule<'c> {
    schema: Option<&'c ParamSchema>,
    /// `Err` when the declaring node understands the pattern but this program does not: then every value is refused.
    pattern: Option<Result<Pattern, BadPattern>>,
}

impl<'c> Rule<'c> {
    fn none() -> Self {
        Self { schema: None, pattern: None }
    }

    fn of(schema: &'c ParamSchema) -> Self {
        Self { schema: Some(schema), pattern: schema.pattern.as_deref().map(Pattern::new) }
    }

    /// Returns the problem with a name in a map.
    fn broken_name(&self, name: &str) -> Option<String> {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Some("a name must not be empty, nor contain `=` or a NUL".to_owned());
        }
        let pattern = self.schema?.name_pattern.as_deref()?;
        match Pattern::new(pattern) {
            Ok(known) if known.matches(name) => None,
            Ok(_) => Some(format!("the name \"{}\": must {}", shown(name), described_pattern(pattern, ""))),
            Err(error) => Some(unusable(&error)),
        }
    }

    /// Returns the problem with a text.
    fn broken(&self, text: &str) -> Option<String> {
        // No NUL: neither argv nor environment nor PostgreSQL's JSON can hold one.
        if text.contains('\0') {
            return Some(
                "contains a NUL character, which cannot be passed to a program; remove it".to_owned(),
            );
        }
        let schema = self.schema?;
        if let Some(most) = schema.max_bytes.filter(|most| text.len() as u64 > *most) {
            return Some(format!("is {} bytes long; at most {most} are possible", text.len()));
        }
        if !schema.choices.is_empty() && !schema.choices.iter().any(|choice| choice == text) {
            let choices: Vec<&str> = schema.choices.iter().map(String::as_str).collect();
            let advice = advice(text, &choices, "possible");
            return Some(format!("\"{}\" is not possible; {advice}", shown(text)));
        }
        match self.pattern.as_ref()? {
            Ok(pattern) if pattern.matches(text) => None,
            Ok(_) => {
                let pattern = schema.pattern.as_deref().unwrap_or_default();
                Some(format!("\"{}\": must {}", shown(text), described_pattern(pattern, &schema.help)))
            }
            Err(error) => Some(unusable(error)),
        }
    }
}

impl<'c> Check<'c> {
    /// Records a problem, and returns no value.
    fn refuse(&mut self, message: String) -> Option<Value> {
        self.note(None, message);
        None
    }

    fn note(&mut self, element: Option<Element>, message: String) {
        if self.problems.len() < limits::PROBLEMS_LISTED {
            self.problems.push(ParamProblem { param: self.param.to_owned(), element, message });
        }
    }

    fn wrong(&mut self, schema: &ParamSchema, found: &Value) -> Option<Value> {
        let remedy = match (schema.kind, found) {
            (ParamKind::Text, Value::Number(_) | Value::Bool(_)) => {
                format!("; write it in quotes: \"{found}\"")
            }
            (ParamKind::Duration, Value::Number(number)) => format!("; add a unit: {number}s"),
            (ParamKind::Integer, Value::String(text)) if text.parse::<i64>().is_ok() => {
                "; remove the quotes".to_owned()
            }
            (ParamKind::Boolean, Value::String(text)) if text.parse::<bool>().is_ok() => {
                "; remove the quotes".to_owned()
            }
            (_, Value::Null) => "; set a value, or remove it".to_owned(),
            _ => String::new(),
        };
        self.refuse(format!("must be {}, not {}{remedy}", valid(schema), described(found)))
    }

    fn pending(&mut self, kind: ParamKind, value: &Value) -> Option<Value> {
        let parts = match value {
            Value::String(line) if kind == ParamKind::Argv => parts(line).unwrap_or_default(),
            _ => Vec::new(),
        };
        // A single expression may stand for the whole list.
        if parts.len() < 2 {
            return self.clean_inside(value).then(|| value.clone());
        }
        self.words(argv::split_around(&parts))
    }

    fn value(&mut self, schema: &'c ParamSchema, value: &Value) -> Option<Value> {
        let before = self.problems.len();
        self.rule = Rule::of(schema);
        let checked = match (schema.kind, value) {
            (ParamKind::Text, Value::String(text)) => self.clean(text, None).then(|| value.clone()),
            (ParamKind::Integer, Value::Number(number)) if within(schema, number.as_i64()) => {
                Some(value.clone())
            }
            (ParamKind::Boolean, Value::Bool(_)) => Some(value.clone()),
            (ParamKind::Duration, Value::String(text)) => match text.parse::<Span>() {
                Ok(_) => Some(value.clone()),
                Err(NotASpan(text)) => self.refuse(NotASpan(shown(&text)).to_string()),
            },
            (ParamKind::Texts, Value::Array(items)) if schema.required && items.is_empty() => {
                self.refuse("is empty; at least one string is needed".to_owned())
            }
            (ParamKind::Texts, Value::Array(items)) => Some(self.texts(items)),
            (ParamKind::Texts, Value::String(text)) => {
                self.clean(text, None).then(|| Value::Array(vec![value.clone()]))
            }
            (ParamKind::Argv, Value::Array(items)) => self.argv(items),
            (ParamKind::Argv, Value::String(line)) => self.words(argv::split(line)),
            (ParamKind::Map, Value::Object(entries)) => Some(self.map(entries)),
            // A param with a pattern is a text, which may be written as a number.
            (ParamKind::Any, _) if schema.pattern.is_some() => match text_of(value) {
                Some(text) => self.clean(&text, None).then_some(Value::String(text)),
                None => self.wrong(schema, value),
            },
            (ParamKind::Any, _) => {
                self.clean_inside(value);
                Some(value.clone())
            }
            _ => self.wrong(schema, value),
        };
        checked.filter(|_| self.problems.len() == before)
    }

    /// Checks the words of a command line.
    fn words(&mut self, split: Result<Vec<String>, argv::Unsplittable>) -> Option<Value> {
        match split {
            Ok(words) => self.argv(&words.into_iter().map(Value::String).collect::<Vec<_>>()),
            Err(error) => self.refuse(format!("{error}; or write a list, one string per argument")),
        }
    }

    fn argv(&mut self, items: &[Value]) -> Option<Value> {
        let Value::Array(words) = self.texts(items) else { return None };
        if items.first().is_none_or(|first| first.as_str().is_some_and(str::is_empty)) {
            return self.refuse("is empty; its first string is the program to run".to_owned());
        }
        Some(Value::Array(words))
    }

    fn texts(&mut self, items: &[Value]) -> Value {
        let mut texts = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            match text_of(item) {
                Some(text) => {
                    self.clean(&text, Some(Element::Index(index)));
                    texts.push(Value::String(text));
                }
                None => self.not_a_text(Element::Index(index), item),
            }
        }
        self.bounded(texts.iter().filter_map(Value::as_str).map(str::len));
        Value::Array(texts)
    }

    fn map(&mut self, entries: &serde_json::Map<String, Value>) -> Value {
        let mut texts = serde_json::Map::new();
        for (key, item) in entries {
            let element = || Element::Key(key.clone());
            if let Some(message) = self.rule.broken_name(key) {
                self.note(Some(element()), message);
            }
            match text_of(item) {
                Some(text) => {
                    if self.clean(&text, Some(element())) {
                        self.fits_with_name(key, &text);
                    }
                    texts.insert(key.clone(), Value::String(text));
                }
                None => self.not_a_text(element(), item),
            }
        }
        self.bounded(texts.iter().map(|(key, text)| key.len() + 1 + text.as_str().map_or(0, str::len)));
        Value::Object(texts)
    }

    fn not_a_text(&mut self, element: Element, found: &Value) {
        self.note(Some(element), format!("must be a string, not {}", described(found)));
    }

    /// Checks a variable with its name: the kernel sees one text, `NAME=value`.
    fn fits_with_name(&mut self, name: &str, text: &str) {
        let bytes = name.len() + text.len();
        let most = self.rule.schema.and_then(|schema| schema.max_bytes);
        if let Some(most) = most.filter(|most| bytes as u64 > *most) {
            let message = format!("is {bytes} bytes long with its name; at most {most} are possible");
            self.note(Some(Element::Key(name.to_owned())), message);
        }
    }

    /// Refuses values that the kernel would refuse, before anything is started.
    fn bounded(&mut self, lengths: impl Iterator<Item = usize>) {
        const NUL_AND_POINTER: usize = 9;
        let bytes: usize = lengths.map(|length| length + NUL_AND_POINTER).sum();
        let most = limits::ARGUMENTS_BYTES;
        if bytes > most {
            let message = format!("takes {bytes} bytes with all its strings; at most {most} are possible");
            self.note(None, message);
        }
    }

    fn clean(&mut self, text: &str, element: Option<Element>) -> bool {
        let Some(message) = self.rule.broken(text) else { return true };
        self.note(element, message);
        false
    }

    fn clean_inside(&mut self, value: &Value) -> bool {
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => true,
            Value::String(text) => self.clean(text, None),
            Value::Array(items) => items.iter().all(|item| self.clean_inside(item)),
            Value::Object(entries) => {
                entries.iter().all(|(key, item)| self.clean(key, None) && self.clean_inside(item))
            }
        }
    }
}

fn within(schema: &ParamSchema, number: Option<i64>) -> bool {
    number.is_some_and(|number| {
        schema.min.is_none_or(|min| min <= number) && schema.max.is_none_or(|max| number <= max)
    })
}

/// Returns the text of a scalar: arguments and variables are texts to the program, so `[sleep, 5]` is valid.
pub fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(value) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::backend::Catalogue;

    fn check(backend: &str, action: &str, params: Value) -> Result<Value, Vec<String>> {
        let catalogue = Catalogue::builtin();
        let action = catalogue.action(backend, action).unwrap();
        let params: Params = serde_json::from_value(params).unwrap();
        match check_params(action, &params) {
            Ok(checked) => Ok(serde_json::to_value(checked).unwrap()),
            Err(problems) => Err(problems.iter().map(ToString::to_string).collect()),
        }
    }

    #[test]
    fn an_argv_becomes_a_list_of_texts() {
        let expected = Ok(json!({"command": ["sleep", "5"]}));
        assert_eq!(check("exec", "run", json!({"command": "sleep 5"})), expected);
        assert_eq!(check("exec", "run", json!({"command": ["sleep", 5]})), expected);
    }

    #[test]
    fn variables_are_texts() {
        assert_eq!(
            check("exec", "shell", json!({"command": "x", "env": {"PORT": 80, "DEBUG": true}})),
            Ok(json!({"command": "x", "env": {"PORT": "80", "DEBUG": "true"}}))
        );
    }

    #[test]
    fn every_problem_is_named() {
        assert_eq!(
            check(
                "exec",
                "run",
                json!({"comand": "x", "env": {"A=": "1", "B": null}, "stdin": 5, "args": [[]]})
            ),
            Err(vec![
                "args[0]: must be a string, not a list".to_owned(),
                "comand: action `run` has no param `comand`; did you mean `command`? \
                 (params: command, args, env, working_dir, stdin)"
                    .to_owned(),
                "env.A=: a name must not be empty, nor contain `=` or a NUL".to_owned(),
                "env.B: must be a string, not nothing".to_owned(),
                "stdin: must be a string, not the number 5; write it in quotes: \"5\"".to_owned(),
            ])
        );
        assert_eq!(
            check("exec", "run", json!({})),
            Err(vec![
                "command: action `run` needs the param `command`, a list of strings, or one string that is split at \
                 blanks: the program and its arguments; no shell reads them"
                    .to_owned(),
            ])
        );
    }

    #[test]
    fn an_argv_without_a_program_is_refused() {
        for command in [json!([]), json!(""), json!("  "), json!([""]), json!("''")] {
            assert_eq!(
                check("exec", "run", json!({"command": command})),
                Err(vec!["command: is empty; its first string is the program to run".to_owned()])
            );
        }
    }

    #[test]
    fn nul_is_refused_wherever_it_hides() {
        for params in [
            json!({"command": ["a\0b"]}),
            json!({"command": "a\0b"}),
            json!({"command": "a", "env": {"X": "\0"}}),
            json!({"command": "a", "env": {"X\0": ""}}),
            json!({"command": "a", "stdin": "\0"}),
            json!({"command": "a", "args": ["\0"]}),
        ] {
            assert!(check("exec", "run", params.clone()).is_err(), "{params}");
        }
        let any = ActionSchema {
            name: "any".to_owned(),
            idempotent: false,
            params: vec![ParamSchema::new("x", ParamKind::Any)],
        };
        let params = Params::from([("x".to_owned(), json!({"a": [{"\0": 1}]}))]);
        assert!(check_params(&any, &params).is_err());
    }

    fn limited(schema: ParamSchema, value: Value) -> Result<Value, String> {
        let action = ActionSchema { name: "do".to_owned(), idempotent: false, params: vec![schema] };
        match check_params(&action, &Params::from([("x".to_owned(), value)])) {
            Ok(mut checked) => Ok(checked.remove("x").unwrap()),
            Err(problems) => Err(problems.iter().map(ToString::to_string).collect::<Vec<_>>().join(" | ")),
        }
    }

    #[test]
    fn a_pattern_holds_for_the_whole_text_and_for_every_element() {
        let text = |kind| ParamSchema {
            pattern: Some("[a-z]+".to_owned()),
            help: "a word".to_owned(),
            ..ParamSchema::new("x", kind)
        };
        assert_eq!(limited(text(ParamKind::Text), json!("abc")), Ok(json!("abc")));
        assert_eq!(
            limited(text(ParamKind::Text), json!("abc\n")),
            Err("x: \"abc\\n\": must match [a-z]+ (a word)".to_owned())
        );
        assert_eq!(limited(text(ParamKind::Texts), json!("abc")), Ok(json!(["abc"])));
        for (kind, value, element) in [
            (ParamKind::Texts, json!(["a", "-b"]), "[1]"),
            (ParamKind::Argv, json!("a -b"), "[1]"),
            (ParamKind::Map, json!({"k": "-b"}), ".k"),
        ] {
            assert_eq!(
                limited(text(kind), value),
                Err(format!("x{element}: \"-b\": must match [a-z]+ (a word)"))
            );
        }
    }

    #[test]
    fn a_pattern_that_is_not_understood_lets_nothing_pass() {
        let schema =
            ParamSchema { pattern: Some("(?<=a)b".to_owned()), ..ParamSchema::new("x", ParamKind::Text) };
        let problem = limited(schema, json!("b")).unwrap_err();
        assert!(
            problem.starts_with("x: cannot be checked: the pattern that is declared for it"),
            "{problem}"
        );
    }

    #[test]
    fn choices_bounds_and_lengths_say_what_is_possible() {
        let new = |kind| ParamSchema::new("x", kind);
        let mode =
            ParamSchema { choices: vec!["server".to_owned(), "agent".to_owned()], ..new(ParamKind::Text) };
        assert_eq!(limited(mode.clone(), json!("agent")), Ok(json!("agent")));
        assert_eq!(
            limited(mode.clone(), json!("servr")),
            Err("x: \"servr\" is not possible; did you mean `server`? (possible: server, agent)".to_owned())
        );
        assert_eq!(
            limited(mode, json!(5)),
            Err("x: must be one of server, agent, not the number 5; write it in quotes: \"5\"".to_owned())
        );
        let level = ParamSchema { min: Some(0), max: Some(9), ..new(ParamKind::Integer) };
        assert_eq!(limited(level.clone(), json!(9)), Ok(json!(9)));
        for wrong in [json!(10), json!(-1), json!(1.5), json!(u64::MAX)] {
            assert_eq!(
                limited(level.clone(), wrong.clone()),
                Err(format!("x: must be a whole number from 0 to 9, not the number {wrong}"))
            );
        }
        let short = ParamSchema { max_bytes: Some(3), ..new(ParamKind::Texts) };
        assert_eq!(limited(short.clone(), json!(["€"])), Ok(json!(["€"])));
        assert_eq!(
            limited(short, json!(["abc", "€€"])),
            Err("x[1]: is 6 bytes long; at most 3 are possible".to_owned())
        );
        let pairs = ParamSchema {
            max_bytes: Some(5),
            name_pattern: Some("[A-Z]+".to_owned()),
            ..new(ParamKind::Map)
        };
        assert_eq!(limited(pairs.clone(), json!({"AB": "abc"})), Ok(json!({"AB": "abc"})));
        assert_eq!(
            limited(pairs, json!({"ABC": "abc", "a": "b"})),
            Err("x.ABC: is 6 bytes long with its name; at most 5 are possible | \
                 x.a: the name \"a\": must match [A-Z]+"
                .to_owned())
        );
        assert_eq!(
            limited(new(ParamKind::Texts), json!(vec!["a"; 60_000])),
            Err("x: takes 600000 bytes with all its strings; at most 524288 are possible".to_owned())
        );
    }

    #[test]
    fn an_action_without_params_takes_none() {
        assert_eq!(
            check("ping", "ping", json!({"x": 1})),
            Err(vec!["x: action `ping` takes no params; remove `x`".to_owned()])
        );
    }

    #[test]
    fn a_value_with_a_pattern_is_a_text_or_the_number_that_it_looks_like() {
        let catalogue = crate::backend::Catalogue::builtin();
        let action = catalogue.action("docker", "run").unwrap();
        let checked = |cpus: Value| {
            let given = Params::from([("image".to_owned(), json!("alpine")), ("cpus".to_owned(), cpus)]);
            check_params(action, &given).map(|params| params["cpus"].clone())
        };
        for cpus in [json!(0.5), json!("0.5")] {
            assert_eq!(checked(cpus).unwrap(), json!("0.5"));
        }
        assert_eq!(checked(json!([1])).unwrap_err()[0].message, "must be a string or a number, not a list");
        assert!(
            checked(json!(-1)).unwrap_err()[0]
                .message
                .starts_with("\"-1\": must be a number of processors above 0")
        );
    }

    #[test]
    fn a_bare_number_is_not_a_duration() {
        assert_eq!(
            check("test", "sleep", json!({"duration": 5})),
            Err(vec![
                "duration: must be a duration such as 500ms, 1.5s or 30m, not the number 5; add a unit: 5s"
                    .to_owned()
            ])
        );
    }
}
