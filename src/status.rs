//! The status of every call, and the error that carries it with a message.

use std::fmt;

/// What came of a call. The numbers are part of the ABI: they never change and a retired one is never reused.
///
/// A mismatch of weights is a result, not a status: every status but 0 means that nothing could be said.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Done; the outputs are written.
    Ok = 0,
    /// A pointer that must not be NULL is NULL.
    NullPointer = 1,
    /// A `struct_size` is not the size that this library was built with: the caller uses another header.
    BadStructSize = 2,
    /// A tensor's name is not UTF-8.
    BadName = 3,
    /// Two tensors of one call have the same name.
    DuplicateName = 4,
    /// A tensor has fewer than 0 or more than 32 dimensions.
    BadNdim = 5,
    /// A shape has a negative extent.
    NegativeShape = 6,
    /// A tensor's size does not fit into 63 bits of bytes.
    SizeOverflow = 7,
    /// A stride is negative.
    NegativeStride = 8,
    /// The strides or the byte offset lead out of the address space.
    OutOfAddressSpace = 9,
    /// The dtype is not in DLPack's table, or has a width that it does not come in.
    UnsupportedDtype = 10,
    /// The tensor is on a device that this library does not read.
    UnsupportedDevice = 11,
    /// A tensor of 4- or 6-bit elements is not compact, or does not end on a whole byte.
    UnsupportedLayout = 12,
    /// A part of the tensor's memory is not mapped, or lies behind the end of its mapped file.
    UnmappedMemory = 13,
    /// A part of the tensor's memory is mapped without the right to read it (or, for reset, to write it).
    MemoryProtected = 14,
    /// An option has a value that does not exist (algorithm, fill).
    BadOption = 15,
    /// The baseline is not a JSON object of strings, or holds a key twice.
    BadBaseline = 16,
    /// The baseline's digests are of another algorithm than the one asked for.
    AlgorithmMismatch = 17,
    /// No tensor of the call has a key in the baseline, so the comparison says nothing.
    NothingCompared = 18,
    /// The progress callback asked to stop.
    Cancelled = 19,
    /// The caller's output array is too small.
    BufferTooSmall = 20,
    /// The operating system refused something that the call needs.
    System = 21,
    /// A panic inside the library: a bug in it. The process is unharmed.
    Panic = 22,
    /// The plan is not a plan that this library reads, contradicts itself, or determines no parameter.
    BadPlan = 23,
    /// A file of the checkpoint is not there, cannot be read, or is not what it should be.
    BadCheckpoint = 24,
    /// A tensor that the plan reads is not in the checkpoint, or not among the tensors given.
    MissingSource = 25,
    /// A tensor that the plan reads has another dtype or shape than when the plan was recorded.
    SourceMismatch = 26,
    /// A tensor is on a CUDA device, and libcuda cannot be loaded, is too old, or has no such device.
    CudaUnavailable = 27,
    /// A part of the tensor's device memory is not allocated: freed, or unmapped as by an engine that sleeps.
    UnallocatedDeviceMemory = 28,
    /// The tensor's memory is on another device than the one stated, or is not device memory.
    WrongDevice = 29,
    /// The stream is being captured into a CUDA graph.
    StreamCapturing = 30,
    /// The device, or the host's pinned memory, has no room for the little that the call needs.
    OutOfDeviceMemory = 31,
    /// The CUDA driver reported an error of another kind.
    Cuda = 32,
}

/// A call that could not say anything: its status, and a message that names the tensor and what to do.
#[derive(Clone, Debug)]
pub struct Error {
    status: Status,
    message: String,
}

/// Short for the results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of `status`, described by `message`.
    pub fn new(status: Status, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    /// An error about the tensor called `name`.
    pub fn of_tensor(status: Status, name: &str, what: impl fmt::Display) -> Self {
        Self::new(status, format!("tensor '{name}': {what}"))
    }

    /// The status that a C caller gets.
    pub fn status(&self) -> Status {
        self.status
    }

    /// What is wrong, with which tensor, and what to do.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
