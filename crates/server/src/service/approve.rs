//! Approves and rejects steps that wait for a person.

use downbeat_core::execution::{Decision, Status};
use downbeat_core::ids::RunId;
use downbeat_core::nearest::advice;
use downbeat_core::run::RunRecord;
use downbeat_core::spec::Task;
use downbeat_core::{Change, Portion, Refusal, limits};
use downbeat_store::InstanceFilter;

use super::Service;
use super::find::check_shown;
use crate::caller::Caller;
use crate::error::{Conflict, Error, Noun, Result};

/// A decision about a step of a run.
#[derive(Clone, Debug)]
pub(crate) struct Approval {
    pub(crate) run: RunId,
    /// The name of the step's task, or its number.
    pub(crate) step: String,
    pub(crate) approved: bool,
    pub(crate) reason: Option<String>,
}

impl Service {
    /// Decides a step that waits for an approval. Returns when the decision is committed.
    pub(crate) async fn approve(&self, caller: &Caller, approval: Approval) -> Result<()> {
        let Approval { run: id, step: name, approved, reason } = approval;
        check_shown(&id)?;
        let run = self.open_run(caller, &id).await?;
        let (step, task) = find_step(&run, &name)?;
        let refuse = |why: String| -> Error {
            Conflict::NoApproval { run: id.clone(), step: name.clone(), why }.into()
        };
        if task.approve.is_none() {
            return Err(refuse(format!("needs no approval: it is `{}`", task.label())));
        }
        let reason = reason.map(|reason| reason.trim().to_owned()).filter(|reason| !reason.is_empty());
        let (bytes, most) = (reason.as_ref().map_or(0, String::len), limits::APPROVAL_TEXT_BYTES);
        if bytes > most || reason.as_ref().is_some_and(|reason| reason.contains('\0')) {
            return Err(refuse(format!(
                "is not decided: the reason has {bytes} bytes; at most {most} are possible, without NUL"
            )));
        }
        let filter = InstanceFilter { step: Some(step), ..InstanceFilter::default() };
        let found = self.parts.store.instances(&id, &filter, Portion::of_rows(1)).await?;
        let Some(execution) = found.first() else {
            return Err(refuse("does not wait yet: steps before it have not ended".to_owned()));
        };
        let decided = |status: Status| refuse(format!("does not wait for an approval: it is {status}"));
        if execution.state.status() != Status::Pending {
            return Err(decided(execution.state.status()));
        }
        let decision = Decision { approved, reason, by: caller.name().to_owned() };
        let (execution, at) = (execution.id, self.now());
        match self.commit_one(Change::ApprovalDecided { run: id.clone(), execution, decision, at }).await? {
            Ok(()) => Ok(()),
            Err(Refusal::NotKnownToAll) => Err(Error::OlderServer("approvals")),
            Err(_) => {
                let now = self.parts.store.execution(execution).await?;
                Err(match now {
                    Some(execution) => decided(execution.state.status()),
                    None => Conflict::RunRemoved(id.clone()).into(),
                })
            }
        }
    }
}

/// Returns the number and the task of the step that a name or a number refers to.
fn find_step<'r>(run: &'r RunRecord, name: &str) -> Result<(u32, &'r Task)> {
    let mut steps = (0..).zip(run.definition.steps());
    let named = steps.clone().find(|(_, task)| task.name.as_deref() == Some(name));
    let numbered = || name.parse().ok().and_then(|number: u32| steps.find(|(step, _)| *step == number));
    if let Some(step) = named.or_else(numbered) {
        return Ok(step);
    }
    let approvals = (0..).zip(run.definition.steps()).filter(|(_, task)| task.approve.is_some());
    let names: Vec<String> =
        approvals.map(|(step, task)| task.name.clone().unwrap_or_else(|| step.to_string())).collect();
    let known = match names.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => "none of its tasks needs an approval".to_owned(),
        names => advice(name, names, "approvals"),
    };
    Err(Noun::Task { run: run.id.clone(), task: name.to_owned(), known }.into())
}
