//! A whole cluster on one thread: clock, network, disks, crashes; checkers; seeds.
