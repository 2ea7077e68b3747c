//! Checks the names in the params that a trigger sets.

use super::reference::{Reference, Root};
use super::template::Template;
use crate::backend::ParamProblem;
use crate::nearest::advice;
use crate::shown::shown;
use crate::spec::Trigger;

impl Template {
    /// Reports all names that do not exist when the trigger starts the job.
    pub(crate) fn check_trigger(&self, trigger: &Trigger) -> Vec<ParamProblem> {
        let mut problems = Vec::new();
        self.each(|param, element, formula| {
            for reference in &formula.references {
                if let Err(message) = check(reference, trigger) {
                    problems.push(ParamProblem {
                        param: param.to_owned(),
                        element: element.cloned(),
                        message,
                    });
                }
            }
        });
        problems
    }
}

fn check(reference: &Reference, trigger: &Trigger) -> Result<(), String> {
    match reference.root {
        Root::Payload if matches!(trigger, Trigger::Http(_)) => Ok(()),
        Root::Payload => Err(format!("`{reference}`: only a request has a payload")),
        Root::Trigger => {
            let (name, facts) = (reference.name(), trigger.facts());
            if facts.contains(&name) {
                return Ok(());
            }
            Err(format!("this `trigger` has no `{}`; {}", shown(name), advice(name, facts, "it has")))
        }
        Root::Params | Root::Steps | Root::Node | Root::Run | Root::Item | Root::Index | Root::Event => Err(
            format!("`{reference}` is not known when a trigger starts the job; use `payload` or `trigger`"),
        ),
    }
}
