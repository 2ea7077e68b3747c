//! Owns the row of a delivery.

use std::sync::Arc;

use downbeat_core::delivery::{Delivery, DeliveryState, DeliveryStatus, LastTry};
use downbeat_core::ids::{ClusterId, DeliveryId};
use uuid::Uuid;

use super::codes::Code;
use super::column::{Cells, Columns, columns};
use super::record::{Record, select};
use super::scalar::{json, micros, parse, small, small_count, time, time_opt};
use super::text::Text;
use crate::port::{Error, Result};

columns! {
    /// A row of `deliveries`.
    struct DeliveryRow<'a> {
        id: Uuid,
        cluster: Uuid,
        run: Text<'a>,
        job: Option<Text<'a>>,
        event: Text<'a>,
        created_at: i64,
        status: i16,
        tries: i32,
        due_at: Option<i64>,
        ended_at: Option<i64>,
        tried_at: Option<i64>,
        code: Option<i32>,
        error: Option<Text<'a>>,
        message: Text<'a>,
    }
}

impl<'a> DeliveryRow<'a> {
    pub(crate) fn of(delivery: &'a Delivery) -> Result<Self> {
        let last = delivery.last.as_ref();
        Ok(Self {
            id: delivery.id.0,
            cluster: delivery.cluster.0,
            run: delivery.run.as_str().into(),
            job: delivery.job.as_deref().map(Text::from),
            event: delivery.event.as_str().into(),
            created_at: delivery.created_at.as_microsecond(),
            status: delivery.state.status().code(),
            tries: small(delivery.tries),
            due_at: micros(delivery.state.due_at()),
            ended_at: micros(delivery.state.ended_at()),
            tried_at: micros(last.map(|last| last.at)),
            code: last.and_then(|last| last.code).map(i32::from),
            error: last.and_then(|last| last.error.as_deref()).map(Text::from),
            message: json(&delivery.message)?.into(),
        })
    }

    fn state(&self) -> Result<DeliveryState> {
        let status = DeliveryStatus::decode(self.status)?;
        let missing = || Error::Corrupt(format!("delivery {} has no time for its status", self.id));
        let time_of = |at: Option<i64>| at.ok_or_else(missing).and_then(time);
        Ok(match status {
            DeliveryStatus::Pending => DeliveryState::Pending { due_at: time_of(self.due_at)? },
            DeliveryStatus::Delivered => DeliveryState::Delivered { at: time_of(self.ended_at)? },
            DeliveryStatus::Failed => DeliveryState::Failed { at: time_of(self.ended_at)? },
        })
    }
}

impl Record for Delivery {
    select!(DeliveryRow<'_>, "d", "deliveries");

    fn from_row(row: &impl Cells) -> Result<Self> {
        let row = DeliveryRow::read(row, 0)?;
        let state = row.state()?;
        let code = row.code.and_then(|code| u16::try_from(code).ok());
        let error: Option<String> = row.error.map(Into::into);
        Ok(Self {
            id: DeliveryId(row.id),
            cluster: ClusterId(row.cluster),
            run: String::from(row.run).into(),
            job: row.job.map(|job| Arc::from(&*job.0)),
            event: row.event.into(),
            message: Arc::new(parse("message", &row.message.0)?),
            created_at: time(row.created_at)?,
            tries: small_count(row.tries)?,
            state,
            last: time_opt(row.tried_at)?.map(|at| LastTry { at, code, error }),
        })
    }
}
