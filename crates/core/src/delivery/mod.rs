//! Owns deliveries: messages about runs to services and people outside. A delivery is queued with a run's decision, sent
//! by any server, and tried again until it is accepted, refused, or was tried often enough.

mod message;
mod next;
mod record;
mod sign;

pub use message::{Facts, build};
pub use next::{Attempted, Next, TRIES, next};
pub use record::{Delivery, DeliveryState, DeliveryStatus, LastTry, Message};
pub use sign::signature;
