//! Owns how stores and directories are shown to users: with absolute paths.

use std::path::Path;

use crate::settings::without_password;

/// Returns the absolute path, or the path itself if it cannot be resolved.
pub(super) fn absolute(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

/// Returns the location of a store, without its password.
pub(super) fn shown(location: &str) -> String {
    match location.strip_prefix("sqlite:") {
        Some(path) => format!("sqlite:{}", absolute(Path::new(path))),
        None => without_password(location),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_named_from_the_root_on() {
        let here = std::env::current_dir().unwrap();
        let expected = format!("sqlite:{}", here.join("data/downbeat.db").display());
        assert_eq!(shown("sqlite:./data/downbeat.db"), expected);
        assert_eq!(shown("sqlite:/var/downbeat.db"), "sqlite:/var/downbeat.db");
        assert_eq!(shown("memory:"), "memory:");
    }
}
