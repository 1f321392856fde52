//! What is made once for each device: its context, streams of our own, and the kernels.

use std::ffi::CStr;

use once_cell::race::OnceBox;

use super::driver::{self, Context, Function, Module, PrimaryContext, Stream};
use super::kept::Kept;
use crate::status::{Error, Result, Status};

/// More devices than any machine has.
const MOST_DEVICES: usize = 256;

/// Streams of a device: copies that lie in several follow each other without a gap.
pub const STREAMS: usize = 4;

/// A device that this process has used, for as long as it runs.
pub struct Device {
    // In the order in which they must be given back.
    kept: Kept,
    hashing: OnceBox<Hashing>,
    elements: OnceBox<Elements>,
    streams: [Stream; STREAMS],
    context: PrimaryContext,
    ordinal: i32,
}

/// The kernels of `sha256_tree.cu`.
pub struct Hashing {
    /// Roots of chunks whose leaves are all full and lie in aligned blocks.
    pub full_leaves: Function,
    /// Roots of any chunks.
    pub leaves: Function,
    /// Roots of roots.
    pub nodes: Function,
    _module: Module,
}

/// The kernels of `elements.cu`.
pub struct Elements {
    /// Copies logical bytes of a tensor with gaps to where there are none.
    pub gather: Function,
    /// Overwrites all elements.
    pub fill: Function,
    _module: Module,
}

impl Device {
    /// The device of this ordinal, which is made ready when it is first asked for.
    ///
    /// # Errors
    /// `CudaUnavailable` when there is no driver or no such device; what the driver says when something cannot be made, and
    /// then the next call tries again.
    pub fn get(ordinal: i32) -> Result<&'static Self> {
        static DEVICES: [OnceBox<Device>; MOST_DEVICES] = [const { OnceBox::new() }; MOST_DEVICES];
        driver::load()?;
        let count = driver::device_count()?;
        let known = usize::try_from(ordinal).ok().filter(|_| ordinal < count).and_then(|index| DEVICES.get(index));
        let Some(known) = known else {
            let what = format!("there is no CUDA device {ordinal}: this process has {count}");
            return Err(Error::new(Status::CudaUnavailable, what));
        };
        known.get_or_try_init(|| Self::new(ordinal).map(Box::new))
    }

    fn new(ordinal: i32) -> Result<Self> {
        let context = PrimaryContext::retain(ordinal)?;
        let stream = || Stream::new(*context);
        let streams = context.enter(|| Ok([stream()?, stream()?, stream()?, stream()?]))?;
        Ok(Self { kept: Kept::default(), hashing: OnceBox::new(), elements: OnceBox::new(), streams, context, ordinal })
    }

    /// Its number in this process.
    pub fn ordinal(&self) -> i32 {
        self.ordinal
    }

    /// What calls leave for those after them.
    pub fn kept(&self) -> &Kept {
        &self.kept
    }

    /// Its primary context.
    pub fn context(&self) -> Context {
        *self.context
    }

    /// Its streams.
    pub fn streams(&self) -> &[Stream; STREAMS] {
        &self.streams
    }

    /// Runs `work` with its context as the calling thread's current one.
    pub fn enter<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.context.enter(work)
    }

    /// Waits until nothing is left in its streams, whatever comes of it.
    pub fn settle(&self) -> Result<()> {
        driver::twice(|| self.enter(|| self.streams.iter().map(Stream::synchronize).fold(Ok(()), Result::and)))
    }

    /// Makes what comes next in `later` wait for what is in `earlier` now; call it inside of `enter`.
    pub fn follow(&self, later: &Stream, earlier: &Stream) -> Result<()> {
        let event = self.kept.take_event(self.context())?;
        event.record(earlier)?;
        later.wait(&event)?;
        self.kept.keep_event(event);
        Ok(())
    }

    /// The kernels that hash; call it inside of `enter`.
    pub fn hashing(&self) -> Result<&Hashing> {
        self.hashing.get_or_try_init(|| {
            let module = Module::new(self.context(), ptx(concat!(include_str!("sha256_tree.ptx"), "\0")))?;
            Ok(Box::new(Hashing {
                full_leaves: module.function(c"wc_hash_full_leaves")?,
                leaves: module.function(c"wc_hash_leaves")?,
                nodes: module.function(c"wc_hash_nodes")?,
                _module: module,
            }))
        })
    }

    /// The kernels that gather and fill; call it inside of `enter`.
    pub fn elements(&self) -> Result<&Elements> {
        self.elements.get_or_try_init(|| {
            let module = Module::new(self.context(), ptx(concat!(include_str!("elements.ptx"), "\0")))?;
            Ok(Box::new(Elements {
                gather: module.function(c"wc_gather")?,
                fill: module.function(c"wc_fill")?,
                _module: module,
            }))
        })
    }
}

fn ptx(text: &'static str) -> &'static CStr {
    CStr::from_bytes_with_nul(text.as_bytes()).expect("the text of a kernel holds no NUL but the one at its end")
}
