//! Holds the files of the web UI, built from `ui/` and committed in `dist`. It does not know how they are served.

#![allow(clippy::large_include_file, reason = "the files are the content of this crate")]

/// One file of the web UI.
#[derive(Clone, Copy, Debug)]
pub struct Asset {
    pub name: &'static str,
    pub content: &'static [u8],
    /// The same, compressed.
    pub gzip: &'static [u8],
}

impl Asset {
    /// Returns the file with this name; the page itself is [`INDEX`].
    pub fn find(name: &str) -> Option<&'static Self> {
        ASSETS.iter().find(|asset| asset.name == name)
    }

    /// Returns the content type that belongs to the name.
    pub fn media(&self) -> &'static str {
        match self.name.rsplit_once('.').map_or("", |(_, extension)| extension) {
            "html" => "text/html; charset=utf-8",
            "js" => "text/javascript; charset=utf-8",
            "css" => "text/css; charset=utf-8",
            "svg" => "image/svg+xml",
            _ => "application/octet-stream",
        }
    }
}

include!(concat!(env!("OUT_DIR"), "/table.rs"));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_only_files_that_exist() {
        let page = std::str::from_utf8(INDEX.content).unwrap();
        let prefix = format!("/ui/a/{HASH}/");
        let named: Vec<&str> =
            page.split(&prefix).skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert!(named.contains(&"app.js") && named.contains(&"app.css"), "{named:?}");
        for name in named {
            assert!(Asset::find(name).is_some(), "{name}");
        }
        assert!(!page.contains("HASH"));
    }

    #[test]
    fn every_file_has_a_content_type() {
        for asset in ASSETS {
            assert_ne!(asset.media(), "application/octet-stream", "{}", asset.name);
        }
    }

    #[test]
    fn the_page_loads_at_most_60_kilobytes_and_all_files_are_150() {
        let of = |name: &str| Asset::find(name).map_or(0, |asset| asset.gzip.len());
        assert!(of("app.js") + of("app.css") <= 60 * 1024, "{} and {}", of("app.js"), of("app.css"));
        assert!(ASSETS.iter().map(|asset| asset.gzip.len()).sum::<usize>() <= 150 * 1024);
    }
}
