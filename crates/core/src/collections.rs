//! Owns maps and sets with the same order of iteration in every process, so that the same events lead to the same
//! decisions. Not for keys that strangers choose: such keys could be chosen so that their hashes collide.

use std::collections::hash_map::DefaultHasher;
use std::hash::BuildHasherDefault;

type Fixed = BuildHasherDefault<DefaultHasher>;

pub type HashMap<K, V> = std::collections::HashMap<K, V, Fixed>;
pub type HashSet<K> = std::collections::HashSet<K, Fixed>;
