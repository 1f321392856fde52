//! A message on its way through SHA-256: whole blocks out of a tensor, then the padding.

use super::backend::{BLOCK_BYTES, INITIAL, State};
use super::lanes::Stream;
use crate::digest::{Algorithm, Digest};
use crate::reader::{Buffer, Bytes};
use crate::status::Result;

/// All bytes of a call that are gathered at once, on however many threads.
pub const MOST_GATHERED_BYTES: usize = 128 << 20;

/// Room for a partial block and its padding.
pub const EDGE_BYTES: usize = 2 * BLOCK_BYTES;

/// A message being hashed. Its whole blocks come from the tensor's own memory wherever they lie there side by side.
pub struct Message<'v> {
    /// What the caller knows it by.
    pub id: usize,
    /// The hash of the blocks taken so far.
    pub state: State,
    body: Bytes<'v>,
    /// Bytes of the body that may be gathered together.
    most_gathered: usize,
    /// The bytes before the body, if any, then the ones behind its last whole block with the padding.
    edge: [u8; EDGE_BYTES],
    /// Blocks of the edge that are ready.
    edge_ready: std::ops::Range<usize>,
    /// Gathered blocks that are ready.
    gathered: Buffer<'v>,
    gathered_ready: std::ops::Range<usize>,
    length: u64,
    is_padded: bool,
}

impl<'v> Message<'v> {
    /// The message `prefix` (at most one byte) followed by `body`, of which at most `most_gathered` are gathered together.
    pub fn new(id: usize, prefix: &[u8], body: Bytes<'v>, most_gathered: usize) -> Result<Self> {
        let mut message = Self {
            id,
            state: INITIAL,
            edge: [0; EDGE_BYTES],
            edge_ready: 0..0,
            gathered: Buffer::default(),
            gathered_ready: 0..0,
            length: prefix.len() as u64 + left(&body),
            body,
            most_gathered,
            is_padded: false,
        };
        if !prefix.is_empty() {
            message.start_with(prefix)?;
        }
        Ok(message)
    }

    /// Bytes that are still to be hashed, without the padding.
    pub fn left(&self) -> u64 {
        left(&self.body) + self.gathered_ready.len() as u64
    }

    /// Puts the message down: it gives back its buffer, and reads what was in it again when it is taken up.
    pub fn park(&mut self) {
        if let Bytes::Scattered(body) = &mut self.body {
            body.rewind(self.gathered_ready.len() as u64);
            self.gathered = Buffer::default();
            self.gathered_ready = 0..0;
        }
    }

    /// Takes the message up to hash its next `bytes`.
    pub fn take_up(&mut self, bytes: usize) -> Result<()> {
        match &mut self.body {
            Bytes::Contiguous(_) => Ok(()),
            Bytes::Scattered(body) => body.announce(bytes as u64),
        }
    }

    /// The digest of a message that is done.
    pub fn digest(&self) -> Digest {
        debug_assert!(self.is_done());
        digest_of(&self.state, Algorithm::Sha256)
    }

    /// Makes the first block of `prefix` and the body's first bytes, when together they fill one.
    fn start_with(&mut self, prefix: &[u8]) -> Result<()> {
        self.edge[..prefix.len()].copy_from_slice(prefix);
        if self.length < BLOCK_BYTES as u64 {
            return self.pad(prefix.len());
        }
        read(&mut self.body, &mut self.edge[prefix.len()..BLOCK_BYTES])?;
        self.edge_ready = 0..BLOCK_BYTES;
        Ok(())
    }

    /// Ends the message: `edge[..start]`, what is left of the body, and the padding.
    fn pad(&mut self, start: usize) -> Result<()> {
        let end = start + read(&mut self.body, &mut self.edge[start..BLOCK_BYTES])?;
        self.edge_ready = 0..pad(&mut self.edge, end, self.length);
        self.is_padded = true;
        Ok(())
    }
}

impl Stream for Message<'_> {
    fn state(&self) -> State {
        self.state
    }

    fn set_state(&mut self, state: State) {
        self.state = state;
    }

    /// Gathers more blocks, or makes the padded end, when none are ready.
    fn prepare(&mut self) -> Result<()> {
        if self.is_padded || !self.blocks().is_empty() {
            return Ok(());
        }
        if let Bytes::Scattered(body) = &mut self.body
            && body.left() >= BLOCK_BYTES as u64
        {
            body.gather(BLOCK_BYTES, self.most_gathered, &mut self.gathered)?;
            self.gathered_ready = 0..self.gathered.len();
            return Ok(());
        }
        self.gathered = Buffer::default();
        self.pad(0)
    }

    fn blocks(&self) -> &[u8] {
        if !self.edge_ready.is_empty() {
            return &self.edge[self.edge_ready.clone()];
        }
        match &self.body {
            Bytes::Contiguous(body) => &body[..whole(body.len())],
            Bytes::Scattered(_) => &self.gathered[self.gathered_ready.clone()],
        }
    }

    fn advance(&mut self, bytes: usize) {
        if !self.edge_ready.is_empty() {
            self.edge_ready.start += bytes;
        } else if let Bytes::Contiguous(body) = &mut self.body {
            *body = &body[bytes..];
        } else {
            self.gathered_ready.start += bytes;
        }
    }

    fn is_done(&self) -> bool {
        self.is_padded && self.edge_ready.is_empty()
    }
}

/// Pads a message of `length` bytes whose last ones are `edge[..end]`: a one bit, zeros, and the length in bits (FIPS 180-4
/// section 5.1.1). Gives how many bytes of `edge` are blocks now.
pub fn pad(edge: &mut [u8; EDGE_BYTES], end: usize, length: u64) -> usize {
    let blocks = (end + 1 + size_of::<u64>()).div_ceil(BLOCK_BYTES);
    let padded = blocks * BLOCK_BYTES;
    edge[end..padded].fill(0);
    edge[end] = 0x80;
    // A tensor has less than 2^63 bytes; the standard counts bits modulo 2^64 anyway.
    edge[padded - size_of::<u64>()..padded].copy_from_slice(&length.wrapping_mul(8).to_be_bytes());
    padded
}

/// The digest that a state stands for.
pub fn digest_of(state: &State, algorithm: Algorithm) -> Digest {
    let mut bytes = [0; Digest::BYTES];
    for (bytes, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(state) {
        *bytes = word.to_be_bytes();
    }
    Digest::new(algorithm, bytes)
}

fn whole(bytes: usize) -> usize {
    bytes / BLOCK_BYTES * BLOCK_BYTES
}

fn left(body: &Bytes<'_>) -> u64 {
    match body {
        Bytes::Contiguous(body) => body.len() as u64,
        Bytes::Scattered(body) => body.left(),
    }
}

fn read(body: &mut Bytes<'_>, out: &mut [u8]) -> Result<usize> {
    match body {
        Bytes::Contiguous(body) => {
            let (head, rest) = body.split_at(out.len().min(body.len()));
            out[..head.len()].copy_from_slice(head);
            *body = rest;
            Ok(head.len())
        }
        Bytes::Scattered(body) => body.read(out),
    }
}
