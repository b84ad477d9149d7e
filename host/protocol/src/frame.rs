//! The stream from worker to host.
//!
//! A frame is one byte of tag, four bytes of length (big-endian) and that many bytes. Output travels while it is made,
//! so neither side ever holds a whole stream.

use crate::Verdict;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};

/// No frame is longer; a worker cuts what it has to say.
pub const MAX_FRAME_BYTES: usize = 1024 * 1024;

/// Which of a file's two streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The file with this index begins.
    Begin {
        /// Index into the command's files.
        file: u32,
    },
    /// Bytes of a stream, in order.
    Output {
        /// Index into the command's files.
        file: u32,
        /// Which stream.
        stream: Stream,
        /// At most [`MAX_FRAME_BYTES`] less the header's five.
        bytes: Vec<u8>,
    },
    /// Bytes of an artifact, in order; an artifact's frames are never mixed with another's.
    Artifact {
        /// Index into the command's files.
        file: u32,
        /// Its path under the artifact directory.
        suffix: String,
        /// Some of its bytes.
        bytes: Vec<u8>,
    },
    /// The end. Nothing may follow.
    Verdict(Box<Verdict>),
}

/// Why the stream isn't what a worker sends.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The carrier failed.
    #[error("the stream from the worker: {0}")]
    Io(#[from] io::Error),
    /// It ended inside a frame.
    #[error("the stream from the worker ended in the middle of a frame")]
    Truncated,
    /// An unknown tag, a length beyond the limit, a field that doesn't parse.
    #[error("the stream from the worker is no frame: {0}")]
    Malformed(String),
}

const BEGIN: u8 = b'B';
const STDOUT: u8 = b'O';
const STDERR: u8 = b'E';
const ARTIFACT: u8 = b'A';
const VERDICT: u8 = b'V';

/// Writes one frame; doesn't flush.
///
/// # Errors
/// What the writer answers; a frame above [`MAX_FRAME_BYTES`] is `InvalidInput`.
pub fn write_frame(mut to: impl Write, frame: &Frame) -> io::Result<()> {
    match frame {
        Frame::Begin { file } => write_parts(&mut to, BEGIN, [&file.to_be_bytes(), &[], &[]]),
        Frame::Output { file, stream, bytes } => {
            let tag = if *stream == Stream::Stdout { STDOUT } else { STDERR };
            write_parts(&mut to, tag, [&file.to_be_bytes(), bytes, &[]])
        }
        Frame::Artifact { file, suffix, bytes } => {
            let length = u16::try_from(suffix.len())
                .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "an artifact's name is too long"))?;
            let mut head = file.to_be_bytes().to_vec();
            head.extend_from_slice(&length.to_be_bytes());
            write_parts(&mut to, ARTIFACT, [&head, suffix.as_bytes(), bytes])
        }
        Frame::Verdict(verdict) => write_parts(&mut to, VERDICT, [&serde_json::to_vec(verdict)?, &[], &[]]),
    }
}

fn write_parts(to: &mut impl Write, tag: u8, parts: [&[u8]; 3]) -> io::Result<()> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let too_long = || io::Error::new(io::ErrorKind::InvalidInput, format!("a frame of {length} bytes is too long"));
    if length > MAX_FRAME_BYTES {
        return Err(too_long());
    }
    let mut head = [tag, 0, 0, 0, 0];
    let (_, size) = head.split_at_mut(1);
    size.copy_from_slice(&u32::try_from(length).map_err(|_| too_long())?.to_be_bytes());
    to.write_all(&head)?;
    parts.iter().try_for_each(|part| to.write_all(part))
}

/// Takes frames out of bytes as they arrive.
#[derive(Debug, Default)]
pub struct FrameReader {
    buffer: Vec<u8>,
}

impl FrameReader {
    /// Gives it what arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Whether nothing is left over; at the end of the stream anything else is a truncated frame.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// The next whole frame, or none until more arrives.
    ///
    /// # Errors
    /// [`FrameError::Malformed`]; the stream can't be used any further.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some(([tag, a, b, c, d], rest)) = self.buffer.split_first_chunk::<5>() else { return Ok(None) };
        let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
        if length > MAX_FRAME_BYTES {
            return Err(FrameError::Malformed(format!("a frame of {length} bytes is above the limit")));
        }
        let Some(body) = rest.get(..length) else { return Ok(None) };
        let frame = parse(*tag, body)?;
        self.buffer.drain(..5 + length);
        Ok(Some(frame))
    }

    /// Reads frames from a blocking reader until one is whole; none at a clean end.
    ///
    /// # Errors
    /// See [`FrameError`].
    pub fn read_from(&mut self, from: &mut impl Read) -> Result<Option<Frame>, FrameError> {
        let mut chunk = vec![0; 64 * 1024];
        loop {
            if let Some(frame) = self.next_frame()? {
                return Ok(Some(frame));
            }
            match from.read(&mut chunk)? {
                0 if self.is_empty() => return Ok(None),
                0 => return Err(FrameError::Truncated),
                n => self.push(chunk.get(..n).unwrap_or_default()),
            }
        }
    }
}

fn parse(tag: u8, body: &[u8]) -> Result<Frame, FrameError> {
    let malformed = |what: &str| FrameError::Malformed(what.to_owned());
    if tag == VERDICT {
        return serde_json::from_slice(body)
            .map(|verdict| Frame::Verdict(Box::new(verdict)))
            .map_err(|error| FrameError::Malformed(format!("verdict: {error}")));
    }
    let (file, rest) = body.split_first_chunk::<4>().ok_or_else(|| malformed("no file index"))?;
    let file = u32::from_be_bytes(*file);
    match tag {
        BEGIN if rest.is_empty() => Ok(Frame::Begin { file }),
        STDOUT => Ok(Frame::Output { file, stream: Stream::Stdout, bytes: rest.to_vec() }),
        STDERR => Ok(Frame::Output { file, stream: Stream::Stderr, bytes: rest.to_vec() }),
        ARTIFACT => {
            let (length, rest) = rest.split_first_chunk::<2>().ok_or_else(|| malformed("no name length"))?;
            let length = usize::from(u16::from_be_bytes(*length));
            let (suffix, bytes) = rest.split_at_checked(length).ok_or_else(|| malformed("name beyond the frame"))?;
            let suffix = std::str::from_utf8(suffix).map_err(|_| malformed("a name that isn't UTF-8"))?;
            Ok(Frame::Artifact { file, suffix: suffix.to_owned(), bytes: bytes.to_vec() })
        }
        other => Err(FrameError::Malformed(format!("unknown tag {other:#04x}"))),
    }
}
