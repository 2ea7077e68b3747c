//! Owns how the rows of a node's totals are put together.

use downbeat_core::execution::Status;

use super::codes::Code;
use super::scalar::{count, time_opt};
use crate::port::{Error, NodeTotals};

impl NodeTotals {
    /// Takes in a row of `NODE_TOTALS`: one status.
    pub(crate) fn add(
        &mut self,
        status: i16,
        total: i64,
        claimed_at: Option<i64>,
        finished_at: Option<i64>,
    ) -> Result<(), Error> {
        self.executions.push((Status::decode(status)?, count(total)?));
        self.claimed_at = self.claimed_at.max(time_opt(claimed_at)?);
        self.finished_at = self.finished_at.max(time_opt(finished_at)?);
        Ok(())
    }
}
