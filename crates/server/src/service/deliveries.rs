//! Reads deliveries, and sends them again.

use downbeat_core::delivery::Delivery;
use downbeat_core::ids::DeliveryId;
use downbeat_core::{Change, Refusal};

use super::Service;
use crate::caller::Caller;
use crate::error::{Conflict, Error, Noun, Result};

impl Service {
    pub(crate) async fn delivery(&self, _: &Caller, id: &str) -> Result<Delivery> {
        let missing = || Error::from(Noun::Delivery(id.to_owned()));
        let parsed: DeliveryId = id.parse().map_err(|_| missing())?;
        self.parts.views.delivery(parsed).await?.ok_or_else(missing)
    }

    /// Sends a delivery again that has ended. Returns it when that is committed.
    pub(crate) async fn send_again(&self, caller: &Caller, id: &str) -> Result<Delivery> {
        let delivery = self.delivery(caller, id).await?;
        let (run, by, at) = (delivery.run.clone(), caller.name().to_owned(), self.now());
        match self.commit_one(Change::DeliveryRequested { run, delivery: delivery.id, by, at }).await? {
            Ok(()) => self.delivery(caller, id).await,
            Err(Refusal::NotKnownToAll) => Err(Error::OlderServer("deliveries")),
            Err(Refusal::NotFound) => Err(Noun::Delivery(id.to_owned()).into()),
            Err(_) => Err(Conflict::DeliveryPending(delivery.id).into()),
        }
    }
}
