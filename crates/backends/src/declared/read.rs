//! Reads declarations from the settings and refuses invalid ones: every refusal names its key.

use std::collections::BTreeMap;
use std::path::PathBuf;

use downbeat_core::backend::{ActionSchema, BackendSchema, Catalogue};
use downbeat_core::limits::ARGUMENT_BYTES;
use downbeat_core::nearest::advice;
use serde_json::{Map, Value};

use super::param::{self, Use};
use super::program;
use super::template::Template;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    pub(super) schema: BackendSchema,
    pub(super) actions: BTreeMap<String, Action>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Action {
    pub(super) argv: Vec<Template>,
    pub(super) env: Vec<(String, Template)>,
    pub(super) working_dir: Option<PathBuf>,
}

/// Why a declaration is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bad value of `{key}`: {reason}")]
pub struct Refused {
    /// The key in the settings, such as `backends.backup.actions.now.argv`.
    pub key: String,
    pub reason: String,
}

type Result<T> = std::result::Result<T, Refused>;

const NAME_BYTES: usize = 64;
/// The bytes of an argument that `ARGUMENT_BYTES` leaves for the text around a value.
const LITERAL_BYTES: usize = 128 * 1024 - 1 - ARGUMENT_BYTES;

impl Declared {
    /// Reads the section `[backends]`: backends by name.
    pub fn read_all(section: &Value) -> Result<Vec<Self>> {
        let key = Key::new("backends");
        key.map(section)?.iter().map(|(name, value)| Self::read(name, value)).collect()
    }

    pub fn read(name: &str, value: &Value) -> Result<Self> {
        let key = Key(format!("backends.{name}"));
        key.name(name, '-')?;
        if Catalogue::builtin().backend(name).is_ok() {
            return Err(key.refuse("is the name of a built-in backend; choose another"));
        }
        let entries = key.map(value)?;
        key.known(entries, &["help", "actions"])?;
        let key_of_actions = key.field("actions");
        let declared = key_of_actions.map(entries.get("actions").unwrap_or(&Value::Null))?;
        if declared.is_empty() {
            return Err(key_of_actions.refuse("is empty; declare at least one action"));
        }
        let mut schema = BackendSchema {
            name: name.to_owned(),
            help: key.text(entries, "help")?.unwrap_or_default(),
            actions: Vec::new(),
        };
        let mut actions = BTreeMap::new();
        for (name, value) in declared {
            let (schema_of_action, action) = action(&key_of_actions.field(name), name, value)?;
            schema.actions.push(schema_of_action);
            actions.insert(name.clone(), action);
        }
        Ok(Self { schema, actions })
    }

    pub fn name(&self) -> &str {
        &self.schema.name
    }
}

fn action(key: &Key, name: &str, value: &Value) -> Result<(ActionSchema, Action)> {
    key.name(name, '-')?;
    let entries = key.map(value)?;
    key.known(entries, &["argv", "idempotent", "env", "working_dir", "params"])?;
    let argv = argv(&key.field("argv"), &key.texts(entries, "argv")?.unwrap_or_default())?;
    let env = env(&key.field("env"), entries.get("env"))?;
    let working_dir = key.text(entries, "working_dir")?.map(PathBuf::from);
    if working_dir
        .as_deref()
        .is_some_and(|dir| !dir.is_absolute() || dir.to_string_lossy().contains(['{', '\0']))
    {
        return Err(key.field("working_dir").refuse("must be an absolute path without params"));
    }
    let key_of_params = key.field("params");
    let empty = Map::new();
    let declared = match entries.get("params") {
        None => &empty,
        Some(value) => key_of_params.map(value)?,
    };
    let uses = references(&argv, &env);
    for (name, place) in &uses.places {
        if !declared.contains_key(name) {
            let names: Vec<&str> = declared.keys().map(String::as_str).collect();
            return Err(key.field(place).refuse(if names.is_empty() {
                format!("unknown param `{name}`; declare it in {}", key_of_params.field(name).0)
            } else {
                format!("unknown param `{name}`; {}", advice(name, &names, "params"))
            }));
        }
    }
    let mut params = Vec::new();
    for (name, value) in declared {
        let key = key_of_params.field(name);
        key.name(name, '_')?;
        let used = uses.of.get(name.as_str()).copied();
        let used =
            used.ok_or_else(|| key.refuse(format!("is never used; write {{{name}}} in argv or env")))?;
        params.push(param::read(&key, name, key.map(value)?, used)?);
    }
    let idempotent = key.boolean(entries, "idempotent")?.unwrap_or(false);
    Ok((ActionSchema { name: name.to_owned(), idempotent, params }, Action { argv, env, working_dir }))
}

fn argv(key: &Key, texts: &[String]) -> Result<Vec<Template>> {
    let argv: Vec<Template> = texts.iter().map(|text| template(key, text)).collect::<Result<_>>()?;
    let words: Vec<Option<&str>> = argv.iter().map(Template::literal).collect();
    program::refused(&words).map_or(Ok(()), |reason| Err(key.refuse(reason)))?;
    Ok(argv)
}

fn env(key: &Key, found: Option<&Value>) -> Result<Vec<(String, Template)>> {
    let Some(found) = found else { return Ok(Vec::new()) };
    let mut env = Vec::new();
    for (name, value) in key.map(found)? {
        let key = key.field(name);
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if !name.chars().all(is_name) || name.chars().next().is_none_or(|c| c.is_ascii_digit()) {
            return Err(key.refuse("is not a valid variable name; write letters, digits and _"));
        }
        let text = value.as_str().ok_or_else(|| key.refuse("must be a string"))?;
        env.push((name.clone(), template(&key, text)?));
    }
    Ok(env)
}

fn template(key: &Key, text: &str) -> Result<Template> {
    let template = Template::parse(text).map_err(|reason| key.refuse(reason))?;
    let most = if template.literal().is_some() { ARGUMENT_BYTES } else { LITERAL_BYTES };
    if template.literal_bytes() > most {
        return Err(key.refuse(format!("an element is longer than {most} bytes, the limit of an argument")));
    }
    Ok(template)
}

/// The params that templates refer to.
struct References<'t> {
    of: BTreeMap<&'t str, Use>,
    /// Names in order, with the key that they occur in.
    places: Vec<(String, &'static str)>,
}

fn references<'t>(argv: &'t [Template], env: &'t [(String, Template)]) -> References<'t> {
    let mut found = References { of: BTreeMap::new(), places: Vec::new() };
    let mut options_end = false;
    let arguments = argv.iter().map(|template| {
        options_end |= template.literal() == Some("--");
        (template, "argv", !options_end)
    });
    let variables = env.iter().map(|(_, template)| (template, "env", false));
    for (template, place, open) in arguments.chain(variables) {
        let together = template.params().count();
        for name in template.params() {
            let used = found.of.entry(name).or_default();
            used.exposed |= open && template.first() == Some(name);
            // A variable contains one string, so a list cannot fill it.
            used.embedded |= template.whole().is_none() || place == "env";
            used.together = used.together.max(together);
            found.places.push((name.to_owned(), place));
        }
    }
    found
}

/// The path of a key in the settings.
#[derive(Clone, Debug)]
pub(crate) struct Key(String);

impl Key {
    pub(crate) fn new(name: &str) -> Self {
        Self(name.to_owned())
    }

    pub(crate) fn field(&self, name: &str) -> Self {
        Self(format!("{}.{name}", self.0))
    }

    pub(crate) fn refuse(&self, reason: impl Into<String>) -> Refused {
        Refused { key: self.0.clone(), reason: reason.into() }
    }

    pub(crate) fn map<'v>(&self, value: &'v Value) -> Result<&'v Map<String, Value>> {
        value.as_object().ok_or_else(|| self.refuse("must be a section"))
    }

    /// Checks that a name can be used on a command line: `downbeat job run NAME ACTION --PARAM`.
    fn name(&self, name: &str, joint: char) -> Result<()> {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == joint;
        let fits = name.starts_with(|c: char| c.is_ascii_lowercase())
            && name.chars().all(fits)
            && name.len() <= NAME_BYTES;
        if fits {
            return Ok(());
        }
        Err(self.refuse(format!(
            "is not a valid name; write at most {NAME_BYTES} lower-case letters, digits and `{joint}`, starting with a letter"
        )))
    }

    pub(crate) fn known(&self, entries: &Map<String, Value>, known: &[&str]) -> Result<()> {
        let unknown = entries.keys().find(|key| !known.contains(&key.as_str()));
        unknown.map_or(Ok(()), |unknown| {
            Err(self.field(unknown).refuse(format!("unknown key; {}", advice(unknown, known, "keys"))))
        })
    }

    /// Returns a value that may be absent. `kind` describes the values that `read` accepts.
    fn optional<T>(
        &self,
        entries: &Map<String, Value>,
        name: &str,
        kind: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let wrong = || self.field(name).refuse(format!("must be {kind}"));
        entries.get(name).map(|value| read(value).ok_or_else(wrong)).transpose()
    }

    pub(crate) fn text(&self, entries: &Map<String, Value>, name: &str) -> Result<Option<String>> {
        self.optional(entries, name, "a string", |value| value.as_str().map(str::to_owned))
    }

    pub(crate) fn texts(&self, entries: &Map<String, Value>, name: &str) -> Result<Option<Vec<String>>> {
        self.optional(entries, name, "a list of strings", |value| {
            value.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
        })
    }

    pub(crate) fn boolean(&self, entries: &Map<String, Value>, name: &str) -> Result<Option<bool>> {
        self.optional(entries, name, "true or false", Value::as_bool)
    }

    pub(crate) fn integer(&self, entries: &Map<String, Value>, name: &str) -> Result<Option<i64>> {
        self.optional(entries, name, "a whole number", Value::as_i64)
    }
}
