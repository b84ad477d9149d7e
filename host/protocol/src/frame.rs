//! The stream from worker to host.
//!
//! A frame is one byte of tag, four bytes of length (big-endian) and that many bytes. Output travels while it is made,
//! so neither side ever holds a whole stream.

use crate::Verdict;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};

/// No frame but the verdict is longer; a worker cuts what it has to say.
pub const MAX_FRAME_BYTES: usize = 1024 * 1024;

/// A verdict can't be cut: it names every file and every artifact.
pub const MAX_VERDICT_BYTES: usize = 16 * 1024 * 1024;

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

fn limit(tag: u8) -> usize {
    if tag == VERDICT { MAX_VERDICT_BYTES } else { MAX_FRAME_BYTES }
}

/// Writes one frame; doesn't flush.
///
/// # Errors
/// What the writer answers; a frame above [`MAX_FRAME_BYTES`] (a verdict above [`MAX_VERDICT_BYTES`]) is `InvalidInput`,
/// and nothing of it was written.
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
    if length > limit(tag) {
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
    /// Where the next frame begins: taking many small frames out of one chunk must not move the rest each time.
    taken: usize,
    /// Room for one read, kept between reads.
    chunk: Vec<u8>,
}

const CHUNK: usize = 64 * 1024;

impl FrameReader {
    /// Gives it what arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.taken);
        self.taken = 0;
        self.buffer.extend_from_slice(bytes);
    }

    fn rest(&self) -> &[u8] {
        self.buffer.get(self.taken..).unwrap_or_default()
    }

    /// Whether nothing is left over; at the end of the stream anything else is a truncated frame.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rest().is_empty()
    }

    /// The next whole frame, or none until more arrives.
    ///
    /// # Errors
    /// [`FrameError::Malformed`]; the stream can't be used any further.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some(([tag, a, b, c, d], rest)) = self.rest().split_first_chunk::<5>() else { return Ok(None) };
        let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
        if length > limit(*tag) {
            return Err(FrameError::Malformed(format!("a frame of {length} bytes is above the limit")));
        }
        let Some(body) = rest.get(..length) else { return Ok(None) };
        let frame = parse(*tag, body)?;
        self.taken += 5 + length;
        Ok(Some(frame))
    }

    /// Reads frames from a blocking reader until one is whole; none at a clean end.
    ///
    /// # Errors
    /// See [`FrameError`].
    pub fn read_from(&mut self, from: &mut impl Read) -> Result<Option<Frame>, FrameError> {
        loop {
            if let Some(frame) = self.next_frame()? {
                return Ok(Some(frame));
            }
            let mut chunk = std::mem::take(&mut self.chunk);
            chunk.resize(CHUNK, 0);
            let read = from.read(&mut chunk);
            if let Ok(length) = &read {
                self.push(chunk.get(..*length).unwrap_or_default());
            }
            self.chunk = chunk;
            match read {
                Ok(0) if self.is_empty() => return Ok(None),
                Ok(0) => return Err(FrameError::Truncated),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::verdict;
    use proptest::prelude::*;

    fn bytes_of(frames: &[Frame]) -> Vec<u8> {
        let mut bytes = Vec::new();
        frames.iter().for_each(|frame| write_frame(&mut bytes, frame).unwrap());
        bytes
    }

    fn one_of_each() -> Vec<Frame> {
        vec![
            Frame::Begin { file: 0 },
            Frame::Output { file: u32::MAX, stream: Stream::Stdout, bytes: vec![0, 255, b'V'] },
            Frame::Output { file: 1, stream: Stream::Stderr, bytes: Vec::new() },
            Frame::Artifact { file: 2, suffix: "a/ä.txt".to_owned(), bytes: vec![7; 300] },
            Frame::Artifact { file: 2, suffix: String::new(), bytes: Vec::new() },
            Frame::Verdict(Box::new(verdict())),
        ]
    }

    fn read_all(mut from: impl Read) -> Result<Vec<Frame>, FrameError> {
        let mut reader = FrameReader::default();
        let mut frames = Vec::new();
        while let Some(frame) = reader.read_from(&mut from)? {
            frames.push(frame);
        }
        Ok(frames)
    }

    #[test]
    fn every_frame_comes_back_however_the_bytes_are_cut() {
        let frames = one_of_each();
        let bytes = bytes_of(&frames);
        for size in [1, 2, 5, 7, 64, bytes.len()] {
            let mut reader = FrameReader::default();
            let mut found = Vec::new();
            for chunk in bytes.chunks(size) {
                reader.push(chunk);
                while let Some(frame) = reader.next_frame().unwrap() {
                    found.push(frame);
                }
            }
            assert!(reader.is_empty());
            assert_eq!(found, frames);
        }
        assert_eq!(read_all(&bytes[..]).unwrap(), frames);
    }

    #[test]
    fn a_stream_cut_anywhere_but_between_frames_is_truncated() {
        let frames = one_of_each();
        let bytes = bytes_of(&frames);
        let mut between = vec![0];
        for frame in &frames {
            between.push(between.last().unwrap() + bytes_of(std::slice::from_ref(frame)).len());
        }
        for end in 0..bytes.len() {
            let read = read_all(&bytes[..end]);
            if let Some(whole) = between.iter().position(|&edge| edge == end) {
                assert_eq!(read.unwrap(), frames[..whole]);
            } else {
                assert!(matches!(read, Err(FrameError::Truncated)), "{end}");
            }
        }
    }

    #[test]
    fn a_hostile_length_is_refused_before_its_bytes_are_awaited() {
        for (tag, length) in [
            (BEGIN, MAX_FRAME_BYTES + 1),
            (STDOUT, MAX_FRAME_BYTES + 1),
            (ARTIFACT, u32::MAX as usize),
            (VERDICT, MAX_VERDICT_BYTES + 1),
            (0, MAX_VERDICT_BYTES),
        ] {
            let mut reader = FrameReader::default();
            reader.push(&[tag]);
            reader.push(&u32::try_from(length).unwrap().to_be_bytes());
            assert!(matches!(reader.next_frame(), Err(FrameError::Malformed(_))), "{tag} {length}");
        }
    }

    #[test]
    fn what_is_no_frame_is_malformed() {
        for (tag, body) in [
            (b'x', &b""[..]),
            (BEGIN, b""),
            (BEGIN, b"\0\0\0"),
            (BEGIN, b"\0\0\0\0more"),
            (STDOUT, b"\0\0\0"),
            (ARTIFACT, b"\0\0\0\0"),
            (ARTIFACT, b"\0\0\0\0\0"),
            (ARTIFACT, b"\0\0\0\0\0\x05name"),
            (ARTIFACT, b"\0\0\0\0\0\x01\xff"),
            (VERDICT, b""),
            (VERDICT, b"{}"),
            (VERDICT, b"null"),
        ] {
            let mut reader = FrameReader::default();
            reader.push(&[tag]);
            reader.push(&u32::try_from(body.len()).unwrap().to_be_bytes());
            reader.push(body);
            assert!(matches!(reader.next_frame(), Err(FrameError::Malformed(_))), "{tag} {body:?}");
        }
    }

    #[test]
    fn a_frame_at_the_limit_passes_and_one_above_writes_nothing() {
        let frame = |length| Frame::Output { file: 0, stream: Stream::Stdout, bytes: vec![1; length] };
        let fits = frame(MAX_FRAME_BYTES - 4);
        assert_eq!(read_all(&bytes_of(std::slice::from_ref(&fits))[..]).unwrap(), [fits]);
        let mut bytes = Vec::new();
        assert!(write_frame(&mut bytes, &frame(MAX_FRAME_BYTES - 3)).is_err());
        let long = Frame::Artifact { file: 0, suffix: "x".repeat(70_000), bytes: Vec::new() };
        assert!(write_frame(&mut bytes, &long).is_err());
        assert!(bytes.is_empty());
    }

    #[test]
    fn a_verdict_of_many_files_fits() {
        let mut verdict = verdict();
        let file = verdict.files[0].clone();
        verdict.files = vec![file; 4096];
        let frame = Frame::Verdict(Box::new(verdict));
        let bytes = bytes_of(std::slice::from_ref(&frame));
        assert!(bytes.len() > MAX_FRAME_BYTES);
        assert_eq!(read_all(&bytes[..]).unwrap(), [frame]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_frames_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200), size in 1..50_usize) {
            let mut reader = FrameReader::default();
            'all: for chunk in bytes.chunks(size) {
                reader.push(chunk);
                loop {
                    match reader.next_frame() {
                        Ok(Some(_)) => {}
                        Ok(None) => break,
                        Err(_) => break 'all,
                    }
                }
            }
        }

        #[test]
        fn any_frames_come_back(
            parts in proptest::collection::vec((any::<u32>(), ".{0,20}", proptest::collection::vec(any::<u8>(), 0..100), 0..4_u8), 0..20),
        ) {
            let frames: Vec<Frame> = parts
                .into_iter()
                .map(|(file, suffix, bytes, kind)| match kind {
                    0 => Frame::Begin { file },
                    1 => Frame::Output { file, stream: Stream::Stdout, bytes },
                    2 => Frame::Output { file, stream: Stream::Stderr, bytes },
                    _ => Frame::Artifact { file, suffix, bytes },
                })
                .collect();
            prop_assert_eq!(read_all(&bytes_of(&frames)[..]).unwrap(), frames);
        }
    }
}
