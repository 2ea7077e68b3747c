//! Faults on the real thing: processes that are really killed and frozen, disks that are really full. What the records
//! say is held against what the nodes really did.

mod agent_dies;
mod disk_full;
mod random;
mod server_dies;
mod site;
