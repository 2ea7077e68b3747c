//! Reads the params of a run from the command line: `--param NAME=VALUE`.

use downbeat_core::backend::Params;
use serde_json::Value;

use crate::exit::{Failure, Result};

/// Returns every value as a string; the job file declares its type.
pub(super) fn read(given: &[String]) -> Result<Params> {
    let mut params = Params::new();
    for text in given {
        let Some((name, value)) = text.split_once('=').filter(|(name, _)| !name.trim().is_empty()) else {
            return Err(Failure::bad_input(format!("--param `{text}` is not valid; write NAME=VALUE")));
        };
        let name = name.trim().to_owned();
        if params.contains_key(&name) {
            return Err(Failure::bad_input(format!("--param `{name}` is given twice")));
        }
        params.insert(name, Value::from(value));
    }
    Ok(params)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(given: &[&str]) -> Result<Value, String> {
        let given: Vec<String> = given.iter().map(|&text| text.to_owned()).collect();
        read(&given).map(|params| json!(params)).map_err(|failure| failure.message)
    }

    #[test]
    fn a_value_is_everything_after_the_first_sign() {
        assert_eq!(of(&["a=1", "b=", "c=x=y z"]).unwrap(), json!({"a": "1", "b": "", "c": "x=y z"}));
        for (given, expected) in [
            (&["a"][..], "`a` is not valid; write NAME=VALUE"),
            (&["=1"], "write NAME=VALUE"),
            (&["a=1", "a=2"], "given twice"),
        ] {
            assert!(of(given).unwrap_err().contains(expected), "{given:?}");
        }
    }
}
