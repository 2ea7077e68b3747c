//! Read replicas against real primaries: the same answers, whatever happens to either.

mod alike;
mod copies;
mod doors;
mod load;
mod site;
mod streams;
