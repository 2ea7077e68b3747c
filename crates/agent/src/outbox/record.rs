//! Owns the format of a stored result: length, checksum, payload. Detects a record that a crash truncated.

use downbeat_proto::grpc::{finished_from_bytes, finished_to_bytes};
use downbeat_proto::message::Finished;

const HEADER_BYTES: usize = 8;
/// Far above any result (1 MiB of output): a larger length is a truncated or foreign header.
const MOST_BYTES: usize = 64 * 1024 * 1024;

pub(super) fn append(buffer: &mut Vec<u8>, finished: &Finished) {
    let payload = finished_to_bytes(finished.clone());
    let length = u32::try_from(payload.len()).expect("a result is bounded by the output it carries");
    buffer.extend_from_slice(&length.to_le_bytes());
    buffer.extend_from_slice(&crc32(&payload).to_le_bytes());
    buffer.extend_from_slice(&payload);
}

/// The bytes after the last readable record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    Nothing,
    /// This many bytes of a record whose writing was interrupted.
    Torn(usize),
    /// This many bytes that the agent never wrote like this.
    Damaged(usize),
}

/// Returns all records up to the first incomplete one.
pub(super) fn read(mut bytes: &[u8]) -> (Vec<Finished>, Rest) {
    let mut records = Vec::new();
    while let Some((finished, rest)) = first(bytes) {
        records.push(finished);
        bytes = rest;
    }
    (records, rest(bytes))
}

/// A crash leaves the beginning of a record, or zeros instead of its content.
fn rest(bytes: &[u8]) -> Rest {
    if bytes.is_empty() {
        return Rest::Nothing;
    }
    let length = bytes.first_chunk().map(|length| u32::from_le_bytes(*length) as usize);
    let is_cut_off = length.is_none_or(|length| {
        (1..=MOST_BYTES).contains(&length) && bytes.len() < HEADER_BYTES.saturating_add(length)
    });
    if is_cut_off || bytes.iter().all(|byte| *byte == 0) {
        Rest::Torn(bytes.len())
    } else {
        Rest::Damaged(bytes.len())
    }
}

fn first(bytes: &[u8]) -> Option<(Finished, &[u8])> {
    let (header, rest) = bytes.split_at_checked(HEADER_BYTES)?;
    let number = |at: usize| Some(u32::from_le_bytes(header.get(at..at + 4)?.try_into().ok()?));
    let length = usize::try_from(number(0)?).ok().filter(|length| (1..=MOST_BYTES).contains(length))?;
    let (payload, rest) = rest.split_at_checked(length)?;
    if crc32(payload) != number(4)? {
        return None;
    }
    Some((finished_from_bytes(payload).ok()?, rest))
}

/// CRC-32 (IEEE), as in gzip and Ethernet.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        let index = (crc ^ u32::from(*byte)) & 0xff;
        CRC_TABLE[index as usize] ^ (crc >> 8)
    })
}

const CRC_TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut crc = index as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
};

#[cfg(test)]
pub(super) mod tests;
