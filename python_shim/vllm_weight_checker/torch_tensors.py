"""Reads torch tensors, without importing torch: whoever passes one has imported it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .buffers import CUDA, HOST, STAND_IN, Buffer
from .dtypes import BY_NAME, BYTE, PER_BYTE
from .errors import NativeError, Status, TensorError

if TYPE_CHECKING:
    import torch


class TorchReader:
    """Reads the tensors of one call. What it learns about their classes and dtypes it learns once.

    Attributes are read with `__torch_function__` switched off (see `context`), since that of a
    parameter's class would multiply the time by ten.
    """

    def __init__(self, torch_module: Any) -> None:
        self._torch = torch_module
        self._strided = torch_module.strided
        self._dtypes: dict[torch.dtype, int] = {}
        # False for objects that are no tensor
        self._classes: dict[type, bool] = {torch_module.Tensor: True, torch_module.nn.Parameter: True}

    def context(self) -> Any:
        """To be held around all calls of `reads` and `read`."""
        return self._torch._C.DisableTorchFunction()

    def reads(self, tensor: object) -> bool:
        """Whether `tensor` is a torch tensor.

        Raises:
            TensorError: it is one whose class keeps the data in other tensors.
        """
        known = self._classes.get(type(tensor))
        if known is None:
            known = isinstance(tensor, self._torch.Tensor)
            if known:
                self._refuse_wrapper(type(tensor))
            self._classes[type(tensor)] = known
        return known

    def read(self, tensor: torch.Tensor) -> Buffer:
        """Where the elements of `tensor` are; `STAND_IN` when they are on a device that only torch can read.

        Raises:
            TensorError: it has no elements in memory that can be read as they lie.
        """
        if tensor.layout is not self._strided or tensor.is_nested:
            raise TensorError(self._layout_problem(tensor))
        if tensor.is_neg() or tensor.is_conj():
            raise TensorError(
                "is a lazily conjugated or negated view, so its memory holds other values; "
                "pass .resolve_conj().resolve_neg()"
            )
        dtype = self._dtypes.get(tensor.dtype)
        if dtype is None:
            name = str(tensor.dtype).removeprefix("torch.")
            if name in PER_BYTE:
                return self._read_packed(tensor, PER_BYTE[name])
            if name not in BY_NAME:
                raise TensorError(f"has the dtype {tensor.dtype}, which is not known; pass .view(torch.uint8) of it")
            dtype = self._dtypes[tensor.dtype] = BY_NAME[name]
        device = HOST if tensor.is_cpu else self._device(tensor)
        if device is None and tensor.device.type != "cuda":
            return STAND_IN  # it may have no address at all
        address = tensor.data_ptr()
        if not address and tensor.numel():
            raise TensorError(
                "has elements but no memory: its storage was freed, or it stands for a computation; "
                "pass a tensor that holds its values"
            )
        return STAND_IN if device is None else Buffer(address, device, dtype, tensor.shape, tensor.stride())

    def _read_packed(self, tensor: torch.Tensor, per_byte: int) -> Buffer:
        """Reads a dtype whose rows (the last dimension) are padded to whole bytes."""
        if not tensor.is_contiguous():
            raise TensorError(f"is not contiguous, and elements of {tensor.dtype} share bytes; pass .contiguous()")
        device = HOST if tensor.is_cpu else self._device(tensor)
        if device is None:
            raise TensorError(f"is on the device {tensor.device} with elements that share bytes; pass .cpu() of it")
        row = tensor.shape[-1:] or (1,)
        shape = (*tensor.shape[:-1], -(-row[0] // per_byte))
        return Buffer(tensor.data_ptr(), device, BYTE, shape, None)

    def stream(self, devices: set[int], of_torch: set[int]) -> int:
        """The CUDA stream after whose work the tensors of a call are complete; 0 is the legacy default stream.

        The library waits for one stream, and a stream belongs to one device. With tensors on several, the host
        waits here for the streams that torch now uses on them.

        Args:
            devices: the indices of all CUDA devices of the call.
            of_torch: those that torch has tensors on.
        """
        streams = [self._torch.cuda.current_stream(index) for index in sorted(of_torch)]
        if len(devices) == len(streams) == 1:
            return int(streams[0].cuda_stream)
        for stream in streams:
            self._refuse_capturing(stream)
            stream.synchronize()
        return 0

    def _refuse_capturing(self, stream: Any) -> None:
        """Waiting for a stream that is captured into a graph would fail, and end the capture."""
        with self._torch.cuda.device(stream.device):
            if self._torch.cuda.is_current_stream_capturing():
                raise NativeError(
                    Status.STREAM_CAPTURING,
                    f"torch's current stream of {stream.device} is captured into a CUDA graph; check before or after",
                )

    def _device(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        """DLPack's device of a tensor; None for one that only torch can read."""
        device = tensor.device
        if device.type == "cpu":
            return HOST
        if device.type == "meta":
            raise TensorError("is on the meta device and has no data; load the weights first")
        # torch for ROCm calls its devices "cuda" too, and their pointers mean nothing to CUDA's driver.
        return (CUDA, device.index or 0) if device.type == "cuda" and not self._torch.version.hip else None

    def _refuse_wrapper(self, kind: type) -> None:
        """Refuses FakeTensor, FunctionalTensor, DTensor, torchao's and other classes without own elements."""
        if hasattr(kind, "__tensor_flatten__"):
            raise TensorError(
                f"is a {kind.__qualname__}, which keeps its data in inner tensors; pass those, "
                "which __tensor_flatten__() names"
            )
        if getattr(kind, "__torch_dispatch__", None) is not self._torch.Tensor.__torch_dispatch__:
            raise TensorError(
                f"is a {kind.__qualname__}, whose __torch_dispatch__ decides what its elements are; "
                "pass the plain tensor behind it"
            )

    def _layout_problem(self, tensor: torch.Tensor) -> str:
        if tensor.is_nested:
            return "is a nested tensor; pass the tensors of .unbind() one by one"
        if tensor.layout is self._torch._mkldnn:
            return "is in an opaque mkldnn layout; pass .to_dense()"
        return f"has the layout {tensor.layout}; pass its .values() and its indices, each as a tensor"
