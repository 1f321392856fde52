"""Watches what an engine's loader does with checkpoint tensors, without doing it.

`Recording` is a dispatch mode of torch: it sees every operation of the loader on tensors that have names,
shapes and dtypes but mostly no data (device `meta`), and tells a `Provenance` what it means for where
values come from. Operations that only move elements are followed; everything else makes its results
"computed".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from .errors import CheckError
from .movements import HANDLERS, are_mixed, tensors_in
from .provenance import Provenance

SMALL = 4096
"""Elements up to which a tensor has its values while a loader is recorded."""

_MOST_VALUES = 64 << 20
"""Elements that are read at once when a loader asks for the values of a large tensor."""

Values = Callable[[str], "torch.Tensor | None"]
"""Gives the checkpoint tensor of a name with its values, or None when only its shape is known."""

aten = torch.ops.aten


class NeedsValues(Exception):
    """The loader computes with the values of these checkpoint tensors: record again and give them."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(f"the loader computes with the values of {', '.join(sorted(names))}")
        self.names = names


class NeedsNumbers(Exception):
    """The loader indexes with numbers that torch has put on meta: record again under `NumbersHaveValues`."""


class NumbersHaveValues(TorchFunctionMode):
    """Numbers that a loader writes down, as an index or with `torch.tensor`, stay readable on the CPU.

    Torch would make them on the device of what they index, and on meta they would be lost. It makes a
    recording slow (every look at a shape passes through it), so it is used for loaders that need it only.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            index = tuple(torch.tensor(part) if isinstance(part, list) else part for part in index)
            args = (args[0], index, *args[2:])
        elif func in (torch.tensor, torch.as_tensor) and not (args and isinstance(args[0], torch.Tensor)):
            kwargs["device"] = torch.device("cpu")
        return func(*args, **kwargs)


class Recording(TorchDispatchMode):
    """Records into `provenance`; `values` is asked when a loader branches on what a tensor holds.

    New tensors of up to `small` elements have data, so that a loader may compute with them.
    """

    def __init__(self, provenance: Provenance, values: Values, small: int, numbers_have_values: bool = False) -> None:
        super().__init__()
        self.provenance = provenance
        self._values = values
        self.small = small
        self._numbers_have_values = numbers_have_values
        self.equal_if_unknown: bool | None = None
        self.last_item: tuple[Any, torch.Tensor] | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.is_view:
            return func(*args, **(kwargs or {}))  # of memory that is known, or not, as before
        result = self._do(func, args, dict(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.is_meta:
            forbid_kernels(result)
        return result

    def _do(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        handle = _HANDLERS.get(func.overloadpacket)
        if handle is not None:
            return handle(self, func, args, kwargs)
        if torch.Tag.inplace_view in func.tags:
            return func(*args, **kwargs)
        if _needs_values(func):
            return self._with_values(func, args, kwargs)
        return self.other(func, args, kwargs)

    def other(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """An operation that is not followed: a view of its input, or a computation."""
        inputs = tensors_in(args, kwargs)
        known = [tensor for tensor in inputs if self.provenance.knows(tensor)]
        if are_mixed(inputs):
            args, kwargs = tree_map_only(torch.Tensor, self.without_data, (args, kwargs))
        result = func(*args, **kwargs)
        if not known:
            return result
        memories = {tensor.untyped_storage()._cdata for tensor in tensors_in(args, kwargs)}
        made = [tensor for tensor in tensors_in(result) if tensor.untyped_storage()._cdata not in memories]
        changed = [*_written(func, args, kwargs), *made]
        sources = self.provenance.sources(known) if changed else frozenset()
        for tensor in changed:
            self.provenance.compute(tensor, f"by {func.overloadpacket}", sources)
        return result

    def _with_values(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """An operation whose result depends on values, with those of the checkpoint."""
        known = [tensor for tensor in tensors_in(args, kwargs) if self.provenance.knows(tensor)]
        sources = self.provenance.sources(known)
        args, kwargs = tree_map_only(torch.Tensor, self.with_values, (args, kwargs))
        result = func(*args, **kwargs)
        for made in tensors_in(result):
            self.provenance.compute(made, f"by {func.overloadpacket}", sources)
        return result

    def with_values(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor` itself when it has data, otherwise its values as they follow from the checkpoint's.

        Raises:
            NeedsValues: they are computed from checkpoint tensors that have no data here.
            CheckError: the checkpoint's values are not to be had.
        """
        if not tensor.is_meta:
            return tensor
        if tensor.numel() > _MOST_VALUES:
            raise CheckError(f"the loader asks for the values of {tensor.numel()} elements at once")
        blocks = self.provenance.blocks(tensor)
        computed = frozenset(name for block in blocks if block.origin.computed for name in block.origin.inputs)
        if computed:
            raise NeedsValues(computed)
        values = torch.zeros(tensor.numel(), dtype=tensor.dtype)
        for block in blocks:
            move = block.move
            if block.origin.source is None:
                part = torch.full(move.shape, block.origin.constant, dtype=getattr(torch, block.dtypes[0]))
            else:
                part = _strided(self._source(block.origin.source), move.shape, move.source_strides, move.source_offset)
            for dtype in block.dtypes:
                part = part.to(getattr(torch, dtype))
            values.as_strided(move.shape, move.strides, move.offset).copy_(part)
        return values.view(tensor.shape)

    def values_if_any(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """`with_values`, or None when only shapes were given: small memory that is written then holds no values."""
        try:
            return self.with_values(tensor)
        except CheckError:
            return None

    def _source(self, name: str) -> torch.Tensor:
        values = self._values(name)
        if values is None:
            raise CheckError(
                f"the loader asks for the values of '{name}', and only its shape and dtype were given; "
                "record from the checkpoint's files"
            )
        return values.reshape(-1)

    def without_data(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor on meta with the same layout and origins, for an operation whose other inputs are on meta."""
        if tensor.is_meta or (tensor.dim() == 0 and not self.provenance.knows(tensor)):
            return tensor
        bare = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        self.copied(bare, tensor)
        return bare

    def copied(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Notes that `target` now holds the elements of `source`, broadcast."""
        if self.provenance.knows(source):
            self.provenance.copy(target, source)
        elif self.provenance.knows(target) or target.is_meta:
            value = None if source.is_meta else _only_value(source)
            if value is not None:
                self.provenance.fill(target, value)
            else:
                self.provenance.compute(target, "values that the engine makes itself", frozenset())

    def item(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """tensor.item(), and whatever makes a tensor a number of Python."""
        value = func(self.with_values(args[0]))
        self.last_item = (value, args[0]) if self.provenance.knows(args[0]) else None
        return value

    def equal(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """torch.equal, of tensors of any size: part by part; `equal_if_unknown` when nobody has their values."""
        first, second = args
        if first.shape != second.shape or not (first.is_meta or second.is_meta):
            return func(*args)
        if first.dim() == 0:
            return func(self.with_values(first), self.with_values(second))
        try:
            return self._equal_parts(func, first, second)
        except CheckError:
            if self.equal_if_unknown is None:
                raise
            return self.equal_if_unknown

    def _equal_parts(self, func: Any, first: torch.Tensor, second: torch.Tensor) -> bool:
        rows = max(1, _MOST_VALUES // 8 * first.shape[0] // max(1, first.numel()))
        parts = zip(first.split(rows), second.split(rows), strict=True)
        return all(func(self.with_values(a), self.with_values(b)) for a, b in parts)

    def is_unknown(self, index: torch.Tensor) -> bool:
        """Whether nobody can say what a tensor of indices holds."""
        if not index.is_meta or self.provenance.knows(index):
            return False
        if not self._numbers_have_values:
            raise NeedsNumbers
        return True


def forbid_kernels(tensor: torch.Tensor) -> None:
    """Whoever asks for the address of this tensor without data, to launch a kernel on it, gets an exception."""
    torch._C._set_throw_on_mutable_data_ptr(tensor)


def _needs_values(func: Any) -> bool:
    return bool({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags))


def _written(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    """The arguments that the operation writes to."""
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            yield from tensors_in(value)


def _only_value(tensor: torch.Tensor) -> bool | int | float | None:
    """The one value that all elements have, if they do."""
    if tensor.numel() == 0 or tensor.is_complex():
        return None
    flat = tensor.reshape(-1)
    # Bits are compared: 0.0 equals -0.0, and NaN nothing.
    bits = flat.view(torch.uint8).view(flat.numel(), -1)
    return flat[0].item() if bool((bits == bits[0]).all()) else None


def _strided(flat: torch.Tensor, shape: Any, strides: tuple[int, ...], offset: int) -> torch.Tensor:
    """`flat.as_strided`, which knows no negative strides."""
    reversed_dims = [dim for dim, stride in enumerate(strides) if stride < 0]
    for dim in reversed_dims:
        offset += (shape[dim] - 1) * strides[dim]
    part = flat.as_strided(shape, [abs(stride) for stride in strides], offset)
    return part.flip(reversed_dims) if reversed_dims else part


_HANDLERS: dict[Any, Callable[..., Any]] = {
    **HANDLERS,
    aten._local_scalar_dense: Recording.item,
    aten.equal: Recording.equal,
}
