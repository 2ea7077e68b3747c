//! Owns frames: what a primary sends to a replica, one JSON document per line.

use downbeat_core::execution::Execution;
use downbeat_core::ids::LeaseToken;
use downbeat_core::portion::json_bytes;
use downbeat_core::{Event, Portion, Timestamp, limits};
use downbeat_store::{Kept, OutputChunk, Part, Seen, ServerRecord};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The version of the frames and their meaning. A replica follows only a primary of the same version.
pub(super) const VERSION: u32 = 1;

/// A frame applies to the copy as the frames before it left it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Frame {
    Hello {
        version: u32,
        server: String,
        output_max_bytes: u64,
        /// The primary's last event; absent from primaries of older releases.
        #[serde(default)]
        seq: Option<u64>,
        at: Timestamp,
    },
    /// The copy cannot be continued: a snapshot follows.
    Reset,
    Part(Part),
    /// Consecutive events, with all output of the executions that end in them.
    Changes {
        events: Vec<Event>,
        output: Vec<OutputChunk>,
    },
    Kept(Kept),
    Presence(Vec<Seen>),
    Servers(Vec<ServerRecord>),
    /// The primary's last event and its current time.
    Beat {
        seq: u64,
        at: Timestamp,
    },
}

impl Frame {
    pub(super) fn line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).expect("a frame is plain data");
        line.push(b'\n');
        line
    }
}

/// The events in one line.
const EVENTS: Portion = Portion::new(limits::EVENTS_AT_ONCE, limits::REPLICA_PART_BYTES);

/// Returns how many of the first events fit into one line: at least one.
pub(super) fn fitting(events: &[Event]) -> usize {
    EVENTS.fitting(events.iter().map(json_bytes))
}

/// Masks a lease token. Tokens never leave the server: the holder of a token may act for the execution. Equal
/// tokens have equal masks, so the guards of a copy work; a mask does not reveal its token.
fn mask(token: &mut LeaseToken) {
    *token = LeaseToken(Uuid::new_v5(&Uuid::NAMESPACE_OID, token.0.as_bytes()));
}

pub(super) fn mask_execution(execution: &mut Execution) {
    if let Some(lease) = execution.state.lease_mut() {
        mask(&mut lease.token);
    }
}

pub(super) fn mask_event(event: &mut Event) {
    event.change.tokens_mut().for_each(mask);
}

/// Distinguishes two events of the same number, in case the store was reset or replaced.
pub(super) fn fingerprint(event: &Event) -> String {
    let text = serde_json::to_vec(event).expect("an event is plain data");
    let hash = text.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use downbeat_core::Change;
    use downbeat_core::change::About;
    use downbeat_core::ids::ServerId;
    use downbeat_core::retention::StandingRule;

    use super::*;

    #[test]
    fn every_frame_is_one_line_that_reads_back() {
        let at = Timestamp::from_microsecond(1_800_000_000_000_123).unwrap();
        let event = Event {
            seq: 7,
            server: ServerId(uuid::Uuid::nil()),
            about: About { step: Some(2), ..About::default() },
            change: Change::RunCancelRequested { run: "a\nb".into(), by: "ada".to_owned(), at },
        };
        let frames = [
            Frame::Hello {
                version: VERSION,
                server: "one".to_owned(),
                output_max_bytes: 9,
                seq: Some(7),
                at,
            },
            Frame::Reset,
            Frame::Part(Part::Events(vec![event.clone()])),
            Frame::Part(Part::End { seq: 3 }),
            Frame::Changes { events: vec![event.clone()], output: Vec::new() },
            Frame::Kept(Kept {
                first_seq: Some(2),
                first_ended: Some((at, "run".into())),
                first_debug: Some((at, "debug".into())),
                first_deleted: Some(at),
                output_removed: Some((at, "run".into())),
                removed: Vec::new(),
                standing: Some(StandingRule { attempts: 10, before: at }),
            }),
            Frame::Presence(Vec::new()),
            Frame::Servers(Vec::new()),
            Frame::Beat { seq: 7, at },
        ];
        for frame in frames {
            let line = frame.line();
            assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
            assert_eq!(serde_json::from_slice::<Frame>(&line).unwrap(), frame);
        }
        let other = Event { server: ServerId(uuid::Uuid::max()), ..event.clone() };
        assert_ne!(fingerprint(&event), fingerprint(&other));
    }
}
