//! The bytes of one connection, watched.

use super::refusal::Refusal;
use super::seats::{End, Seated};
use axum::body::Body;
use http_body::{Frame, SizeHint};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// A connection whose place is told what it does, and that ends when its place says so.
pub(super) struct Wire {
    stream: TcpStream,
    seated: Seated,
    /// Something came since the last answer: who sent it is told why the connection ends.
    heard: bool,
    /// Nothing was answered yet: who has to make room is told so, since a request may be on its way.
    first: bool,
    /// The client doesn't take in what is sent.
    stalled: bool,
}

impl Wire {
    pub(super) fn new(stream: TcpStream, seated: Seated) -> Self {
        Self { stream, seated, heard: false, first: true, stalled: false }
    }

    /// Looks, to whoever reads, as if the client had gone.
    fn end(&mut self, end: End) -> Poll<io::Result<()>> {
        // A client that stalls has an answer half sent; else no request is in hand and everything that was to be sent is
        // sent, so this is in nobody's way. One that can't be sent at once isn't worth waiting for.
        let heard = std::mem::take(&mut self.heard) || (self.first && end == End::Crowded);
        if heard && end != End::Stalled {
            let _ = self.stream.try_write(&Refusal::of(end, &self.seated.seats.figures).bytes());
        }
        Poll::Ready(Ok(()))
    }

    fn write<T>(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut TcpStream>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let written = write(Pin::new(&mut self.stream), cx);
        if written.is_pending() {
            if !self.stalled {
                self.stalled = true;
                self.seated.seat.takes(false);
            }
            self.seated.seat.wait(cx.waker());
            if self.seated.seat.ended() == Some(End::Stalled) {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        } else if self.stalled {
            self.stalled = false;
            self.seated.seat.takes(true);
        }
        written
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if let Some(end) = self.seated.seat.ended() {
            return self.end(end);
        }
        let before = buf.filled().len();
        match Pin::new(&mut self.stream).poll_read(cx, buf) {
            Poll::Pending => {
                self.seated.seat.wait(cx.waker());
                // Once more, since it may have been ended before there was somebody to wake.
                match self.seated.seat.ended() {
                    Some(end) => self.end(end),
                    None => Poll::Pending,
                }
            }
            ready => {
                if buf.filled().len() > before {
                    self.heard = true;
                    self.seated.seat.received();
                }
                ready
            }
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.write(cx, |stream, cx| stream.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(cx, |stream, cx| stream.poll_write_vectored(cx, pieces))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Asked for when everything is written.
        if self.seated.seat.sent() {
            self.heard = false;
            self.first = false;
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// An answer's body; the connection isn't free before it is over.
pub(super) struct Answering {
    body: Body,
    seat: Arc<super::seats::Seat>,
}

impl Answering {
    pub(super) fn new(body: Body, seat: Arc<super::seats::Seat>) -> Self {
        Self { body, seat }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.seat.answered();
    }
}

impl http_body::Body for Answering {
    type Data = bytes::Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        http_body::Body::is_end_stream(&self.body)
    }

    fn size_hint(&self) -> SizeHint {
        http_body::Body::size_hint(&self.body)
    }
}
