//! Owns the operations on values: the filters, printing, conversion to JSON, and the machine that evaluates. Every
//! operation whose result can be larger than its input is bounded.

use std::sync::LazyLock;

use minijinja::value::{Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior};

use super::data::to_json;
use crate::limits;

/// The filters that users may write after `|`.
pub(super) const FILTERS: &[&str] = &[
    "default", "first", "int", "join", "last", "length", "lower", "replace", "split", "string", "tojson",
    "trim", "upper",
];

/// The filter that replaces `~`. Users cannot write it, because it is not in `FILTERS`.
pub(super) const CONCAT: &str = "concat";

/// The machine: no functions, no tests, no templates, and only our own filters.
pub(super) static MACHINE: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut machine = Environment::empty();
    machine.set_undefined_behavior(UndefinedBehavior::Strict);
    machine.set_fuel(Some(limits::EXPRESSION_FUEL));
    let default =
        |value: Value, other: Value| if value.is_undefined() || value.is_none() { other } else { value };
    machine.add_filter("default", default);
    machine.add_filter("first", |value: Value| end_of("first", &value, |items| items.next()));
    machine.add_filter("last", |value: Value| end_of("last", &value, |items| items.next_back()));
    machine.add_filter("int", |value: Value| int(&value));
    machine.add_filter("join", |value: Value, by: Rest<Value>| join(&value, by.first()));
    machine.add_filter(CONCAT, |value: Value| join(&value, None));
    machine.add_filter("length", |value: Value| length(&value));
    machine.add_filter("lower", |value: Value| Ok::<_, Error>(text("lower", &value)?.to_lowercase()));
    machine.add_filter("upper", |value: Value| Ok::<_, Error>(text("upper", &value)?.to_uppercase()));
    machine.add_filter("trim", |value: Value| Ok::<_, Error>(text("trim", &value)?.trim().to_owned()));
    machine.add_filter("replace", |value: Value, from: Value, to: Value| replace(&value, &from, &to));
    machine.add_filter("split", |value: Value, by: Rest<Value>| split(&value, by.first()));
    machine.add_filter("string", |value: Value| printed(&value));
    machine.add_filter("tojson", |value: Value| {
        let mut left = limits::PARAMS_BYTES;
        Ok::<_, Error>(to_json(defined(&value)?, &mut left)?.to_string())
    });
    machine
});

pub(super) fn wrong(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

fn too_large() -> Error {
    wrong(format!("its result is larger than {} bytes", limits::PARAMS_BYTES))
}

fn defined(value: &Value) -> Result<&Value, Error> {
    if value.is_undefined() || value.is_none() { Err(ErrorKind::UndefinedError.into()) } else { Ok(value) }
}

fn kind(value: &Value) -> &'static str {
    match value.kind() {
        ValueKind::Undefined | ValueKind::None | ValueKind::Invalid => "nothing",
        ValueKind::Bool => "true or false",
        ValueKind::Number => "a number",
        ValueKind::String => "a string",
        ValueKind::Seq | ValueKind::Iterable => "a list",
        ValueKind::Map => "a map",
        _ => "something else",
    }
}

fn text<'v>(filter: &str, value: &'v Value) -> Result<&'v str, Error> {
    let value = defined(value)?;
    value.as_str().ok_or_else(|| {
        wrong(format!("`{filter}` expects a string, not {}; `string` converts to one", kind(value)))
    })
}

fn list(filter: &str, value: &Value) -> Result<Vec<Value>, Error> {
    let value = defined(value)?;
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => Ok(value.try_iter()?.collect()),
        _ => Err(wrong(format!("`{filter}` expects a list, not {}", kind(value)))),
    }
}

/// Returns the first or last element, which `end` takes. An empty list has none, so that `default` may follow.
fn end_of(
    filter: &str,
    value: &Value,
    end: impl Fn(&mut dyn DoubleEndedIterator<Item = Value>) -> Option<Value>,
) -> Result<Value, Error> {
    let found = match defined(value)?.as_str() {
        Some(text) => end(&mut text.chars().map(|c| Value::from(c.to_string()))),
        None => end(&mut list(filter, value)?.into_iter()),
    };
    Ok(found.unwrap_or(Value::UNDEFINED))
}

fn int(value: &Value) -> Result<i64, Error> {
    let value = defined(value)?;
    if let Some(text) = value.as_str() {
        let number = text.trim().parse();
        return number.map_err(|_| wrong("`int` expects a whole number, and this string is not one"));
    }
    if let Some(number) = value.as_i64() {
        return Ok(number);
    }
    match f64::try_from(value.clone()) {
        // Beyond 2^53 not every whole number is exact as a float.
        Ok(number) if number.abs() <= 9_007_199_254_740_992.0 => Ok(number.trunc() as i64),
        _ => Err(wrong(format!("`int` expects a string or a number, not {}", kind(value)))),
    }
}

fn length(value: &Value) -> Result<usize, Error> {
    let value = defined(value)?;
    if let Some(text) = value.as_str() {
        return Ok(text.chars().count());
    }
    let other = || wrong(format!("`length` expects a string, a list or a map, not {}", kind(value)));
    value.len().ok_or_else(other)
}

fn join(value: &Value, by: Option<&Value>) -> Result<String, Error> {
    let by = by.map(|by| text("join", by)).transpose()?.unwrap_or_default();
    let mut out = String::new();
    let mut left = limits::PARAMS_BYTES;
    for (index, item) in list("join", value)?.iter().enumerate() {
        if index > 0 {
            spend(&mut left, by.len())?;
            out.push_str(by);
        }
        print(item, &mut out, &mut left)?;
    }
    Ok(out)
}

fn replace(value: &Value, from: &Value, to: &Value) -> Result<String, Error> {
    let (value, from, to) = (text("replace", value)?, text("replace", from)?, text("replace", to)?);
    if from.is_empty() {
        return Err(wrong("`replace` needs a string to search for, not an empty string"));
    }
    let mut left = limits::PARAMS_BYTES;
    let found = value.matches(from).count();
    spend(&mut left, found.saturating_mul(to.len()))?;
    spend(&mut left, value.len().saturating_sub(found * from.len()))?;
    Ok(value.replace(from, to))
}

fn split(value: &Value, by: Option<&Value>) -> Result<Vec<String>, Error> {
    let value = text("split", value)?;
    let most = limits::SPLIT_PIECES + 1;
    let pieces: Vec<String> = match by {
        None => value.split_whitespace().take(most).map(str::to_owned).collect(),
        Some(by) => match text("split", by)? {
            "" => return Err(wrong("`split` needs a separator, not an empty string")),
            by => value.split(by).take(most).map(str::to_owned).collect(),
        },
    };
    if pieces.len() == most {
        return Err(wrong(format!("`split` returns at most {} pieces", limits::SPLIT_PIECES)));
    }
    Ok(pieces)
}

pub(super) fn spend(left: &mut usize, bytes: usize) -> Result<(), Error> {
    *left = left.checked_sub(bytes).ok_or_else(too_large)?;
    Ok(())
}

fn printed(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    print(value, &mut out, &mut limits::PARAMS_BYTES.clone())?;
    Ok(out)
}

/// Prints texts as they are, numbers and booleans plainly, lists and maps as JSON. A missing value cannot be printed.
pub(super) fn print(value: &Value, out: &mut String, left: &mut usize) -> Result<(), Error> {
    if let Some(text) = defined(value)?.as_str() {
        spend(left, text.len())?;
        out.push_str(text);
        return Ok(());
    }
    let before = *left;
    let text = to_json(value, left)?.to_string();
    *left = before;
    spend(left, text.len())?;
    out.push_str(&text);
    Ok(())
}
