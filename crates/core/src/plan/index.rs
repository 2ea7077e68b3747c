//! Owns the indexes of a plan: one type for each kind, so that the compiler keeps them apart. They are stored and sent
//! as plain numbers.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::compiled::{Pass, PlanEntry, Step};
use super::resolved::NodeRef;
use crate::spec::Entry;

macro_rules! indexes {
    ($($(#[$doc:meta])* $name:ident,)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl $name {
            pub fn new(index: usize) -> Self {
                Self(u32::try_from(index).expect("plans are bounded far below 2^32"))
            }

            pub fn get(self) -> usize {
                self.0 as usize
            }

            /// Returns the first `count` indexes.
            pub fn first(count: u32) -> impl ExactSizeIterator<Item = Self> + Clone {
                Self::within(0..count)
            }

            pub fn within(range: Range<u32>) -> impl ExactSizeIterator<Item = Self> + Clone {
                range.map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

/// Lets a `Vec` of one type be indexed by the index that belongs to it.
macro_rules! indexed_by {
    ($($index:ident: $of:ty),* $(,)?) => {$(
        impl std::ops::Index<$index> for Vec<$of> {
            type Output = $of;
            fn index(&self, index: $index) -> &$of {
                &self[index.get()]
            }
        }

        impl std::ops::IndexMut<$index> for Vec<$of> {
            fn index_mut(&mut self, index: $index) -> &mut $of {
                &mut self[index.get()]
            }
        }
    )*};
}
pub(crate) use indexed_by;

indexes! {
    /// A leaf of the definition, depth first from 0.
    StepIx,
    /// A top-level task.
    EntryIx,
    /// One round of an entry over its nodes.
    PassIx,
    /// The progress of one node, or one item, through the leaves of a pass.
    WalkIx,
    /// A node of `Resolved::nodes`.
    NodeIx,
    /// A set of nodes of `Resolved::sets`.
    SetIx,
    /// An item of a `for_each`.
    ItemIx,
}

indexed_by! {
    StepIx: Step,
    EntryIx: PlanEntry,
    EntryIx: Entry,
    PassIx: Pass,
    NodeIx: NodeRef,
    SetIx: Vec<NodeIx>,
}
