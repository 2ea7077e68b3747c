//! Owns the conditions for a response to count as a success.

use downbeat_core::shown::shown;
use reqwest::header::{HeaderMap, HeaderName};
use serde_json::{Map, Value};

/// The parsed param `expect`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Expect {
    status: Vec<Range>,
    pub(super) contains: Option<String>,
    /// Each header has to contain its text, ignoring case.
    headers: Vec<(HeaderName, String)>,
    /// Members that the response's object must have.
    pub(super) json: Option<Map<String, Value>>,
}

/// Status codes from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range(u16, u16);

impl Expect {
    pub(super) fn read(value: Option<&Value>) -> Result<Self, String> {
        let mut expect =
            Self { status: vec![Range(200, 299)], contains: None, headers: Vec::new(), json: None };
        let Some(value) = value else { return Ok(expect) };
        let Value::Object(entries) = value else {
            return Err(format!(
                "param `expect`: {value} is not valid; write {{status: 2xx, contains: TEXT}}, or one of them"
            ));
        };
        for (key, value) in entries {
            match (key.as_str(), value) {
                ("status", Value::Array(items)) if !items.is_empty() => {
                    expect.status = items.iter().map(range).collect::<Result<_, _>>()?;
                }
                ("status", one) => expect.status = vec![range(one)?],
                ("contains", Value::String(text)) => expect.contains = Some(text.clone()),
                ("contains", other) => {
                    return Err(format!("param `expect.contains`: must be a string, not {other}"));
                }
                ("headers", Value::Object(headers)) => {
                    expect.headers = headers.iter().map(header).collect::<Result<_, _>>()?;
                }
                ("json", Value::Object(members)) => expect.json = Some(members.clone()),
                ("headers" | "json", other) => {
                    return Err(format!("param `expect.{key}`: must be a map, not {other}"));
                }
                (other, _) => {
                    return Err(format!(
                        "param `expect`: unknown key `{}`; write status, contains, headers or json",
                        shown(other)
                    ));
                }
            }
        }
        Ok(expect)
    }

    pub(super) fn is_status(&self, code: u16) -> bool {
        self.status.iter().any(|range| (range.0..=range.1).contains(&code))
    }

    /// Returns why the headers of a response are not as expected.
    pub(super) fn wrong_header(&self, found: &HeaderMap) -> Option<String> {
        let is = |name: &HeaderName, wanted: &str| {
            let wanted = wanted.to_lowercase();
            found
                .get_all(name)
                .iter()
                .any(|value| String::from_utf8_lossy(value.as_bytes()).to_lowercase().contains(&wanted))
        };
        let (name, wanted) = self.headers.iter().find(|(name, wanted)| !is(name, wanted))?;
        Some(match found.get(name) {
            None => format!("the response has no header `{name}`"),
            Some(value) => {
                let value = shown(&String::from_utf8_lossy(value.as_bytes()));
                format!("the header `{name}` is \"{value}\"; expected it to contain \"{}\"", shown(wanted))
            }
        })
    }

    /// Returns why the body of a response is not the expected JSON.
    pub(super) fn wrong_json(&self, body: Option<&[u8]>) -> Option<String> {
        let wanted = self.json.as_ref()?;
        let Some(body) = body else {
            return Some("the response is too long to be checked as JSON".to_owned());
        };
        let Ok(Value::Object(found)) = serde_json::from_slice(body) else {
            return Some("the response is not a JSON object".to_owned());
        };
        let (name, wanted) = wanted.iter().find(|(name, wanted)| found.get(*name) != Some(wanted))?;
        Some(match found.get(name) {
            None => format!("the response has no `{}`", shown(name)),
            Some(value) => {
                format!(
                    "`{}` of the response is {}; expected {wanted}",
                    shown(name),
                    shown(&value.to_string())
                )
            }
        })
    }

    /// Returns text for users: `200, 2xx`.
    pub(super) fn statuses(&self) -> String {
        let shown = |range: &Range| match range {
            Range(first, last) if first == last => first.to_string(),
            Range(first, _) => format!("{}xx", first / 100),
        };
        self.status.iter().map(shown).collect::<Vec<_>>().join(" or ")
    }
}

fn header((name, value): (&String, &Value)) -> Result<(HeaderName, String), String> {
    let refused = |why: &str| format!("param `expect.headers.{}`: {why}", shown(name));
    let header =
        HeaderName::from_bytes(name.as_bytes()).map_err(|_| refused("is not a valid header name"))?;
    let wanted = value.as_str().ok_or_else(|| refused("must be a string that the header contains"))?;
    Ok((header, wanted.to_owned()))
}

/// Reads `204`, `"204"` or `2xx`.
fn range(value: &Value) -> Result<Range, String> {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let wrong = || {
        format!(
            "param `expect.status`: {} is not valid; write a status such as 204, or 2xx, or a list of them",
            shown(&text)
        )
    };
    let class = text.strip_suffix("xx").and_then(|class| class.parse::<u16>().ok());
    match (class, text.parse::<u16>()) {
        (Some(class @ 1..=5), _) => Ok(Range(class * 100, class * 100 + 99)),
        (None, Ok(code @ 100..=599)) => Ok(Range(code, code)),
        _ => Err(wrong()),
    }
}

/// Searches a text in a stream without keeping the stream.
#[derive(Debug)]
pub(super) struct Search {
    wanted: Vec<u8>,
    tail: Vec<u8>,
    found: bool,
}

impl Search {
    pub(super) fn new(wanted: &str) -> Self {
        Self { wanted: wanted.as_bytes().to_vec(), tail: Vec::new(), found: wanted.is_empty() }
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) {
        if self.found {
            return;
        }
        self.tail.extend_from_slice(bytes);
        self.found = self.tail.windows(self.wanted.len()).any(|window| window == self.wanted);
        let kept = self.tail.len().min(self.wanted.len() - 1);
        self.tail.drain(..self.tail.len() - kept);
    }

    pub(super) fn found(&self) -> bool {
        self.found
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn statuses_are_codes_and_classes() {
        let expect = Expect::read(Some(&json!({"status": [200, "204", "3xx"]}))).unwrap();
        for (code, is) in [(200, true), (201, false), (204, true), (302, true), (404, false)] {
            assert_eq!(expect.is_status(code), is, "{code}");
        }
        assert_eq!(expect.statuses(), "200 or 204 or 3xx");
        assert!(Expect::read(None).unwrap().is_status(201));
        for wrong in [
            json!({"status": "20x"}),
            json!({"status": 99}),
            json!({"status": []}),
            json!({"status": "9xx"}),
            json!({"contains": 5}),
            json!({"body": "x"}),
            json!({"headers": ["x"]}),
            json!({"headers": {"a b": "x"}}),
            json!({"headers": {"x": 1}}),
            json!({"json": [1]}),
            json!([200]),
            json!(200),
        ] {
            assert!(Expect::read(Some(&wrong)).unwrap_err().starts_with("param `expect"), "{wrong}");
        }
    }

    #[test]
    fn a_text_is_found_across_pieces() {
        for pieces in [vec!["xneedley"], vec!["xnee", "dley"], vec!["n", "e", "e", "d", "l", "e"]] {
            let mut search = Search::new("needle");
            pieces.iter().for_each(|piece| search.feed(piece.as_bytes()));
            assert!(search.found(), "{pieces:?}");
        }
        let mut search = Search::new("needle");
        ["nee", "", "edle"].iter().for_each(|piece| search.feed(piece.as_bytes()));
        assert!(!search.found());
        assert!(Search::new("").found());
    }
}
