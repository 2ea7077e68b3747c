//! Applies changes to deliveries.

use jiff::Timestamp;

use super::tables::Tables;
use crate::change::{Applied, Refusal};
use crate::delivery::{Delivery, DeliveryState, LastTry};
use crate::ids::DeliveryId;

impl Tables {
    pub(super) fn queue_delivery(&mut self, delivery: &Delivery) -> Applied {
        if !self.clusters.contains_key(&delivery.cluster) {
            return Err(Refusal::NotFound);
        }
        if self.deliveries.contains_key(&delivery.id) {
            return Err(Refusal::WrongState);
        }
        self.deliveries.insert(delivery.id, delivery.clone());
        Ok(())
    }

    pub(super) fn take_delivery(
        &mut self,
        id: DeliveryId,
        attempt: u32,
        until: Timestamp,
        at: Timestamp,
    ) -> Applied {
        let delivery = self.deliveries.get_mut(&id).ok_or(Refusal::NotFound)?;
        match delivery.state {
            DeliveryState::Pending { due_at } if due_at <= at && delivery.tries + 1 == attempt => {
                delivery.tries = attempt;
                delivery.state = DeliveryState::Pending { due_at: until };
                Ok(())
            }
            _ => Err(Refusal::WrongState),
        }
    }

    pub(super) fn end_try(
        &mut self,
        id: DeliveryId,
        attempt: u32,
        state: DeliveryState,
        last: LastTry,
    ) -> Applied {
        let delivery = self.deliveries.get_mut(&id).ok_or(Refusal::NotFound)?;
        if delivery.state.due_at().is_none() || delivery.tries != attempt {
            return Err(Refusal::WrongState);
        }
        delivery.state = state;
        delivery.last = Some(last);
        Ok(())
    }

    pub(super) fn request_delivery(&mut self, id: DeliveryId, at: Timestamp) -> Applied {
        let delivery = self.deliveries.get_mut(&id).ok_or(Refusal::NotFound)?;
        if delivery.state.due_at().is_some() {
            return Err(Refusal::WrongState);
        }
        delivery.tries = 0;
        delivery.state = DeliveryState::Pending { due_at: at };
        Ok(())
    }
}
