//! Owns the parts of new rows that are JSON and that no guard changes. They are written before the transaction begins, so
//! that nobody waits for its locks meanwhile.

use downbeat_core::change::Change;

use crate::port::Result;
use crate::rows::{ChangeColumns, DefinedRow, ExecutionDocuments, NewContents, definition_row, json};

/// The documents that a change writes if it is applied.
pub(super) struct Documents<'a> {
    pub(super) event: ChangeColumns<'a>,
    pub(super) definition: Option<DefinedRow<'a>>,
    /// Those that the definition refers to.
    pub(super) contents: NewContents,
    /// Those of the executions that the change adds, in their order.
    pub(super) executions: Vec<ExecutionDocuments<'a>>,
}

impl<'a> Documents<'a> {
    pub(super) fn of(change: &'a Change, is_sharing: bool) -> Result<Self> {
        // A change of an unknown kind is never applied.
        let data = if matches!(change, Change::Unknown { .. }) { String::new() } else { json(change)? };
        let mut documents = Self {
            event: ChangeColumns::of(change, data),
            definition: None,
            contents: NewContents::new(is_sharing),
            executions: Vec::new(),
        };
        match change {
            Change::RunCreated { run, .. } => {
                documents.definition = Some(definition_row(run, &mut documents.contents)?);
            }
            Change::ExecutionsAdded { executions, .. } => {
                documents.executions =
                    executions.iter().map(ExecutionDocuments::of).collect::<Result<_>>()?;
            }
            _ => {}
        }
        Ok(documents)
    }
}
