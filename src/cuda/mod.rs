//! Tensors in the memory of CUDA devices: hashed and overwritten where they are.
//!
//! `driver` calls the CUDA driver; `device` is what is made once for a device, and `kept` what a call leaves to the next;
//! `allocated` asks the driver what a tensor's address is; `table` describes tensors to kernels; `tree` hashes on the device,
//! `transfer` copies to `buffers` of the host to hash there, and `fill` overwrites. The kernels are `sha256_tree.cu` and `elements.cu`, compiled to the `.ptx` files beside them.
//!
//! A call gets along with an engine in the same process: it uses the context that the engine's framework has, streams of its
//! own, a few MiB of device memory, and leaves graphs alone that other threads capture.

mod allocated;
mod buffers;
mod device;
#[allow(unsafe_code)]
mod driver;
#[allow(unsafe_code)]
pub mod fill;
mod kept;
mod table;
#[allow(unsafe_code)]
pub mod transfer;
#[allow(unsafe_code)]
pub mod tree;

use std::collections::BTreeMap;

use self::device::Device;
pub use self::driver::Producer;
use self::driver::{DeviceMemory, Event};
use crate::status::{Error, Result};
use crate::view::{self, TensorView};

/// Bytes of a tensor that a block of threads works on: 128 leaves of its tree.
pub const CHUNK_BYTES: u64 = 1 << 20;

/// Device memory that a call uses at most.
pub const SCRATCH_BYTES: u64 = 16 << 20;

/// A tensor in device memory that is allocated.
#[derive(Clone, Copy, Debug)]
pub struct DeviceTensor<'v>(&'v TensorView<'v>);

impl<'v> DeviceTensor<'v> {
    /// What it is.
    pub fn view(self) -> &'v TensorView<'v> {
        self.0
    }

    /// The address of its first element.
    fn start(self) -> u64 {
        self.0.addresses().start as u64
    }
}

/// One device's part in a call of this library.
pub struct Session<'v> {
    device: &'static Device,
    tensors: Vec<(usize, DeviceTensor<'v>)>,
}

/// The devices that a call works on: their tensors are checked, and their streams wait for what the caller has queued.
pub struct Call<'v> {
    sessions: Vec<Session<'v>>,
}

impl<'v> Call<'v> {
    /// Opens the devices that `views` are on; none, and no driver is needed, when all are in host memory.
    ///
    /// # Errors
    /// `CudaUnavailable`; `UnallocatedDeviceMemory` and `WrongDevice` by the name of the tensor; `StreamCapturing`; or what
    /// else the driver says. No memory has been touched then.
    pub fn open(views: &[&'v TensorView<'v>], producer: Producer) -> Result<Self> {
        let mut of_device: BTreeMap<i32, Vec<(usize, DeviceTensor<'v>)>> = BTreeMap::new();
        for (index, view) in views.iter().enumerate() {
            if let view::Device::Cuda(ordinal) = view.device() {
                of_device.entry(ordinal).or_default().push((index, DeviceTensor(view)));
            }
        }
        let mut sessions = Vec::with_capacity(of_device.len());
        for (ordinal, tensors) in of_device {
            let unavailable = |error: Error| Error::of_tensor(error.status(), tensors[0].1.view().name(), error);
            let device = Device::get(ordinal).map_err(unavailable)?;
            device.enter(|| tensors.iter().try_for_each(|(_, tensor)| allocated::check(tensor.view(), ordinal)))?;
            sessions.push(Session { device, tensors });
        }
        let call = Self { sessions };
        call.wait_for(producer).map_err(|error| Error::new(error.status(), format!("option 'stream': {error}")))?;
        Ok(call)
    }

    /// The devices' parts, by ordinal.
    pub fn sessions(&self) -> &[Session<'v>] {
        &self.sessions
    }

    /// Makes all streams wait, on the devices, for what is in the caller's.
    fn wait_for(&self, producer: Producer) -> Result<()> {
        if producer.is_default() {
            let wait = |session: &Session<'v>| {
                session.device.enter(|| {
                    producer.refuse_capture()?;
                    self.wait_in(session.device.context(), producer, &[session])
                })
            };
            return self.sessions.iter().try_for_each(wait);
        }
        let Some(first) = self.sessions.first() else { return Ok(()) };
        let context = first.device.enter(|| {
            producer.refuse_capture()?;
            producer.context()
        })?;
        let sessions: Vec<_> = self.sessions.iter().collect();
        context.enter(|| self.wait_in(context, producer, &sessions))
    }

    /// Makes the streams of `sessions` wait for what is in a stream of the current context, which is not captured.
    fn wait_in(&self, context: driver::Context, producer: Producer, sessions: &[&Session<'v>]) -> Result<()> {
        // An event belongs to a context; only those of the devices' own are kept.
        let device = sessions.iter().map(|session| session.device).find(|device| device.context() == context);
        let event = device.map_or_else(|| Event::new(context), |device| device.kept().take_event(context))?;
        event.record_in(producer)?;
        sessions.iter().flat_map(|session| session.device.streams()).try_for_each(|stream| stream.wait(&event))?;
        match device {
            Some(device) => device.kept().keep_event(event),
            None => event.close()?,
        }
        Ok(())
    }
}

impl<'v> Session<'v> {
    /// Its tensors with their places among the call's views, in that order.
    pub fn tensors(&self) -> &[(usize, DeviceTensor<'v>)] {
        &self.tensors
    }

    /// Runs `work` with `bytes` of device memory, inside of the device's context, and waits until the streams have done what it
    /// queued.
    fn with_scratch<T>(&self, bytes: u64, work: impl FnOnce(&DeviceMemory) -> Result<T>) -> Result<T> {
        let kept = self.device.kept();
        let memory = kept.take_scratch(bytes, self.device.context())?;
        let found = work(&memory);
        // Whatever came of it, nothing of it may be in a queue when another call gets the memory.
        self.device.settle()?;
        kept.keep_scratch(memory)?;
        found
    }
}
