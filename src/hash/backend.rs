//! The SHA-256 block function of every kind of processor behind one signature, and the choice among them.
//!
//! A backend sees whole 64-byte blocks only. Padding and the filling of lanes stand once, above all of them.

use once_cell::race::OnceBox;
use std::hint::black_box;
use std::time::{Duration, Instant};

use super::portable::Portable;
#[cfg(target_arch = "x86_64")]
use super::{x86_avx2::Avx2, x86_avx512::Avx512, x86_shani::ShaNi};
use crate::status::{Error, Result, Status};

/// The chaining value between two blocks: FIPS 180-4's H(i), as numbers.
pub type State = [u32; 8];

/// SHA-256 works on blocks of 64 bytes.
pub const BLOCK_BYTES: usize = 64;

/// What every message starts from: H(0) of FIPS 180-4, section 5.3.3.
pub const INITIAL: State =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

/// The constant of each of the 64 rounds: FIPS 180-4, section 4.2.2.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
pub(super) const K: [u32; 64] = [
    0x428a_2f98, 0x7137_4491, 0xb5c0_fbcf, 0xe9b5_dba5, 0x3956_c25b, 0x59f1_11f1, 0x923f_82a4, 0xab1c_5ed5,
    0xd807_aa98, 0x1283_5b01, 0x2431_85be, 0x550c_7dc3, 0x72be_5d74, 0x80de_b1fe, 0x9bdc_06a7, 0xc19b_f174,
    0xe49b_69c1, 0xefbe_4786, 0x0fc1_9dc6, 0x240c_a1cc, 0x2de9_2c6f, 0x4a74_84aa, 0x5cb0_a9dc, 0x76f9_88da,
    0x983e_5152, 0xa831_c66d, 0xb003_27c8, 0xbf59_7fc7, 0xc6e0_0bf3, 0xd5a7_9147, 0x06ca_6351, 0x1429_2967,
    0x27b7_0a85, 0x2e1b_2138, 0x4d2c_6dfc, 0x5338_0d13, 0x650a_7354, 0x766a_0abb, 0x81c2_c92e, 0x9272_2c85,
    0xa2bf_e8a1, 0xa81a_664b, 0xc24b_8b70, 0xc76c_51a3, 0xd192_e819, 0xd699_0624, 0xf40e_3585, 0x106a_a070,
    0x19a4_c116, 0x1e37_6c08, 0x2748_774c, 0x34b0_bcb5, 0x391c_0cb3, 0x4ed8_aa4a, 0x5b9c_ca4f, 0x682e_6ff3,
    0x748f_82ee, 0x78a5_636f, 0x84c8_7814, 0x8cc7_0208, 0x90be_fffa, 0xa450_6ceb, 0xbef9_a3f7, 0xc671_78f2,
];

/// The environment variable that forces one backend.
const FORCE: &str = "WC_BACKEND";

/// A way to compute SHA-256's block function for some messages at once.
///
/// A value is the proof that this processor has what the backend needs: each is made by its `try_new` only.
pub trait Backend: Send + Sync {
    /// The name by which it is forced and reported.
    fn name(&self) -> &'static str;

    /// How many messages one call of [`compress`](Backend::compress) may take, at least 1.
    fn lanes(&self) -> usize;

    /// Advances `states[i]` over `blocks[i]`, for every i.
    ///
    /// There are as many states as slices, from 1 to [`lanes`](Backend::lanes); the slices have one length, a
    /// multiple of 64 bytes (0 is allowed), and any alignment.
    ///
    /// # Panics
    ///
    /// When the lengths are not so.
    fn compress(&self, states: &mut [State], blocks: &[&[u8]]);
}

/// The backends that the engine works with. Both are one when the environment forces it.
#[derive(Clone, Copy)]
pub struct Choice {
    /// Most bytes a second with all of its lanes filled, measured in this process.
    pub wide: &'static dyn Backend,
    /// Most bytes a second of each message when there are one to four.
    pub fast: &'static dyn Backend,
}

impl Choice {
    /// The names of both, such as "avx512+shani", or the one name when both are one.
    pub fn name(&self) -> String {
        let (wide, fast) = (self.wide.name(), self.fast.name());
        if wide == fast { wide.to_owned() } else { format!("{wide}+{fast}") }
    }
}

/// Every backend that this processor has. Portable is always the last.
pub fn available() -> Vec<&'static dyn Backend> {
    #[cfg(target_arch = "x86_64")]
    let of_this_architecture = [forever(Avx512::try_new()), forever(ShaNi::try_new()), forever(Avx2::try_new())];
    #[cfg(not(target_arch = "x86_64"))]
    let of_this_architecture = [];
    of_this_architecture.into_iter().chain([forever(Portable::try_new())]).flatten().collect()
}

/// The backends to use in this process: the best, or the one that the variable `WC_BACKEND` names.
///
/// Chosen on the first call; later changes of the variable have no effect.
///
/// # Errors
///
/// `BadOption` when `WC_BACKEND` names a backend that does not exist or that this processor lacks.
pub fn choose() -> Result<&'static Choice> {
    // Without a lock: a child that is forked while another thread chooses would wait for a thread that it does not have.
    static CHOICE: OnceBox<Result<Choice>> = OnceBox::new();
    let made = CHOICE.get_or_init(|| {
        Box::new(match std::env::var_os(FORCE) {
            Some(name) => forced(&name.to_string_lossy(), &available()),
            None => Ok(best(&available())),
        })
    });
    made.as_ref().map_err(Error::clone)
}

fn best(backends: &[&'static dyn Backend]) -> Choice {
    let fast = backends.iter().find(|backend| backend.name() == "shani").or(backends.last());
    Choice { wide: fastest(backends), fast: *fast.expect("portable is always there") }
}

/// The backend with most bytes a second, all lanes filled. Which one that is no feature tells: 16 lanes of AVX-512
/// beat four messages on SHA-NI where vectors of 512 bits are computed at once, and lose where it takes two halves.
///
/// Takes about half a millisecond: the shortest of some runs in turns, so that nothing else on the core decides.
fn fastest(backends: &[&'static dyn Backend]) -> &'static dyn Backend {
    const RUNS: usize = 16;
    const BYTES: usize = 8192;
    let bytes = [0; BYTES];
    let mut shortest = vec![Duration::MAX; backends.len()];
    for _ in 0..RUNS {
        for (backend, shortest) in backends.iter().zip(&mut shortest) {
            // As many bytes in all for every backend, as more lanes have shorter messages.
            let blocks = vec![&bytes[..BYTES / backend.lanes()]; backend.lanes()];
            let mut states = vec![INITIAL; backend.lanes()];
            let start = Instant::now();
            backend.compress(black_box(&mut states), black_box(&blocks));
            *shortest = start.elapsed().min(*shortest);
        }
    }
    let (fastest, _) = backends.iter().zip(shortest).min_by_key(|(_, time)| *time).expect("portable is always there");
    *fastest
}

fn forced(name: &str, backends: &[&'static dyn Backend]) -> Result<Choice> {
    match backends.iter().find(|backend| backend.name() == name) {
        Some(&only) => Ok(Choice { wide: only, fast: only }),
        None => {
            let names: Vec<_> = backends.iter().map(|backend| backend.name()).collect();
            let message = format!("{FORCE}='{name}': this processor has {}; unset it or name one", names.join(", "));
            Err(Error::new(Status::BadOption, message))
        }
    }
}

/// A backend that lives as long as the process. Backends have no fields that need memory, so nothing is allocated.
fn forever<B: Backend + 'static>(backend: Option<B>) -> Option<&'static dyn Backend> {
    const { assert!(size_of::<B>() == 0) };
    backend.map(|backend| &*Box::leak(Box::new(backend)) as &'static dyn Backend)
}

/// Panics unless the arguments of [`Backend::compress`] are what it asks for.
pub(super) fn check(lanes: usize, states: &[State], blocks: &[&[u8]]) {
    assert!((1..=lanes).contains(&blocks.len()), "{} messages for {lanes} lanes", blocks.len());
    assert_eq!(states.len(), blocks.len(), "as many states as messages");
    let bytes = blocks[0].len();
    assert!(bytes.is_multiple_of(BLOCK_BYTES), "{bytes} bytes are no whole blocks");
    assert!(blocks.iter().all(|block| block.len() == bytes), "messages of different lengths in one call");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_is_forced_by_name() {
        for backend in available() {
            let choice = forced(backend.name(), &available()).unwrap();
            assert_eq!((choice.wide.name(), choice.fast.name()), (backend.name(), backend.name()));
            assert_eq!(choice.name(), backend.name());
        }
    }

    #[test]
    fn an_unknown_backend_is_an_error_that_says_what_there_is() {
        for name in ["", "AVX512", "neon", "avx512+shani"] {
            let error = forced(name, &available()).map(|choice| choice.name()).unwrap_err();
            assert_eq!(error.status(), Status::BadOption);
            assert!(error.message().contains(&format!("WC_BACKEND='{name}'")), "{error}");
            assert!(error.message().contains("portable"), "{error}");
        }
    }
}
