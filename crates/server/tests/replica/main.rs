//! Read replicas with real primaries: both return the same, whatever happens to either.

mod alike;
mod copies;
mod doors;
mod largest;
mod load;
mod site;
mod streams;
mod stuck;
