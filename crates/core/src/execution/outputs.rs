//! Checks that a successful attempt set the outputs that its task declares. The agent checks this, so that a person
//! reads the reason at once; the server checks it again, since any program may call it.

use super::record::{Outcome, Verdict};
use crate::backend::{Params, params_bytes};
use crate::limits::{REASON_BYTES, VALUES_BYTES};
use crate::shown::cut;

/// Returns only the declared outputs of `values`. The error is written for the author of the job.
pub fn declared_outputs(declared: &[String], mut values: Params) -> Result<Params, String> {
    values.retain(|name, _| declared.contains(name));
    let missing: Vec<String> =
        declared.iter().filter(|name| !values.contains_key(*name)).map(|name| format!("`{name}`")).collect();
    if !missing.is_empty() {
        let missing = missing.join(", ");
        return Err(format!(
            "exited successfully but did not set output {missing}: write `name=value` to the file $DOWNBEAT_OUTPUT, \
             or print a JSON object on a line of its own"
        ));
    }
    if params_bytes(&values) > VALUES_BYTES {
        return Err(outputs_too_large());
    }
    Ok(values)
}

/// Returns the error of an attempt whose outputs are too large.
pub fn outputs_too_large() -> String {
    format!("its outputs are larger than {} KiB", VALUES_BYTES / 1024)
}

impl Outcome {
    /// Checks an agent's report against the outputs that the task declares. An attempt with a missing or too large output
    /// has failed and is recorded as failed: if the server refused the report, the agent would send it forever.
    #[must_use]
    pub fn with_declared_outputs(mut self, declared: &[String]) -> Self {
        let values = std::mem::take(&mut self.outputs);
        if self.verdict != Verdict::Succeeded {
            return self;
        }
        match declared_outputs(declared, values) {
            Ok(values) => Self { outputs: values, ..self },
            Err(error) => self.failed_for(error),
        }
    }

    /// Returns the same outcome as failed, with this reason.
    #[must_use]
    pub fn failed_for(self, error: String) -> Self {
        Self { verdict: Verdict::Failed, error: Some(cut_reason(error)), outputs: Params::new(), ..self }
    }
}

/// Cuts an error or a reason to the length that is kept, and marks the cut.
pub fn cut_reason(mut reason: String) -> String {
    cut(&mut reason, REASON_BYTES);
    reason
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;

    fn outcome(verdict: Verdict, outputs: &[(&str, &str)]) -> Outcome {
        Outcome {
            verdict,
            exit_code: Some(0),
            error: None,
            outputs: outputs.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect(),
            started_at: Timestamp::UNIX_EPOCH,
            finished_at: Timestamp::UNIX_EPOCH,
            received_at: None,
        }
    }

    #[test]
    fn an_attempt_that_succeeded_has_exactly_the_outputs_that_its_task_declares() {
        let long = "x".repeat(VALUES_BYTES);
        type Case<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)], Result<&'a [&'a str], &'a str>);
        let cases: [Case<'_>; 6] = [
            (&[], &[], Ok(&[])),
            (&[], &[("a", "1")], Ok(&[])),
            (&["a"], &[("a", "1"), ("b", "2")], Ok(&["a"])),
            (&["a", "b"], &[("a", "1")], Err("did not set output `b`")),
            (&["a"], &[("a", &long)], Err("larger than 64 KiB")),
            (&[], &[("a", &long)], Ok(&[])),
        ];
        for (declared, outputs, expected) in cases {
            let declared: Vec<String> = declared.iter().map(|name| (*name).to_owned()).collect();
            let kept = outcome(Verdict::Succeeded, outputs).with_declared_outputs(&declared);
            let names: Vec<&str> = kept.outputs.keys().map(String::as_str).collect();
            match expected {
                Ok(expected) => assert_eq!((kept.verdict, &*names), (Verdict::Succeeded, expected)),
                Err(expected) => {
                    assert_eq!((kept.verdict, kept.exit_code, names.len()), (Verdict::Failed, Some(0), 0));
                    assert!(kept.error.as_ref().is_some_and(|error| error.contains(expected)), "{kept:?}");
                }
            }
        }
        let failed = outcome(Verdict::Failed, &[("a", "1")]).with_declared_outputs(&["a".to_owned()]);
        assert_eq!((failed.error.as_deref(), failed.outputs.len()), (None, 0));
    }

    #[test]
    fn a_reason_is_cut_between_letters_and_says_so() {
        assert_eq!(cut_reason("short".to_owned()), "short");
        for text in ["x".repeat(2_000_000), "ü".repeat(REASON_BYTES)] {
            let cut = cut_reason(text);
            assert!(cut.len() <= REASON_BYTES && cut.len() > REASON_BYTES - 8 && cut.ends_with('…'));
        }
    }
}
