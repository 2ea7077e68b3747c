//! Owns the reads of deliveries of both SQL stores: one text for both dialects.

use async_trait::async_trait;
use downbeat_core::delivery::Delivery;
use downbeat_core::ids::DeliveryId;
use uuid::Uuid;

use crate::filter::{arg, text};
use crate::port::{Deliveries, DeliveryFilter, DeliveryKey, DueKey, Result};
use crate::read::{Database, one};
use crate::rows::{Code, condition};

/// The filters besides the run, and the order.
const REST: &str = "($1 OR d.cluster = $2) AND ($3 OR d.job = $4) AND ($5 OR d.status = $6) \
     AND ($7 OR (d.created_at, d.id) < ($8, $9)) ORDER BY d.created_at DESC, d.id DESC LIMIT $10";

#[async_trait]
impl<D: Database> Deliveries for D {
    async fn deliveries(
        &self,
        filter: &DeliveryFilter,
        after: Option<DeliveryKey>,
        most: u32,
    ) -> Result<Vec<Delivery>> {
        let mut args = vec![
            arg(filter.cluster.is_none()),
            arg(filter.cluster.map_or(Uuid::nil(), |cluster| cluster.0)),
            arg(filter.job.is_none()),
            text(filter.job.as_deref().unwrap_or_default()),
            arg(filter.status.is_none()),
            arg(filter.status.map_or(0, Code::code)),
            arg(after.is_none()),
            arg(after.map_or(0, |key| key.created_at.as_microsecond())),
            arg(after.map_or(Uuid::nil(), |key| key.id.0)),
            arg(i64::from(most)),
        ];
        let of_run = match &filter.run {
            Some(run) => {
                args.push(text(run.as_str()));
                "d.run = $11 AND "
            }
            None => "",
        };
        self.fetch(&format!(" WHERE {of_run}{REST}"), args).await
    }

    async fn delivery(&self, id: DeliveryId) -> Result<Option<Delivery>> {
        one(self, " WHERE d.id = $1", vec![arg(id.0)]).await
    }

    async fn due_deliveries(&self, after: Option<DueKey>, most: u32) -> Result<Vec<Delivery>> {
        let rest = concat!(
            " WHERE d.due_at IS NOT NULL AND ($2 OR (d.due_at, d.id) > ($3, $4)) AND d.cluster NOT IN (",
            condition!(deleted clusters),
            ") ORDER BY d.due_at, d.id LIMIT $1"
        );
        let key = after.map(|key| (key.due_at.as_microsecond(), key.id.0));
        let (due_at, id) = key.unwrap_or((0, Uuid::nil()));
        let args = vec![arg(i64::from(most)), arg(after.is_none()), arg(due_at), arg(id)];
        self.fetch(rest, args).await
    }
}
