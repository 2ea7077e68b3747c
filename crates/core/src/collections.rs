//! Owns maps and sets whose order of iteration is the same in every process: for what is walked through, so that the
//! same events lead to the same decisions. Not for keys that strangers choose: their hashes could be made to collide.

use std::collections::hash_map::DefaultHasher;
use std::hash::BuildHasherDefault;

type Fixed = BuildHasherDefault<DefaultHasher>;

pub type HashMap<K, V> = std::collections::HashMap<K, V, Fixed>;
pub type HashSet<K> = std::collections::HashSet<K, Fixed>;
