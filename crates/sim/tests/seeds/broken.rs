//! What is broken on purpose is found, by the checker that is meant for it.
