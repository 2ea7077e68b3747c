//! Owns the mapping between faults and gRPC codes.

use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

use crate::message::Fault;

/// The metadata key of a fault whose gRPC code is ambiguous.
const FAULT: &str = "downbeat-fault";
const OCCUPIED: &str = "occupied";
const NO_CLUSTER: &str = "no-cluster";

pub(crate) fn to_status(fault: Fault) -> Status {
    match fault {
        Fault::NotFound(text) => Status::not_found(text),
        Fault::Superseded(text) => Status::aborted(text),
        Fault::Unknown(text) => Status::failed_precondition(text),
        Fault::NoCluster(text) => marked(Status::not_found(text), NO_CLUSTER),
        Fault::Occupied(text) => marked(Status::resource_exhausted(text), OCCUPIED),
        Fault::Rejected(text) => Status::invalid_argument(text),
        Fault::Unavailable(text) => Status::unavailable(text),
        Fault::TimedOut(text) => Status::deadline_exceeded(text),
    }
}

fn marked(mut status: Status, mark: &'static str) -> Status {
    status.metadata_mut().insert(FAULT, MetadataValue::from_static(mark));
    status
}

fn is_marked(status: &Status, mark: &str) -> bool {
    status.metadata().get(FAULT).is_some_and(|value| value == mark)
}

/// Converts a fault to an error of a request's body, which becomes the response.
pub fn to_error(fault: Fault) -> Box<dyn std::error::Error + Send + Sync> {
    Box::new(to_status(fault))
}

/// Any other code may be temporary: a proxy, a timeout, a server that is stopping.
pub(crate) fn from_status(status: &Status) -> Fault {
    let text = status.message().to_owned();
    match status.code() {
        Code::NotFound if is_marked(status, NO_CLUSTER) => Fault::NoCluster(text),
        Code::NotFound => Fault::NotFound(text),
        Code::Aborted | Code::AlreadyExists => Fault::Superseded(text),
        Code::FailedPrecondition => Fault::Unknown(text),
        // HTTP/2 and proxies use the same code for too many requests, and `Occupied` makes an agent end its work.
        Code::ResourceExhausted if is_marked(status, OCCUPIED) => Fault::Occupied(text),
        Code::InvalidArgument | Code::OutOfRange => Fault::Rejected(text),
        Code::DeadlineExceeded => Fault::TimedOut(text),
        code => Fault::Unavailable(if text.is_empty() { code.to_string() } else { text }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_arrives_as_what_it_was() {
        let text = || "why".to_owned();
        for fault in [
            Fault::NotFound(text()),
            Fault::NoCluster(text()),
            Fault::Superseded(text()),
            Fault::Unknown(text()),
            Fault::Occupied(text()),
            Fault::Rejected(text()),
            Fault::Unavailable(text()),
            Fault::TimedOut(text()),
        ] {
            assert_eq!(from_status(&to_status(fault.clone())), fault);
        }
    }

    #[test]
    fn a_proxy_with_too_many_requests_is_not_another_agent() {
        assert!(matches!(from_status(&Status::resource_exhausted("slow down")), Fault::Unavailable(_)));
    }

    #[test]
    fn a_server_that_does_not_know_the_service_is_not_a_reason_to_end() {
        assert!(matches!(from_status(&Status::unimplemented("")), Fault::Unavailable(_)));
    }
}
