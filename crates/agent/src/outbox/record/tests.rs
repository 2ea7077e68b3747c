//! The format of a stored result.

use downbeat_core::execution::{Outcome, Verdict};
use downbeat_core::ids::{ExecutionId, LeaseToken, RunId};
use downbeat_core::work::Parent;
use downbeat_proto::message::LeaseRef;
use jiff::Timestamp;
use uuid::Uuid;

use super::*;

pub(in crate::outbox) fn result(number: u128) -> Finished {
    Finished {
        held: LeaseRef {
            execution: ExecutionId(Uuid::from_u128(number)),
            token: LeaseToken(Uuid::from_u128(number)),
        },
        of: Parent::Run(RunId::from("run")),
        outcome: Outcome {
            verdict: Verdict::Failed,
            exit_code: Some(3),
            error: Some("why".to_owned()),
            started_at: Timestamp::UNIX_EPOCH,
            finished_at: Timestamp::UNIX_EPOCH,
            outputs: Default::default(),
            received_at: None,
        },
        output: Vec::new(),
    }
}

#[test]
fn the_checksum_is_the_common_one() {
    assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
}

#[test]
fn a_tail_torn_at_any_byte_costs_only_the_last_record() {
    let mut bytes = Vec::new();
    append(&mut bytes, &result(1));
    let whole = bytes.len();
    append(&mut bytes, &result(2));
    for cut in whole..bytes.len() {
        let rest = if cut == whole { Rest::Nothing } else { Rest::Torn(cut - whole) };
        assert_eq!(read(&bytes[..cut]), (vec![result(1)], rest), "cut at {cut}");
    }
    assert_eq!(read(&bytes), (vec![result(1), result(2)], Rest::Nothing));
    bytes.truncate(whole);
    bytes.extend([0; 100]);
    assert_eq!(read(&bytes), (vec![result(1)], Rest::Torn(100)), "space that was never written");
}

#[test]
fn a_flipped_bit_is_noticed() {
    let mut bytes = Vec::new();
    append(&mut bytes, &result(1));
    for at in 0..bytes.len() {
        let mut broken = bytes.clone();
        broken[at] ^= 1;
        let (records, rest) = read(&broken);
        assert_eq!(records, vec![], "byte {at}");
        // Only a wrong length may look like an interrupted write.
        assert!(rest == Rest::Damaged(bytes.len()) || at < 4, "byte {at}: {rest:?}");
    }
}

#[test]
fn outputs_of_a_task_are_kept() {
    let mut finished = result(1);
    finished.outcome.outputs = [("version".to_owned(), serde_json::json!("1.2"))].into();
    let mut bytes = Vec::new();
    append(&mut bytes, &finished);
    assert_eq!(read(&bytes), (vec![finished], Rest::Nothing));
}

#[test]
fn a_record_of_a_release_without_outputs_is_read() {
    // As the previous release wrote `result(1)`.
    let payload = "0a10000000000000000000000000000000011210000000000000000000000000000000011a0372756e20022803\
                   3203776879";
    let payload: Vec<u8> = (0..payload.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&payload[at..at + 2], 16).unwrap())
        .collect();
    let mut bytes = u32::try_from(payload.len()).unwrap().to_le_bytes().to_vec();
    bytes.extend_from_slice(&crc32(&payload).to_le_bytes());
    bytes.extend_from_slice(&payload);
    assert_eq!(read(&bytes), (vec![result(1)], Rest::Nothing));
    let mut written = Vec::new();
    append(&mut written, &result(1));
    assert_eq!(written, bytes, "a result without outputs is written as before");
}
