//! Owns the shape of a setting: one row has its key, flag, default and meaning. Files, variables, flags, help,
//! `--print-config` and `docs/settings.md` are derived from the rows; the types of the values are in the section's keys.

use std::marker::PhantomData;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};

use super::load::Given;

/// The prefix of every environment variable.
pub(super) const PREFIX: &str = "DOWNBEAT_";

#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) key: &'static str,
    /// `--name VALUE`; empty if it has no flag in this table.
    pub(crate) flag: &'static str,
    pub(crate) repeats: Repeats,
    pub(crate) default: Fallback,
    pub(crate) help: &'static str,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Fallback {
    /// A constant, as text. It may be empty.
    Is(&'static str),
    /// Derived from something else, which this text describes.
    Follows(&'static str),
    Unset,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Repeats {
    Never,
    /// Commas also separate values.
    Joined,
    /// A value may contain commas.
    Each,
}

impl Setting {
    pub(crate) const fn new(
        key: &'static str,
        flag: &'static str,
        default: Fallback,
        help: &'static str,
    ) -> Self {
        Self { key, flag, repeats: Repeats::Never, default, help }
    }

    pub(crate) const fn repeats(self, repeats: Repeats) -> Self {
        Self { repeats, ..self }
    }

    /// Returns the flag, and the name of its value.
    fn flag(&self) -> Option<(&'static str, &'static str)> {
        self.flag.split_once(' ')
    }

    fn arg(&self) -> Option<Arg> {
        let (flag, value) = self.flag()?;
        let help = match self.default {
            Fallback::Is("") | Fallback::Unset => self.help.to_owned(),
            Fallback::Is(default) | Fallback::Follows(default) => {
                format!("{} [default: {default}]", self.help)
            }
        };
        let action = match self.repeats {
            Repeats::Never => ArgAction::Set,
            Repeats::Joined | Repeats::Each => ArgAction::Append,
        };
        let long = flag.trim_start_matches('-');
        Some(Arg::new(self.key).long(long).value_name(value).action(action).help(help))
    }

    /// Returns the value on the command line.
    fn given(&self, matches: &ArgMatches) -> Option<(&'static str, Given, &'static str)> {
        let (flag, _) = self.flag()?;
        let mut values = matches.get_many::<String>(self.key)?.cloned();
        let given = match self.repeats {
            Repeats::Never => Given::Text(values.next()?),
            Repeats::Joined => Given::Text(values.collect::<Vec<_>>().join(",")),
            Repeats::Each => Given::Each(values.collect()),
        };
        Some((self.key, given, flag))
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Section {
    pub(crate) name: &'static str,
    pub(crate) settings: &'static [Setting],
}

impl Section {
    pub(crate) fn keys(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.settings.iter().map(|setting| setting.key)
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.keys().any(|known| known == key)
    }

    /// Returns the environment variable of a key. `DOWNBEAT_SERVER` is the client's URL, so the server of an agent has a
    /// longer name.
    pub(crate) fn variable(&self, key: &str) -> String {
        match (self.name, key) {
            ("agent", "server") => format!("{PREFIX}AGENT_SERVER"),
            _ => format!("{PREFIX}{}", key.to_ascii_uppercase()),
        }
    }
}

/// The section whose flags a command has.
pub(crate) trait HasSection: Clone + std::fmt::Debug + Send + Sync + 'static {
    const SECTION: Section;
}

/// The flags of a section, for clap.
#[derive(Clone, Debug)]
pub(crate) struct Flags<S> {
    pub(crate) given: Vec<(&'static str, Given, &'static str)>,
    section: PhantomData<S>,
}

impl<S: HasSection> FromArgMatches for Flags<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let given = S::SECTION.settings.iter().filter_map(|setting| setting.given(matches)).collect();
        Ok(Self { given, section: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<S: HasSection> Args for Flags<S> {
    fn augment_args(command: Command) -> Command {
        command.args(S::SECTION.settings.iter().filter_map(Setting::arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}
