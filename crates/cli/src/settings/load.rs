//! Owns the order of the sources: defaults, file, environment, flags. Unknown keys are refused, and the error of a bad
//! value is one line that names its key and its source.

use std::path::{Path, PathBuf};

use downbeat_agent::{Declared, JOB_VARIABLES};
use downbeat_core::nearest::advice;
use figment2::error::Kind;
use figment2::value::{Dict, Map, Value};
use figment2::{Figment, Metadata, Profile, Provider};
use serde::de::DeserializeOwned;

use super::agent::{self, AGENT};
use super::server::SERVER;
use super::show::{Row, Shown, Tree};
use super::table::{Fallback, PREFIX, Section, Setting};
use crate::exit::{Failure, Result};

/// Variables with our prefix that are not settings: the client's URL, and the path of the config file.
const OTHER_VARIABLES: [&str; 2] = ["DOWNBEAT_SERVER", "DOWNBEAT_CONFIG"];

/// The sources of values other than the defaults.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    /// The file of `--config`; otherwise the default paths are tried.
    pub(crate) config: Option<PathBuf>,
    pub(crate) environment: Vec<(String, String)>,
    /// Key, value, and the flag's name.
    pub(crate) flags: Vec<(&'static str, Given, &'static str)>,
}

#[derive(Clone, Debug)]
pub(crate) enum Given {
    /// One text; commas separate the elements of a list.
    Text(String),
    /// The texts of a repeated flag; commas belong to the values.
    Each(Vec<String>),
}

/// The agent's own backends: the only part of the file with nested sections; environment and flags cannot set it.
const BACKENDS: &str = "backends";

/// The loaded settings, and the source of each.
#[derive(Debug)]
pub(crate) struct Loaded<T> {
    pub(crate) keys: T,
    pub(crate) shown: Shown,
}

/// The key and value of an unset setting that is derived from others.
pub(crate) type Derived = (&'static str, serde_json::Value);

/// Values of one source.
struct Sourced {
    source: String,
    values: Dict,
}

impl Sourced {
    fn one(source: &str, key: &str, value: impl Into<Value>) -> Self {
        Self { source: source.to_owned(), values: Dict::from([(key.to_owned(), value.into())]) }
    }
}

impl Provider for Sourced {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.source.clone())
    }

    fn data(&self) -> figment2::Result<Map<Profile, Dict>> {
        Ok(Map::from([(Profile::Default, self.values.clone())]))
    }
}

/// Loads a section from all sources, and checks it.
pub(crate) fn load<T: DeserializeOwned + serde::Serialize>(
    section: Section,
    sources: &Sources,
    check: impl FnOnce(&T) -> Result<(), (&'static str, String)>,
    derived: impl FnOnce(&T) -> Vec<Derived>,
) -> Result<Loaded<T>> {
    let mut figment = Figment::new();
    for setting in section.settings {
        if let Fallback::Is(default) = setting.default {
            figment = figment.merge(Sourced::one("default", setting.key, default));
        }
    }
    if let Some(path) = config_path(sources.config.as_deref())? {
        let (source, values) = (path.display().to_string(), file_section(&path, section)?);
        figment = figment.merge(Sourced { source, values });
    }
    for (key, value, variable) in from_environment(section, &sources.environment)? {
        figment = figment.merge(Sourced::one(&variable, key, value));
    }
    for (key, value, flag) in &sources.flags {
        figment = figment.merge(match value {
            Given::Text(text) => Sourced::one(flag, key, text.as_str()),
            Given::Each(texts) => Sourced::one(flag, key, texts.clone()),
        });
    }
    let source_of =
        |key: &str| figment.find_metadata(key).map_or_else(|| "default".to_owned(), |m| m.name.to_string());
    let keys: T = figment.extract().map_err(|error| refused(&error, &source_of))?;
    check(&keys).map_err(|(key, why)| bad_value(key, &source_of(key), &why))?;

    let derived = derived(&keys);
    let tree = serde_json::to_value(&keys)
        .map_err(|error| Failure::bug(format!("cannot show the settings: {error}")))?;
    let row = |setting: &Setting| {
        let key = setting.key;
        let value = match derived.iter().find(|(derived, _)| *derived == key) {
            Some((_, value)) if tree[key].is_null() => value.clone(),
            _ => tree[key].clone(),
        };
        let source = match (setting.default, figment.find_metadata(key)) {
            (Fallback::Follows(from), None) => format!("default: {from}"),
            _ => source_of(key),
        };
        Row { key, value, source }
    };
    let is_shown = |row: &Row| row.key != agent::BACKEND || !row.value.is_null();
    let rows = section.settings.iter().map(row).filter(is_shown).collect();
    let shown = Shown { section: section.name, rows, tree: None };
    Ok(Loaded { keys, shown })
}

/// Returns the config file: the given one, or the first default path that exists.
fn config_path(named: Option<&Path>) -> Result<Option<PathBuf>> {
    if let Some(path) = named {
        return match path.try_exists() {
            Ok(true) => Ok(Some(path.to_owned())),
            Ok(false) => {
                Err(Failure::bad_input(format!("the config file {} does not exist", path.display())))
            }
            Err(error) => Err(Failure::bad_input(format!("cannot read {}: {error}", path.display()))),
        };
    }
    let defaults = ["downbeat.toml", "/etc/downbeat/downbeat.toml"].map(PathBuf::from);
    Ok(defaults.into_iter().find(|path| path.is_file()))
}

/// Returns the values of a section. Checks the keys of all sections, so that a typo is found by the first component that
/// reads the file.
fn file_section(path: &Path, section: Section) -> Result<Dict> {
    let file: Dict = read_file(path)?;
    let mut wanted = Dict::new();
    for (name, value) in file {
        if name == BACKENDS {
            continue;
        }
        let Some(known) = [SERVER, AGENT].into_iter().find(|known| known.name == name) else {
            let hint = [SERVER, AGENT].into_iter().find(|section| section.has(&name));
            let hint = hint.map_or_else(
                || "the sections are [server], [agent] and [backends.NAME]".to_owned(),
                |section| format!("it belongs in the section [{}]", section.name),
            );
            return Err(Failure::bad_input(format!("unknown key `{name}` in {}; {hint}", path.display())));
        };
        let Value::Dict(_, values) = value else {
            return Err(Failure::bad_input(format!("`{name}` in {} must be a section", path.display())));
        };
        for key in values.keys() {
            if !known.has(key) {
                let section = format!("section [{name}] of {}", path.display());
                return Err(Failure::bad_input(format!(
                    "unknown key `{key}` in {section}; {}",
                    advice(key, &known.keys().collect::<Vec<_>>(), "keys")
                )));
            }
        }
        if known.name == section.name {
            wanted = values;
        }
    }
    Ok(wanted)
}

fn read_file<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::bad_input(format!("cannot read {}: {error}", path.display())))?;
    toml::from_str(&text).map_err(|error| not_toml(path, &text, &error))
}

/// Returns the backends that the file declares, and how they are shown.
pub(crate) fn load_backends(sources: &Sources) -> Result<(Vec<Declared>, Option<Tree>)> {
    let Some(path) = config_path(sources.config.as_deref())? else { return Ok((Vec::new(), None)) };
    let mut file: serde_json::Map<String, serde_json::Value> = read_file(&path)?;
    let Some(value) = file.remove(BACKENDS) else { return Ok((Vec::new(), None)) };
    let source = path.display().to_string();
    let declared = Declared::read_all(&value)
        .map_err(|refused| bad_value(&refused.key, &source, &one_line(&refused.reason)))?;
    Ok((declared, Some(Tree { name: BACKENDS, value, source })))
}

/// Renders `downbeat.toml:3:7: message`.
fn not_toml(path: &Path, text: &str, error: &toml::de::Error) -> Failure {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    Failure::bad_input(format!("{}:{line}:{column}: {}", path.display(), one_line(error.message())))
}

fn from_environment(
    section: Section,
    environment: &[(String, String)],
) -> Result<Vec<(&'static str, String, String)>> {
    let mut found = Vec::new();
    for (variable, value) in environment {
        if !variable.starts_with(PREFIX) || is_not_setting(variable) {
            continue;
        }
        let known = |section: Section| section.keys().find(|key| *variable == section.variable(key));
        match (known(section), [SERVER, AGENT].into_iter().any(|other| known(other).is_some())) {
            (Some(key), _) => found.push((key, value.clone(), variable.clone())),
            // A setting of the other component: both may share an environment.
            (None, true) => {}
            (None, false) => {
                let names: Vec<String> = [SERVER, AGENT]
                    .into_iter()
                    .flat_map(|section| section.keys().map(move |key| section.variable(key)))
                    .collect();
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                return Err(Failure::bad_input(format!(
                    "unknown environment variable `{variable}`; {}",
                    advice(variable, &names, "variables")
                )));
            }
        }
    }
    Ok(found)
}

/// Returns whether a variable is not a setting: those of clients and tests, those that an agent sets for its jobs (a job
/// may run this program), and those that Kubernetes sets in every container next to a service called `downbeat`.
fn is_not_setting(variable: &str) -> bool {
    OTHER_VARIABLES.contains(&variable)
        || JOB_VARIABLES.contains(&variable)
        || variable.starts_with("DOWNBEAT_TEST_")
        || variable.starts_with("DOWNBEAT_BENCH_")
        || variable.contains("_SERVICE_")
        || variable.ends_with("_PORT")
        || variable.contains("_PORT_")
}

fn refused(error: &figment2::Error, source_of: &dyn Fn(&str) -> String) -> Failure {
    let key = error.path.join(".");
    let why = match &error.kind {
        Kind::Message(message) => message.clone(),
        Kind::InvalidType(found, expected) | Kind::InvalidValue(found, expected) => {
            format!("{} is not {expected}", shown_actual(&found.to_string()))
        }
        Kind::UnknownVariant(found, expected) => format!("`{found}` is not one of {}", expected.join(", ")),
        other => other.to_string(),
    };
    bad_value(&key, &source_of(error.path.first().map_or("", String::as_str)), &one_line(&why))
}

/// Shortens `string "abc"` to `abc`: the type is clear from the value.
fn shown_actual(found: &str) -> String {
    match found.find(['"', '`']) {
        Some(start) => format!("`{}`", found[start..].trim_matches(['"', '`'])),
        None => found.to_owned(),
    }
}

fn bad_value(key: &str, source: &str, why: &str) -> Failure {
    Failure::bad_input(format!("bad value of `{key}` ({source}): {why}"))
}

fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}
