//! Owns the first bytes of a connection: they must arrive in time, and they distinguish HTTP/1 from HTTP/2.
//!
//! hyper has no time limit for them: a connection that sends nothing would stay open forever.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

/// Every HTTP/2 connection starts with these bytes.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How much a peer with the wrong protocol may still send before its connection is closed. Closing while
/// bytes are unread resets the connection, and the peer would lose the response.
const LEFT_OVER_BYTES: u64 = 64 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http2,
    /// Everything else. The HTTP/1 server responds to data that is not HTTP.
    Http1,
}

/// A connection whose first bytes were read; reading it starts with them again.
#[derive(Debug)]
pub(crate) struct Opened<S> {
    first: Bytes,
    stream: S,
}

/// Waits for the first bytes. Returns `None` if there were none in time, or the peer closed the connection.
pub(crate) async fn open<S: AsyncRead + Unpin>(
    mut stream: S,
    within: Duration,
) -> Option<(Protocol, Opened<S>)> {
    let read = async {
        let mut first = [0; PREFACE.len()];
        let mut length = 0;
        loop {
            match stream.read(&mut first[length..]).await {
                Ok(0) | Err(_) => return None,
                Ok(count) => length += count,
            }
            if first[..length] != PREFACE[..length] {
                return Some((Protocol::Http1, Bytes::copy_from_slice(&first[..length])));
            }
            if length == PREFACE.len() {
                return Some((Protocol::Http2, Bytes::from_static(PREFACE)));
            }
        }
    };
    let (protocol, first) = tokio::time::timeout(within, read).await.ok()??;
    Some((protocol, Opened { first, stream }))
}

/// Responds to a peer with the wrong protocol, and closes the connection.
pub(crate) async fn refuse<S>(mut stream: Opened<S>, answer: &[u8], within: Duration)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let goodbye = async {
        stream.write_all(answer).await?;
        stream.shutdown().await?;
        tokio::io::copy(&mut stream.take(LEFT_OVER_BYTES), &mut tokio::io::sink()).await
    };
    // The peer has disconnected or does not read: nothing more can be done.
    let _ = tokio::time::timeout(within, goodbye).await;
}

impl<S: AsyncRead + Unpin> AsyncRead for Opened<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.first.is_empty() {
            return Pin::new(&mut this.stream).poll_read(cx, buf);
        }
        let count = this.first.len().min(buf.remaining());
        buf.put_slice(&this.first[..count]);
        this.first.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Opened<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: Duration = Duration::from_secs(5);

    async fn opened(bytes: &[u8]) -> (Protocol, Vec<u8>) {
        let (mut peer, here) = tokio::io::duplex(1024);
        peer.write_all(bytes).await.unwrap();
        drop(peer);
        let (protocol, mut stream) = open(here, WITHIN).await.unwrap();
        let mut read = Vec::new();
        stream.read_to_end(&mut read).await.unwrap();
        (protocol, read)
    }

    #[tokio::test(start_paused = true)]
    async fn the_preface_is_http2_and_everything_else_http1_and_no_byte_is_lost() {
        let http2 = [PREFACE.as_slice(), b"\0\0\0\x04\0\0\0\0\0"].concat();
        assert_eq!(opened(&http2).await, (Protocol::Http2, http2));
        for text in
            ["GET / HTTP/1.1\r\n\r\n", "POST /runs HTTP/1.1\r\n\r\n", "PRI * HTTP/1.1\r\n\r\n", "\x16"]
        {
            assert_eq!(opened(text.as_bytes()).await, (Protocol::Http1, text.as_bytes().to_vec()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_preface_in_pieces_is_waited_for() {
        let (mut peer, here) = tokio::io::duplex(1);
        let send = async move {
            peer.write_all(PREFACE).await.unwrap();
            peer
        };
        let (opened, _peer) = tokio::join!(open(here, WITHIN), send);
        assert_eq!(opened.unwrap().0, Protocol::Http2);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_and_half_a_preface_are_not_waited_for_forever() {
        for bytes in [b"".as_slice(), b"PRI * HT"] {
            let (mut peer, here) = tokio::io::duplex(1024);
            peer.write_all(bytes).await.unwrap();
            assert!(open(here, WITHIN).await.is_none());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_peer_reads_the_answer_and_the_end() {
        let (mut peer, here) = tokio::io::duplex(1024);
        peer.write_all(b"POST / HTTP/1.1\r\n").await.unwrap();
        let (_, stream) = open(here, WITHIN).await.unwrap();
        let mut text = String::new();
        let (read, ()) = tokio::join!(peer.read_to_string(&mut text), refuse(stream, b"no", WITHIN));
        read.unwrap();
        assert_eq!(text, "no");
    }
}
