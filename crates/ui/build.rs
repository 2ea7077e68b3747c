//! Writes the table of the web UI's files: each as it is and compressed, and a hash over all of them.
//!
//! The files are built by `make ui` and committed, so that building the program needs no Node.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};

/// Stands for the hash in `index.html`.
const PLACEHOLDER: &str = "HASH";
/// The digits of the hash in addresses.
const DIGITS: usize = 16;

fn main() {
    let dist = Path::new(&env::var("CARGO_MANIFEST_DIR").expect("set by cargo")).join("dist");
    let out = PathBuf::from(env::var("OUT_DIR").expect("set by cargo"));
    // Cargo checks all files below a directory.
    println!("cargo::rerun-if-changed={}", dist.display());
    let index = fs::read_to_string(dist.join("index.html"));
    let index = index.unwrap_or_else(|_| panic!("crates/ui/dist is missing: run `make ui`"));

    let entries = fs::read_dir(&dist).expect("the directory has index.html");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    let mut hash = Sha256::new();
    let mut files = Vec::new();
    for path in paths {
        let name = path.file_name().and_then(|name| name.to_str()).expect("names are ASCII").to_owned();
        let content = fs::read(&path).expect("a readable file");
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(&name);
        hash.update((content.len() as u64).to_le_bytes());
        hash.update(&content);
        if name != "index.html" {
            files.push((name, content));
        }
    }
    let mut text = String::new();
    for byte in hash.finalize() {
        write!(text, "{byte:02x}").expect("a text takes everything");
    }
    text.truncate(DIGITS);

    let mut table = format!("pub const HASH: &str = \"{text}\";\n");
    write_file(&out, "index.html", index.replace(PLACEHOLDER, &text).as_bytes());
    writeln!(table, "pub static INDEX: Asset = {};", asset("index.html")).expect("a text takes everything");
    table.push_str("pub static ASSETS: &[Asset] = &[\n");
    for (name, content) in &files {
        write_file(&out, name, content);
        writeln!(table, "    {},", asset(name)).expect("a text takes everything");
    }
    table.push_str("];\n");
    fs::write(out.join("table.rs"), table).expect("cargo's directory is writable");
}

/// Writes a file as it is, and compressed.
fn write_file(out: &Path, name: &str, content: &[u8]) {
    fs::write(out.join(name), content).expect("cargo's directory is writable");
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(content).expect("memory takes everything");
    let compressed = encoder.finish().expect("memory takes everything");
    fs::write(out.join(format!("{name}.gz")), compressed).expect("cargo's directory is writable");
}

fn asset(name: &str) -> String {
    let include = |file: &str| format!("include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{file}\"))");
    let compressed = include(&format!("{name}.gz"));
    format!("Asset {{ name: {name:?}, content: {}, gzip: {compressed} }}", include(name))
}
