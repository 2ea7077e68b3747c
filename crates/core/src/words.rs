//! Defines enums whose variants are words: they are stored, shown and used in filters.

/// Defines the enum, the list of its variants, and the conversions from and to words.
macro_rules! words {
    ($(#[$of:meta])* $vis:vis enum $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$of])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        $vis enum $name {
            $($(#[$doc])* #[serde(rename = $word)] $variant,)*
        }

        impl $name {
            $vis const ALL: [$name; [$($word),*].len()] = [$($name::$variant),*];

            $vis fn as_str(self) -> &'static str {
                match self {
                    $($name::$variant => $word,)*
                }
            }

            $vis fn parse(text: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|one| one.as_str() == text)
            }
        }

        impl From<$name> for &'static str {
            fn from(word: $name) -> Self {
                word.as_str()
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

pub(crate) use words;
