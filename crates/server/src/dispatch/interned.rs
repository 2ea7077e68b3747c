//! Owns values that are found by a text and referred to by a number. A value is removed with its last user.

use std::collections::HashMap;
use std::sync::Arc;

/// `take_unused` does nothing until this many values are unused.
const UNUSED: usize = 1_024;

#[derive(Debug)]
pub(super) struct Interned<T> {
    slots: Vec<Option<Slot<T>>>,
    by_text: HashMap<Arc<str>, u32>,
    vacant: Vec<u32>,
    unused: usize,
}

#[derive(Debug)]
struct Slot<T> {
    value: T,
    text: Arc<str>,
    users: usize,
}

impl<T> Default for Interned<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), by_text: HashMap::new(), vacant: Vec::new(), unused: 0 }
    }
}

impl<T> Interned<T> {
    pub(super) fn find(&self, text: &str) -> Option<u32> {
        self.by_text.get(text).copied()
    }

    /// Adds a value that has no user yet.
    pub(super) fn add(&mut self, text: &str, value: T) -> u32 {
        let text: Arc<str> = text.into();
        let slot = Some(Slot { value, text: Arc::clone(&text), users: 0 });
        let index = match self.vacant.pop() {
            Some(index) => {
                self.slots[index as usize] = slot;
                index
            }
            None => {
                self.slots.push(slot);
                u32::try_from(self.slots.len() - 1).expect("they are bounded by what is open")
            }
        };
        self.by_text.insert(text, index);
        self.unused += 1;
        index
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().flatten().map(|slot| &slot.value)
    }

    pub(super) fn get(&self, index: u32) -> &T {
        &self.slots[index as usize].as_ref().expect("it lives while something is of it").value
    }

    pub(super) fn get_mut(&mut self, index: u32) -> &mut T {
        &mut self.slots[index as usize].as_mut().expect("it lives while something is of it").value
    }

    pub(super) fn retain(&mut self, index: u32) {
        if let Some(slot) = &mut self.slots[index as usize] {
            self.unused -= usize::from(slot.users == 0);
            slot.users += 1;
        }
    }

    /// Counts one user less. Returns the value if that was the last one.
    pub(super) fn release(&mut self, index: u32) -> Option<T> {
        let slot = self.slots[index as usize].as_mut()?;
        slot.users -= 1;
        if slot.users > 0 {
            return None;
        }
        self.unused += 1;
        self.remove(index)
    }

    /// Removes and returns the values that were added for commits that did not happen, once there are many.
    pub(super) fn take_unused(&mut self) -> Vec<T> {
        if self.unused < UNUSED {
            return Vec::new();
        }
        let unused = |(index, slot): (usize, &Option<Slot<T>>)| {
            let is_unused = slot.as_ref().is_some_and(|slot| slot.users == 0);
            is_unused.then(|| u32::try_from(index).expect("they are bounded by what is open"))
        };
        let unused: Vec<u32> = self.slots.iter().enumerate().filter_map(unused).collect();
        unused.into_iter().filter_map(|index| self.remove(index)).collect()
    }

    pub(super) fn indexes(&self) -> Vec<u32> {
        self.by_text.values().copied().collect()
    }

    fn remove(&mut self, index: u32) -> Option<T> {
        let slot = self.slots[index as usize].take()?;
        self.by_text.remove(&slot.text);
        self.vacant.push(index);
        self.unused -= 1;
        Some(slot.value)
    }
}
