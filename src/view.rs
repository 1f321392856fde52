//! The one place where a raw pointer becomes a tensor.
//!
//! A [`TensorView`] is only made by [`views`], which has checked everything about it: name, dtype, shape, strides, device,
//! and that the memory is there with the right that the verb needs. What is behind it sees no raw pointer.

use std::collections::HashMap;
use std::marker::PhantomData;

use crate::dtype::DType;
use crate::layout::{Layout, MAX_NDIM};
use crate::mapped::{Access, MemoryMap};
use crate::status::{Error, Result, Status};

/// DLPack's `DLDeviceType` of ordinary host memory.
const DEVICE_CPU: i32 = 1;
/// DLPack's `DLDeviceType` of a CUDA device's memory.
const DEVICE_CUDA: i32 = 2;
/// DLPack's `DLDeviceType` of host memory that CUDA has pinned.
const DEVICE_CUDA_HOST: i32 = 3;

/// What a caller says of a tensor, unchecked: the fields of DLPack's `DLTensor`, with a name.
#[derive(Clone, Copy, Debug)]
pub struct RawTensor<'a> {
    /// The parameter's name.
    pub name: &'a str,
    /// Start of the buffer; may be NULL when there are no elements.
    pub data: *mut u8,
    /// DLPack's device type and ordinal.
    pub device: (i32, i32),
    /// DLPack's dtype: code, bits, lanes.
    pub dtype: (u8, u8, u16),
    /// Extents.
    pub shape: &'a [i64],
    /// Strides in elements, `None` for compact row-major.
    pub strides: Option<&'a [i64]>,
    /// Bytes from `data` to the first element.
    pub byte_offset: u64,
}

/// Where a tensor's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Device {
    /// This process's own memory, pinned by CUDA or not.
    Host,
    /// The CUDA device of this ordinal.
    Cuda(i32),
}

/// A checked tensor, borrowed for `'a`.
#[derive(Debug)]
pub struct TensorView<'a> {
    name: &'a str,
    device: Device,
    dtype: DType,
    shape: &'a [i64],
    start: *mut u8,
    layout: Layout,
    memory: PhantomData<&'a [u8]>,
}

// SAFETY: a view is an address with a layout. Reading through it from several threads is what `views` has its caller
// promise: nobody writes during the call but this library, and reset gives overlapping views to one thread.
unsafe impl Send for TensorView<'_> {}
// SAFETY: as above.
unsafe impl Sync for TensorView<'_> {}

impl<'a> TensorView<'a> {
    /// The parameter's name.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// The type of its elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Its extents, none negative.
    pub fn shape(&self) -> &'a [i64] {
        self.shape
    }

    /// Where its elements lie, relative to the first one.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Where its memory is.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The tensor as one that can be read and written here, if it is in host memory.
    pub fn on_host(&self) -> Option<HostTensor<'_>> {
        (self.device == Device::Host).then_some(HostTensor(self))
    }

    /// Its logical size in bytes.
    pub fn bytes(&self) -> u64 {
        self.layout.bytes()
    }

    /// The addresses, on its device, from the first to behind the last byte of its elements.
    pub fn addresses(&self) -> std::ops::Range<usize> {
        let start = self.start.addr();
        start..start + self.layout.extent() as usize
    }
}

/// A tensor in host memory.
#[derive(Clone, Copy, Debug)]
pub struct HostTensor<'v>(&'v TensorView<'v>);

impl<'v> HostTensor<'v> {
    /// What it is, without the right to touch its memory.
    pub fn view(self) -> &'v TensorView<'v> {
        self.0
    }

    /// The address of the first element. [`Layout::extent`] bytes from here are mapped.
    pub(crate) fn start(self) -> *mut u8 {
        self.0.start
    }
}

/// The logical bytes of `views` together. Strides of 0 can make that more than any memory, so it saturates.
pub fn total_bytes<'a>(views: impl IntoIterator<Item = &'a TensorView<'a>>) -> u64 {
    views.into_iter().fold(0, |total, view| total.saturating_add(view.bytes()))
}

/// For each view the index of the first one of the same dtype that names exactly the same bytes in the same order: its
/// own, unless the memory is shared (tied weights).
pub fn first_of_same_memory<'v>(views: &'v [TensorView<'_>]) -> Vec<usize> {
    let mut first = HashMap::with_capacity(views.len());
    let of = |(index, view): (usize, &'v TensorView<'_>)| {
        if view.bytes() == 0 {
            return index;
        }
        *first.entry((view.device, view.start.addr(), &view.layout, view.dtype)).or_insert(index)
    };
    views.iter().enumerate().map(of).collect()
}

/// Checks all `tensors` for `access` and gives their views, in order. Of device memory only the description is checked: what
/// is allocated there, [`cuda::Call::open`](crate::cuda::Call::open) asks the driver.
///
/// # Errors
/// The first tensor that is refused, by its status; no memory has been touched then.
///
/// # Safety
/// Until the views are dropped the memory of every tensor stays mapped as it is now, and nobody else writes to it. What
/// can be checked here is: that it is mapped now, with the right that `access` needs.
pub unsafe fn views<'a>(tensors: &[RawTensor<'a>], access: Access) -> Result<Vec<TensorView<'a>>> {
    refuse_duplicates(tensors)?;
    let views = tensors.iter().map(check).collect::<Result<Vec<_>>>()?;
    let mut map = None;
    for view in views.iter().filter(|view| view.device == Device::Host && view.bytes() > 0) {
        let map: &MemoryMap = match &mut map {
            Some(map) => map,
            none => none.insert(MemoryMap::of_this_process()?),
        };
        map.check(view.addresses(), access).map_err(|(status, what)| Error::of_tensor(status, view.name, what))?;
    }
    Ok(views)
}

fn refuse_duplicates(tensors: &[RawTensor<'_>]) -> Result<()> {
    let mut seen = HashMap::with_capacity(tensors.len());
    for (index, tensor) in tensors.iter().enumerate() {
        if let Some(first) = seen.insert(tensor.name, index) {
            let what = format!("its name is given twice, at positions {first} and {index}");
            return Err(Error::of_tensor(Status::DuplicateName, tensor.name, what));
        }
    }
    Ok(())
}

/// Checks everything that the description alone can tell.
fn check<'a>(tensor: &RawTensor<'a>) -> Result<TensorView<'a>> {
    let refuse = |(status, what): (Status, String)| Error::of_tensor(status, tensor.name, what);
    if tensor.shape.len() > MAX_NDIM {
        let what = format!("{} dimensions; at most {MAX_NDIM} are supported", tensor.shape.len());
        return Err(refuse((Status::BadNdim, what)));
    }
    let device = device(tensor.device).map_err(refuse)?;
    let (code, bits, lanes) = tensor.dtype;
    let dtype = DType::new(code, bits, lanes).map_err(refuse)?;
    let layout = Layout::new(tensor.shape, tensor.strides, dtype.element_bits()).map_err(refuse)?;
    if layout.bytes() > 0 && tensor.data.is_null() {
        return Err(refuse((Status::NullPointer, format!("its data is NULL but it has {} bytes", layout.bytes()))));
    }
    let start = usize::try_from(tensor.byte_offset)
        .ok()
        .and_then(|offset| tensor.data.addr().checked_add(offset))
        .filter(|start| start.checked_add(layout.extent() as usize).is_some());
    let Some(start) = start else {
        let what = format!("byte_offset {} and the strides lead out of the address space", tensor.byte_offset);
        return Err(refuse((Status::OutOfAddressSpace, what)));
    };
    Ok(TensorView {
        name: tensor.name,
        device,
        dtype,
        shape: tensor.shape,
        start: tensor.data.with_addr(start),
        layout,
        memory: PhantomData,
    })
}

fn device((device_type, device_id): (i32, i32)) -> std::result::Result<Device, (Status, String)> {
    match device_type {
        DEVICE_CPU | DEVICE_CUDA_HOST => Ok(Device::Host),
        DEVICE_CUDA => Ok(Device::Cuda(device_id)),
        other => Err((
            Status::UnsupportedDevice,
            format!(
                "it is on DLPack device ({other}, {device_id}); read are host memory (device type {DEVICE_CPU} or \
                 {DEVICE_CUDA_HOST}) and CUDA devices ({DEVICE_CUDA})"
            ),
        )),
    }
}
