//! The SHA-256 block function of every kind of processor behind one signature, and the choice among them.
//!
//! A backend sees whole 64-byte blocks only. Padding and the filling of lanes stand once, above all of them.

use std::sync::OnceLock;

use super::portable::Portable;
use crate::status::{Error, Result, Status};

/// The chaining value between two blocks: FIPS 180-4's H(i), as numbers.
pub type State = [u32; 8];

/// SHA-256 works on blocks of 64 bytes.
pub const BLOCK_BYTES: usize = 64;

/// What every message starts from: H(0) of FIPS 180-4, section 5.3.3.
pub const INITIAL: State =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

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
    /// Most bytes a second with all of its lanes filled.
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

/// Every backend that this processor has, the one with most bytes a second first. Portable is always the last.
pub fn available() -> Vec<&'static dyn Backend> {
    vec![forever(Portable::try_new())].into_iter().flatten().collect()
}

/// The backends to use in this process: the best, or the one that the variable `WC_BACKEND` names.
///
/// Chosen on the first call; later changes of the variable have no effect.
///
/// # Errors
///
/// `BadOption` when `WC_BACKEND` names a backend that does not exist or that this processor lacks.
pub fn choose() -> Result<&'static Choice> {
    static CHOICE: OnceLock<Result<Choice>> = OnceLock::new();
    let made = CHOICE.get_or_init(|| match std::env::var_os(FORCE) {
        Some(name) => forced(&name.to_string_lossy(), &available()),
        None => Ok(best(&available())),
    });
    made.as_ref().map_err(Error::clone)
}

/// The fastest of `backends`, which are sorted as in [`available`].
fn best(backends: &[&'static dyn Backend]) -> Choice {
    let fast = backends.iter().find(|backend| backend.name() == "shani");
    Choice { wide: backends[0], fast: *fast.unwrap_or(&backends[backends.len() - 1]) }
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
