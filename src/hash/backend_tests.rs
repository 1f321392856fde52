//! What every backend must pass. Portable is compared with the `sha2` crate and NIST's examples, all others with portable.
#![allow(unsafe_code)]

use std::array;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use sha2::{Digest as _, Sha256};

use super::backend::{BLOCK_BYTES, Backend, INITIAL, State, available};
use super::portable::Portable;

/// Checks a backend, or says that this processor lacks it: see [`expected_backends_are_present`].
pub(super) fn check_backend(name: &str, backend: Option<impl Backend>) {
    let Some(backend) = backend else {
        eprintln!("SKIPPED: this processor lacks the backend {name}");
        return;
    };
    check_every_shape(&backend);
    check_page_ends(&backend);
    check_published_examples(&backend);
    check_refusals(&backend);
}

/// The variable `WC_EXPECT` lists, with commas, the backends whose absence is a failure.
#[test]
fn expected_backends_are_present() {
    let names: Vec<_> = available().iter().map(|backend| backend.name()).collect();
    let expected = std::env::var("WC_EXPECT").unwrap_or_default();
    eprintln!("backends of this processor: {names:?}; expected by WC_EXPECT: '{expected}'");
    for name in expected.split(',').filter(|name| !name.is_empty()) {
        assert!(names.contains(&name), "WC_EXPECT has '{name}', but this processor has {names:?} only");
    }
}

/// Digests of messages that the `sha2` crate pads and splits by itself.
pub(super) fn check_with_sha2(backend: &dyn Backend) {
    for len in (0..=300).chain([4095, 4096, 4097, 100_000]) {
        let message = painted(len);
        assert_eq!(digest(backend, 1, &message), <[u8; 32]>::from(Sha256::digest(&message)), "{len} bytes");
    }
}

/// Every number of messages, 0 to 9 blocks of each, every alignment.
fn check_every_shape(backend: &dyn Backend) {
    let lanes = backend.lanes();
    let stride = 10 * BLOCK_BYTES + 7;
    let memory = painted(lanes * stride + 2 * BLOCK_BYTES);
    let aligned = memory.as_ptr().align_offset(BLOCK_BYTES);
    for messages in 1..=lanes {
        for blocks in 0..=9 {
            for start in 0..BLOCK_BYTES {
                let bytes = |lane| &memory[aligned + start + lane * stride..][..blocks * BLOCK_BYTES];
                check_call(backend, &(0..messages).map(bytes).collect::<Vec<_>>());
            }
        }
    }
}

/// Messages of which nothing may be read beyond the last byte.
fn check_page_ends(backend: &dyn Backend) {
    let ends: Vec<_> = (0..backend.lanes()).map(|_| PageEnd::new()).collect();
    for messages in 1..=backend.lanes() {
        for blocks in 0..=9 {
            let bytes = |end| PageEnd::last(end, blocks * BLOCK_BYTES);
            check_call(backend, &ends[..messages].iter().map(bytes).collect::<Vec<_>>());
        }
    }
}

/// One call, from states that differ in every word, against portable.
fn check_call(backend: &dyn Backend, blocks: &[&[u8]]) {
    let state = |lane: usize| array::from_fn(|i| ((lane * 8 + i + 1) as u32).wrapping_mul(0x9e37_79b9));
    let mut states: Vec<State> = (0..blocks.len()).map(state).collect();
    let mut expected = states.clone();
    backend.compress(&mut states, blocks);
    let portable = Portable::try_new().expect("always there");
    for (state, block) in expected.iter_mut().zip(blocks) {
        portable.compress(array::from_mut(state), &[block]);
    }
    let shape = (blocks.len(), blocks[0].len(), blocks[0].as_ptr() as usize % BLOCK_BYTES);
    assert_eq!(states, expected, "{}: (messages, bytes, alignment) {shape:?}", backend.name());
}

/// The examples that NIST publishes for FIPS 180-4, in all lanes at once.
fn check_published_examples(backend: &dyn Backend) {
    let examples: [(&[u8], &str); 3] = [
        (b"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        (
            b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
        ),
        (&[b'a'; 1_000_000], "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"),
    ];
    for (message, expected) in examples {
        let bytes = digest(backend, backend.lanes(), message);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, expected, "{}", backend.name());
    }
}

/// Calls that break the contract.
fn check_refusals(backend: &dyn Backend) {
    let bytes = painted(3 * BLOCK_BYTES);
    let refuses = |what: &str, states: usize, blocks: &[&[u8]]| {
        let call = || backend.compress(&mut vec![INITIAL; states], blocks);
        assert!(catch_unwind(AssertUnwindSafe(call)).is_err(), "{}: {what} passed", backend.name());
    };
    let too_many = backend.lanes() + 1;
    refuses("no message", 0, &[]);
    refuses("too many messages", too_many, &vec![&bytes[..64]; too_many]);
    refuses("half a block", 1, &[&bytes[..96]]);
    refuses("too few states", 0, &[&bytes[..64]]);
    refuses("too many states", 2, &[&bytes[..64]]);
    if backend.lanes() > 1 {
        refuses("different lengths", 2, &[&bytes[..128], &bytes[..64]]);
    }
}

/// The digest of one message in each of `lanes` lanes, which must all agree.
fn digest(backend: &dyn Backend, lanes: usize, message: &[u8]) -> [u8; 32] {
    let mut padded = message.to_vec();
    padded.push(0x80);
    padded.resize((padded.len() + 8).next_multiple_of(BLOCK_BYTES) - 8, 0);
    padded.extend((message.len() as u64 * 8).to_be_bytes());
    let mut states = vec![INITIAL; lanes];
    backend.compress(&mut states, &vec![&padded[..]; lanes]);
    assert!(states.iter().all(|state| *state == states[0]), "{}: lanes disagree", backend.name());
    let bytes: Vec<u8> = states[0].iter().flat_map(|word| word.to_be_bytes()).collect();
    bytes.try_into().expect("eight words")
}

/// Bytes with a prime period, so that blocks which change places are noticed.
fn painted(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8).collect()
}

/// A page of readable bytes before one that must not be touched.
struct PageEnd(*mut libc::c_void);

const PAGE: usize = 4096;

impl PageEnd {
    fn new() -> Self {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours, and the page that is
        // written and the one that is forbidden are its own.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let pages = libc::mmap(ptr::null_mut(), 2 * PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            assert_ne!(pages, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
            pages.cast::<u8>().copy_from_nonoverlapping(painted(PAGE).as_ptr(), PAGE);
            assert_eq!(libc::mprotect(pages.byte_add(PAGE), PAGE, libc::PROT_NONE), 0);
            Self(pages)
        }
    }

    /// The last `len` bytes before the forbidden page.
    fn last(&self, len: usize) -> &[u8] {
        assert!(len <= PAGE);
        // SAFETY: inside the page that `new` wrote, and mapped as long as this value lives.
        unsafe { std::slice::from_raw_parts(self.0.cast::<u8>().add(PAGE - len), len) }
    }
}

impl Drop for PageEnd {
    fn drop(&mut self) {
        // SAFETY: our own mapping; nothing borrowed from it lives longer than this value.
        unsafe { libc::munmap(self.0, 2 * PAGE) };
    }
}
