//! Owns the outputs that a task sets for later tasks: lines of a file, or the last JSON object on a line of
//! its own on standard output.

mod file;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use downbeat_backends::{BlockingCalls, Finish, Identity, Piece, Receive, Stream};
use downbeat_core::backend::Params;
use downbeat_core::execution::{Verdict, declared_outputs, outputs_too_large};
use downbeat_core::limits::VALUES_BYTES;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::time::timeout;

use crate::output::Tap;
use crate::surroundings::Disk;

/// How long reading the file of outputs may take. The attempt keeps its slot until then.
const GATHER_FOR: Duration = Duration::from_secs(30);
/// Few, because each reader may hang with the disk.
static READERS: BlockingCalls = BlockingCalls::new(2, GATHER_FOR);

/// Searches the output of a task that declares outputs for JSON objects, and passes the output on.
#[derive(Debug)]
pub(crate) struct Listener {
    tap: Tap,
    heard: Mutex<Heard>,
}

#[derive(Debug, Default)]
struct Heard {
    /// The unfinished line of standard output, up to the size limit of all outputs.
    line: Option<String>,
    too_long: bool,
    /// The last line that was a JSON object.
    object: Option<Map<String, Value>>,
}

/// The outputs that one attempt is expected to set.
#[derive(Debug)]
pub(crate) struct Expected {
    names: Vec<String>,
    pub(crate) file: PathBuf,
    pub(crate) listener: Arc<Listener>,
}

impl Receive for Listener {
    fn piece(&self, piece: Piece) {
        if piece.stream == Stream::Stdout {
            self.heard.lock().text(&piece.text);
        }
        self.tap.piece(piece);
    }
}

impl Heard {
    fn text(&mut self, text: &str) {
        let mut parts = text.split('\n').peekable();
        while let Some(part) = parts.next() {
            let line = self.line.get_or_insert_default();
            if line.len() + part.len() > VALUES_BYTES {
                self.too_long = true;
            } else {
                line.push_str(part);
            }
            if parts.peek().is_some() {
                self.line_ended();
            }
        }
    }

    /// Returns the last object, after all output was received.
    fn ended(&mut self) -> Option<Map<String, Value>> {
        self.line_ended();
        self.object.take()
    }

    fn line_ended(&mut self) {
        let line = self.line.take().unwrap_or_default();
        let too_long = std::mem::take(&mut self.too_long);
        if !too_long && line.trim_start().starts_with('{') {
            self.object = serde_json::from_str(&line).ok().or(self.object.take());
        }
    }
}

impl Expected {
    /// Prepares for an attempt that has to set `names`. Its output is searched and goes to `tap`.
    pub(crate) fn new(names: &[String], dir: &Path, identity: Identity, tap: Tap) -> io::Result<Self> {
        let file = dir.join(identity.to_string());
        file::make(&file)?;
        let listener = Arc::new(Listener { tap, heard: Mutex::default() });
        Ok(Self { names: names.to_vec(), file, listener })
    }

    /// Returns the outputs of an attempt that ended. An attempt that succeeded without setting all of them
    /// fails.
    pub(crate) async fn gather(self, finish: Finish, disk: Disk) -> (Finish, Params) {
        let Self { names, file, listener } = self;
        let read = move || {
            let text = file::read(&file);
            file::remove(&file);
            text
        };
        let text = match disk {
            Disk::Inline => read(),
            // A disk that hangs blocks only this attempt.
            Disk::Thread => match timeout(GATHER_FOR, READERS.run(read)).await {
                Ok(read) => read.unwrap_or_else(|error| Err(error.to_string())),
                Err(_) => {
                    Err("cannot read the file $DOWNBEAT_OUTPUT: the agent's disk does not respond".to_owned())
                }
            },
        };
        if finish.verdict != Verdict::Succeeded {
            return (finish, Params::new());
        }
        match text.and_then(|text| values(&names, &text, listener.heard.lock().ended())) {
            Ok(values) => (finish, values),
            Err(error) => (Finish::failed(finish.exit_code, error), Params::new()),
        }
    }
}

/// Returns the values of `names`. Lines of the file take precedence over members of the object.
fn values(names: &[String], text: &str, object: Option<Map<String, Value>>) -> Result<Params, String> {
    let mut values: Params =
        object.unwrap_or_default().into_iter().filter(|(name, _)| names.contains(name)).collect();
    for (line, number) in text.lines().zip(1..) {
        if line.trim().is_empty() {
            continue;
        }
        let (name, value) = line
            .split_once('=')
            .ok_or_else(|| format!("line {number} of the file $DOWNBEAT_OUTPUT is not `name=value`"))?;
        let (name, value) = (name.trim(), value.trim());
        if names.iter().any(|known| known == name) {
            values.insert(name.to_owned(), Value::from(value));
        }
    }
    let values = declared_outputs(names, values)?;
    if text.len() > VALUES_BYTES {
        return Err(outputs_too_large());
    }
    Ok(values)
}

/// Removes the files that earlier runs of the agent left.
pub(crate) fn sweep(dir: &Path) {
    file::remove(dir);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(pieces: &[&str]) -> Option<String> {
        let mut heard = Heard::default();
        for piece in pieces {
            heard.text(piece);
        }
        heard.line_ended();
        heard.object.map(|object| Value::Object(object).to_string())
    }

    #[test]
    fn the_last_line_that_is_an_object_counts_however_it_is_cut_into_pieces() {
        let cases: [(&[&str], Option<&str>); 8] = [
            (&["{\"a\":1}\n"], Some("{\"a\":1}")),
            (&["{\"a\":1}\n{\"a\":2}\ndone\n"], Some("{\"a\":2}")),
            (&["log\n  {\"a\"", ":", "3}"], Some("{\"a\":3}")),
            (&["{\"a\":1}\n{broken\n"], Some("{\"a\":1}")),
            (&["[1]\n\"{}\"\n"], None),
            (&["x {\"a\":1}\n"], None),
            (&[""], None),
            (&["\n\n{}"], Some("{}")),
        ];
        for (pieces, expected) in cases {
            assert_eq!(object(pieces).as_deref(), expected, "{pieces:?}");
        }
    }

    #[test]
    fn a_line_without_end_is_not_kept() {
        let mut heard = Heard::default();
        for _ in 0..100 {
            heard.text(&"{".repeat(VALUES_BYTES / 2));
        }
        assert!(heard.line.as_ref().is_some_and(|line| line.len() <= VALUES_BYTES));
        heard.text("\n{\"a\":1}\n");
        assert!(heard.object.is_some());
    }

    #[test]
    fn what_is_declared_has_to_be_said_and_the_file_comes_first() {
        let long = format!("a={}\n", "x".repeat(VALUES_BYTES));
        let cases: [(&str, &str, Result<&str, &str>); 10] = [
            ("a=1\nb=2=3\nc=4\n", "", Ok(r#"{"a":"1","b":"2=3"}"#)),
            ("", "{\"a\": 1, \"b\": [2]}\n", Ok(r#"{"a":1,"b":[2]}"#)),
            ("a=file\n", "{\"a\": 1, \"b\": null}\n", Ok(r#"{"a":"file","b":null}"#)),
            ("\n a=1\nb=\n", "", Ok(r#"{"a":"1","b":""}"#)),
            ("a=1\n", "", Err("did not set output `b`")),
            ("", "", Err("did not set output `a`, `b`")),
            ("a=1\nnonsense\n", "", Err("line 2 of the file $DOWNBEAT_OUTPUT is not `name=value`")),
            (&long, "{\"b\": 1}", Err("larger than 64 KiB")),
            ("a=1\nb=2", "{\"a\": ", Ok(r#"{"a":"1","b":"2"}"#)),
            (" a = 1 \n\tb\t=\ttwo words \r\n", "", Ok(r#"{"a":"1","b":"two words"}"#)),
        ];
        for (file, printed, expected) in cases {
            let mut heard = Heard::default();
            heard.text(printed);
            let names = ["a", "b"].map(str::to_owned);
            match (values(&names, file, heard.ended()), expected) {
                (Ok(got), Ok(expected)) => assert_eq!(serde_json::to_string(&got).unwrap(), expected),
                (Err(got), Err(expected)) => assert!(got.contains(expected), "{got}"),
                (got, expected) => panic!("{got:?}, not {expected:?}"),
            }
        }
    }
}
