"""A device that nobody but torch can read.

torch lets a backend be written in Python: each tensor is an empty shell with the right shape, type and device, and
every operation on it comes to a function here. The elements are in tensors on the CPU that only this file sees.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "otherdevice"
copied: list[int] = []
"""The bytes of each copy from or to the device."""

_elements: dict[int, torch.Tensor] = {}
"""By the shell's storage, since torch makes other tensor objects of a shell."""

_library = torch.library.Library("_", "IMPL")
_operations = torch.library.Library("aten", "IMPL")


class OtherTensor(torch.Tensor):
    """A shell. It tells their address and strides, as a device's tensors mostly do."""

    def data_ptr(self) -> int:
        return behind(self).data_ptr()

    def stride(self, *dim: int) -> Any:
        return behind(self).stride(*dim)

    def is_contiguous(self, **_: Any) -> bool:
        return behind(self).is_contiguous()


@functools.cache
def _register() -> None:
    """Once in a process: torch has one such device, and it keeps its name."""
    _setup_privateuseone_for_python_backend(NAME)
    _library.fallback(lambda operation, *args, **kwargs: _run(operation, args, kwargs), "PrivateUse1")
    # torch would make these of `as_strided`, with the shell's strides.
    for name in ("slice.Tensor", "select.int", "view.dtype"):
        operation = getattr(getattr(torch.ops.aten, name.split(".")[0]), name.split(".")[1])
        _operations.impl(name, functools.partial(_view, operation), "PrivateUse1")
    _operations.impl("_copy_from", _copy_from, "PrivateUse1")


def behind(shell: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor on the device."""
    return _elements[shell.untyped_storage()._cdata]


def forget() -> None:
    """Lets go of all elements and counts."""
    _elements.clear()
    copied.clear()


def to_other(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on the device whose elements, in their strides, are those of a tensor on the CPU."""
    _register()
    shell = torch._C._acc.create_empty_tensor(tensor.shape, tensor.dtype)
    shell.__class__ = OtherTensor
    _elements[shell.untyped_storage()._cdata] = tensor
    return shell


def _bare(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu")
    is_other = isinstance(value, torch.Tensor) and torch.Tensor.device.__get__(value).type == NAME
    return behind(value) if is_other else value


def _run(operation: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    result = operation(*tree_map(_bare, args), **tree_map(_bare, kwargs))
    return tree_map(lambda value: to_other(value) if isinstance(value, torch.Tensor) else value, result)


def _view(operation: Callable[..., Any], tensor: torch.Tensor, *args: Any) -> torch.Tensor:
    return to_other(operation(_bare(tensor), *args))


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    copied.append(source.nbytes)
    _bare(target).copy_(_bare(source))
    return target
