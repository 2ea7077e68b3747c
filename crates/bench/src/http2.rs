//! Owns a gRPC connection with the least that HTTP/2 allows: no tasks, no queues, one write for everything that is sent
//! at once. Thousands of simulated nodes share the cores with the server that they measure.
//!
//! It relies on small messages: nodes never have more in flight than a window allows, so windows are not counted.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEAD: usize = 9;
/// Precedes each message: a byte for "not compressed", and its length.
const MESSAGE_HEAD: usize = 5;
/// Messages of nodes are smaller than the largest frame that every HTTP/2 peer accepts.
const FRAME_MOST: usize = 16_384;
const READ: usize = 512;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

/// The receive window of the connection: more than any bench receives, so it is never updated.
const WINDOW: u32 = 0x7fff_ffff - 65_535;

/// HPACK: indexes in the static table, and the first index of the dynamic table.
const METHOD_POST: u8 = 3;
const SCHEME_HTTP: u8 = 6;
const AUTHORITY: u8 = 1;
const PATH: u8 = 4;
const CONTENT_TYPE: u8 = 31;
const NEW_NAME: u8 = 0;
const FIRST_DYNAMIC: usize = 62;

/// The kinds of call of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Hello,
    Register,
    Heartbeat,
    Poll,
    Report,
}

impl Kind {
    /// Returns the path that it is posted to.
    pub(super) fn path(self) -> &'static str {
        match self {
            Kind::Hello => "/downbeat.agent.v1.Agent/Hello",
            Kind::Register => "/downbeat.agent.v1.Agent/Register",
            Kind::Heartbeat => "/downbeat.agent.v1.Agent/Heartbeat",
            Kind::Poll => "/downbeat.agent.v1.Agent/Poll",
            Kind::Report => "/downbeat.agent.v1.Agent/Report",
        }
    }
}

/// A connection to a server.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    authority: String,
    inbound: Vec<u8>,
    outbound: Vec<u8>,
    /// The number of the next request.
    next: u32,
    open: Vec<Open>,
    sent: SentFields,
}

/// A request whose response is not complete.
#[derive(Debug)]
struct Open {
    number: u32,
    kind: Kind,
    message: Vec<u8>,
}

/// The header fields in the peer's dynamic table, in the order in which they were sent: afterwards only their indexes
/// are sent.
#[derive(Debug, Default)]
struct SentFields(Vec<Field>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Path(Kind),
    Authority,
    ContentType,
    Trailers,
}

impl Connection {
    pub(super) async fn open(address: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let mut outbound = PREFACE.to_vec();
        frame(&mut outbound, SETTINGS, 0, 0, &[]);
        frame(&mut outbound, WINDOW_UPDATE, 0, 0, &WINDOW.to_be_bytes());
        Ok(Self {
            stream,
            authority: address.to_owned(),
            inbound: Vec::new(),
            outbound,
            next: 1,
            open: Vec::new(),
            sent: SentFields::default(),
        })
    }

    /// Adds a request to the next write.
    pub(super) fn say(&mut self, kind: Kind, message: &[u8]) -> io::Result<()> {
        if MESSAGE_HEAD + message.len() > FRAME_MOST {
            return Err(io::Error::other("a message is longer than a frame"));
        }
        let number = self.next;
        self.next += 2;
        let mut fields = Vec::with_capacity(160);
        self.sent.write(&mut fields, kind, &self.authority);
        frame(&mut self.outbound, HEADERS, END_HEADERS, number, &fields);
        let length = MESSAGE_HEAD + message.len();
        frame_head(&mut self.outbound, length, DATA, END_STREAM, number);
        self.outbound.push(0);
        self.outbound.extend(u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
        self.outbound.extend(message);
        self.open.push(Open { number, kind, message: Vec::new() });
        Ok(())
    }

    pub(super) async fn send(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.outbound).await?;
        self.outbound.clear();
        Ok(())
    }

    /// Returns the next response, of any request. Received bytes are kept if the call is dropped.
    pub(super) async fn receive(&mut self) -> io::Result<(Kind, Vec<u8>)> {
        loop {
            let answer = self.take_frames();
            if !self.outbound.is_empty() {
                // Small and rare: the kernel accepts it at once.
                self.stream.try_write(&self.outbound)?;
                self.outbound.clear();
            }
            if let Some(answer) = answer? {
                return Ok(answer);
            }
            self.inbound.reserve(READ);
            if self.stream.read_buf(&mut self.inbound).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Reads complete frames until one completes a response.
    fn take_frames(&mut self) -> io::Result<Option<(Kind, Vec<u8>)>> {
        let inbound = std::mem::take(&mut self.inbound);
        let mut rest = &inbound[..];
        let mut answer = Ok(None);
        while let Some(length) = whole_frame(rest) {
            let (frame, next) = rest.split_at(length);
            rest = next;
            answer = self.take(frame);
            if !matches!(answer, Ok(None)) {
                break;
            }
        }
        let taken = inbound.len() - rest.len();
        self.inbound = inbound;
        self.inbound.drain(..taken);
        answer
    }

    fn take(&mut self, frame: &[u8]) -> io::Result<Option<(Kind, Vec<u8>)>> {
        let (kind, flags, body) = (frame[3], frame[4], &frame[FRAME_HEAD..]);
        let number = u32::from_be_bytes([frame[5], frame[6], frame[7], frame[8]]);
        match kind {
            DATA if flags & PADDED != 0 => return Err(io::Error::other("a padded frame")),
            DATA => {
                if let Some(open) = self.open.iter_mut().find(|open| open.number == number) {
                    open.message.extend(body);
                }
            }
            SETTINGS if flags & ACK == 0 => self::frame(&mut self.outbound, SETTINGS, ACK, 0, &[]),
            PING if flags & ACK == 0 => self::frame(&mut self.outbound, PING, ACK, 0, body),
            RESET | GOAWAY => return Err(io::ErrorKind::ConnectionReset.into()),
            _ => {}
        }
        if !matches!(kind, DATA | HEADERS) || flags & END_STREAM == 0 {
            return Ok(None);
        }
        let Some(place) = self.open.iter().position(|open| open.number == number) else { return Ok(None) };
        let Open { kind, mut message, .. } = self.open.swap_remove(place);
        if message.len() < MESSAGE_HEAD {
            // An error has a status and no message.
            return Err(io::Error::other(format!("{} was refused", kind.path())));
        }
        message.drain(..MESSAGE_HEAD);
        Ok(Some((kind, message)))
    }
}

/// Returns the length of the first frame, if it is complete.
fn whole_frame(bytes: &[u8]) -> Option<usize> {
    let head = bytes.get(..FRAME_HEAD)?;
    let length = FRAME_HEAD + u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
    (bytes.len() >= length).then_some(length)
}

fn frame_head(out: &mut Vec<u8>, length: usize, kind: u8, flags: u8, number: u32) {
    let length = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    out.extend(&length[1..]);
    out.extend([kind, flags]);
    out.extend(number.to_be_bytes());
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, number: u32, body: &[u8]) {
    frame_head(out, body.len(), kind, flags, number);
    out.extend(body);
}

impl SentFields {
    /// Writes the header fields of a request.
    fn write(&mut self, out: &mut Vec<u8>, kind: Kind, authority: &str) {
        out.extend([0x80 | METHOD_POST, 0x80 | SCHEME_HTTP]);
        self.field(out, Field::Path(kind), PATH, "", kind.path());
        self.field(out, Field::Authority, AUTHORITY, "", authority);
        self.field(out, Field::ContentType, CONTENT_TYPE, "", "application/grpc");
        self.field(out, Field::Trailers, NEW_NAME, "te", "trailers");
    }

    fn field(&mut self, out: &mut Vec<u8>, field: Field, name_at: u8, name: &str, value: &str) {
        if let Some(place) = self.0.iter().rev().position(|sent| *sent == field) {
            // The last field has the first index.
            out.push(0x80 | u8::try_from(FIRST_DYNAMIC + place).expect("there are few fields"));
            return;
        }
        out.push(0x40 | name_at);
        for text in [name, value].into_iter().filter(|text| !text.is_empty()) {
            let length = u8::try_from(text.len()).ok().filter(|length| *length < 127);
            out.push(length.expect("paths and addresses are short"));
            out.extend(text.as_bytes());
        }
        self.0.push(field);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_before_is_said_by_its_place() {
        let (mut sent, mut first, mut again, mut other) = (SentFields::default(), vec![], vec![], vec![]);
        sent.write(&mut first, Kind::Poll, "h:1");
        sent.write(&mut again, Kind::Poll, "h:1");
        sent.write(&mut other, Kind::Report, "h:1");
        assert_eq!(first[..3], [0x83, 0x86, 0x44]);
        assert_eq!(again, [0x83, 0x86, 0x80 | 65, 0x80 | 64, 0x80 | 63, 0x80 | 62]);
        // A new path comes before the others in the table.
        assert_eq!(other[other.len() - 3..], [0x80 | 65, 0x80 | 64, 0x80 | 63]);
    }

    #[test]
    fn a_frame_is_taken_when_all_of_it_is_there() {
        let mut bytes = Vec::new();
        frame(&mut bytes, DATA, END_STREAM, 7, b"abc");
        assert_eq!(bytes, [0, 0, 3, 0, 1, 0, 0, 0, 7, b'a', b'b', b'c']);
        assert_eq!(whole_frame(&bytes), Some(12));
        assert_eq!(whole_frame(&bytes[..11]), None);
        assert_eq!(whole_frame(&bytes[..4]), None);
    }
}
