//! Owns the deliveries of the memory store.

use async_trait::async_trait;
use downbeat_core::delivery::Delivery;
use downbeat_core::ids::{ClusterId, DeliveryId};
use downbeat_core::limits;

use super::MemoryStore;
use super::store::State;
use crate::port::{Deliveries, DeliveryFilter, DeliveryKey, DueKey, Result};

impl State {
    /// Removes the oldest deliveries of a cluster that has too many.
    pub(super) fn forget_deliveries(&mut self, cluster: ClusterId) {
        if self.tables.deliveries.len() <= limits::DELIVERIES as usize {
            return;
        }
        let of = |delivery: &&Delivery| delivery.cluster == cluster;
        let mut keys: Vec<DeliveryKey> =
            self.tables.deliveries.values().filter(of).map(DeliveryKey::of).collect();
        keys.sort_unstable();
        for key in keys.iter().rev().skip(limits::DELIVERIES as usize) {
            self.tables.deliveries.remove(&key.id);
        }
    }
}

#[async_trait]
impl Deliveries for MemoryStore {
    async fn deliveries(
        &self,
        filter: &DeliveryFilter,
        after: Option<DeliveryKey>,
        most: u32,
    ) -> Result<Vec<Delivery>> {
        let state = self.lock();
        let is_wanted = |delivery: &&Delivery| {
            filter.fits(delivery) && after.is_none_or(|after| DeliveryKey::of(delivery) < after)
        };
        let mut found: Vec<Delivery> = state.tables.deliveries.values().filter(is_wanted).cloned().collect();
        found.sort_unstable_by_key(|delivery| std::cmp::Reverse(DeliveryKey::of(delivery)));
        found.truncate(most as usize);
        Ok(found)
    }

    async fn delivery(&self, id: DeliveryId) -> Result<Option<Delivery>> {
        Ok(self.lock().tables.deliveries.get(&id).cloned())
    }

    async fn due_deliveries(&self, after: Option<DueKey>, most: u32) -> Result<Vec<Delivery>> {
        let state = self.lock();
        let is_alive = |delivery: &&Delivery| state.clusters.contains_key(&delivery.cluster);
        let due = |delivery: &Delivery| Some((DueKey::of(delivery)?, delivery.clone()));
        let mut found: Vec<_> = state.tables.deliveries.values().filter(is_alive).filter_map(due).collect();
        found.retain(|(key, _)| after.is_none_or(|after| *key > after));
        found.sort_unstable_by_key(|(key, _)| *key);
        found.truncate(most as usize);
        Ok(found.into_iter().map(|(_, delivery)| delivery).collect())
    }
}
