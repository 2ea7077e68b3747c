//! Reads one declared param, and sets the limits that its uses in the argv require.

use downbeat_core::backend::{ParamKind, ParamSchema, Pattern};
use downbeat_core::limits::ARGUMENT_BYTES;
use serde_json::{Map, Value};

use super::read::{Key, Refused};

const KEYS: [&str; 8] = ["type", "required", "help", "pattern", "choices", "min", "max", "max_bytes"];
/// For unprotected values: most programs read an argument that starts with a dash as an option.
const NO_DASH: &str = r"(?:[^-][\s\S]*)?";

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Use {
    /// Its value starts an argument that a program may read as an option.
    pub(super) exposed: bool,
    /// It shares an element with other text.
    pub(super) embedded: bool,
    /// The largest number of params in one element with it.
    pub(super) together: usize,
}

pub(super) fn read(
    key: &Key,
    name: &str,
    entries: &Map<String, Value>,
    used: Use,
) -> Result<ParamSchema, Refused> {
    key.known(entries, &KEYS)?;
    let kind = kind(&key.field("type"), entries.get("type"))?;
    if kind == ParamKind::Texts && used.embedded {
        return Err(key.refuse(format!("is a list and needs its own element: \"{{{name}}}\"")));
    }
    let mut param = ParamSchema {
        required: key.boolean(entries, "required")?.unwrap_or(false),
        help: key.text(entries, "help")?.unwrap_or_default(),
        pattern: key.text(entries, "pattern")?,
        choices: key.texts(entries, "choices")?.unwrap_or_default(),
        min: key.integer(entries, "min")?,
        max: key.integer(entries, "max")?,
        max_bytes: key.integer(entries, "max_bytes")?.map(|bytes| u64::try_from(bytes).unwrap_or(0)),
        ..ParamSchema::new(name, kind)
    };
    let only_for =
        |fields: &[&str], kinds: &str| match fields.iter().find(|field| entries.contains_key(**field)) {
            None => Ok(()),
            Some(field) => Err(key.field(field).refuse(format!("is only for {kinds}"))),
        };
    match kind {
        ParamKind::Text | ParamKind::Texts => {
            only_for(&["min", "max"], "the type `integer`")?;
            text(key, &mut param, used)?;
        }
        ParamKind::Integer => {
            only_for(&["pattern", "choices", "max_bytes"], "the types `text` and `texts`")?;
            if param.min > param.max.or(param.min) {
                return Err(key.field("min").refuse("must not be larger than max"));
            }
            if used.exposed && param.min.is_none() {
                param.min = Some(0);
            }
        }
        _ => {
            only_for(&["pattern", "choices", "max_bytes"], "the types `text` and `texts`")?;
            only_for(&["min", "max"], "the type `integer`")?;
        }
    }
    Ok(param)
}

fn text(key: &Key, param: &mut ParamSchema, used: Use) -> Result<(), Refused> {
    let most = (ARGUMENT_BYTES / used.together.max(1)) as u64;
    match param.max_bytes {
        Some(0) => return Err(key.field("max_bytes").refuse("must be at least 1")),
        Some(bytes) if bytes > most => {
            return Err(key
                .field("max_bytes")
                .refuse(format!("must be at most {most}, the limit of an argument")));
        }
        Some(_) => {}
        None => param.max_bytes = Some(most),
    }
    if let Some(pattern) = &param.pattern {
        Pattern::new(pattern)
            .map_err(|error| key.field("pattern").refuse(format!("`{pattern}`: {error}")))?;
    } else if used.exposed && param.choices.is_empty() {
        param.pattern = Some(NO_DASH.to_owned());
        let no_dash = "must not start with a dash";
        param.help =
            if param.help.is_empty() { no_dash.to_owned() } else { format!("{}; {no_dash}", param.help) };
    }
    Ok(())
}

fn kind(key: &Key, found: Option<&Value>) -> Result<ParamKind, Refused> {
    match found.and_then(Value::as_str) {
        Some("text") => Ok(ParamKind::Text),
        Some("integer") => Ok(ParamKind::Integer),
        Some("boolean") => Ok(ParamKind::Boolean),
        Some("duration") => Ok(ParamKind::Duration),
        Some("texts") => Ok(ParamKind::Texts),
        _ => Err(key.refuse("must be one of text, integer, boolean, duration, texts")),
    }
}
