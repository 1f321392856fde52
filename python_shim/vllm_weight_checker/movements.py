"""Operations of torch that make memory or move elements, and what each means for where values come from.

Each function takes the `Recording`, and an operation with its arguments as torch dispatches it; it gives the
operation's result. Everything that is not here is a view, or a computation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_flatten, tree_map_only

from .regions import MOST_PIECES

if TYPE_CHECKING:
    from .recording import Recording

aten = torch.ops.aten


def copy_(recording: Recording, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    target, source = args[0], args[1]
    recording.copied(target, source)
    if not target.is_meta and (source := recording.values_if_any(source)) is not None:
        target.copy_(source)
    return target


def fill_(recording: Recording, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    target = args[0]
    value = args[1] if len(args) > 1 else 0
    item, recording.last_item = recording.last_item, None
    if isinstance(value, torch.Tensor):
        return copy_(recording, func, (target, value), {})
    if item is not None and target.numel() == 1 and (item[0] is value or item[0] == value):
        # parameter.fill_(loaded.item())
        recording.provenance.copy(target, item[1].reshape(target.shape))
    elif target.is_meta or recording.provenance.knows(target):
        recording.provenance.fill(target, value)
    return func(*args, **kwargs)


def constant(recording: Recording, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """zeros, ones, full and what is called so with new_ or _like."""
    result = factory(recording, func, args, kwargs)
    name = func.overloadpacket.__name__
    value = args[1 + ("new" in name or "like" in name) - ("like" in name)] if "full" in name else int("ones" in name)
    if not isinstance(value, torch.Tensor):
        recording.provenance.fill(result, value)
    return result


def factory(recording: Recording, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """New memory; large memory is on meta, and none is on an accelerator."""
    on_meta = (
        any(tensor.is_meta for tensor in tensors_in(args)) or torch.device(kwargs.get("device") or "cpu").type == "meta"
    )
    kwargs["device"] = torch.device("meta" if on_meta else "cpu")
    kwargs.pop("pin_memory", None)
    if not on_meta:
        bare = func(*args, **{**kwargs, "device": torch.device("meta")})
        if bare.numel() > recording.small:
            return bare
    return func(*args, **kwargs)


def numbers(recording: Recording, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """arange and its kind: they may become indices, so they always have data."""
    return func(*args, **{**kwargs, "device": torch.device("cpu"), "pin_memory": False})


def clone(recording: Recording, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """clone, and conversions of dtype or device; no data goes to a device."""
    source = args[0]
    if "device" in kwargs:
        kwargs["device"] = torch.device("meta") if source.is_meta else torch.device("cpu")
    kwargs.pop("pin_memory", None)
    result = func(*args, **kwargs)
    if recording.provenance.knows(source):
        recording.provenance.copy(result, source)
    return result


def cat(recording: Recording, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = list(args[0])
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    if not any(map(recording.provenance.knows, tensors)):
        return func(*args, **kwargs)
    if are_mixed(tensors):
        tensors = list(map(recording.without_data, tensors))
    result = func(tensors, dim)
    if func.overloadpacket is aten.stack:
        parts = zip(result.unbind(dim), tensors, strict=True)
    else:
        tensors = [tensor for tensor in tensors if tensor.shape != (0,)]  # which cat leaves out
        parts = zip(result.split([tensor.shape[dim] for tensor in tensors], dim), tensors, strict=True)
    for target, source in parts:
        recording.copied(target, source)
    return result


def index_select(recording: Recording, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    source, dim, index = args[:3]
    if not recording.provenance.knows(source) or recording.is_unknown(index):
        return recording.other(func, args, kwargs)
    runs = list(_runs(recording.with_values(index).reshape(-1).tolist(), source.shape[dim]))
    if len(runs) > MOST_PIECES:
        return recording.other(func, args, kwargs)
    result = func(*_bare(args), **kwargs)
    for at, start, count, step in runs:
        recording.provenance.copy(result.narrow(dim, at, count), _stepped(source, dim, start, count, step))
    return result


def index(recording: Recording, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """tensor[..., numbers, ...] with one tensor of numbers or of bools."""
    source, indices = args[0], list(args[1])
    given = [dim for dim, index in enumerate(indices) if index is not None]
    if not recording.provenance.knows(source) or len(given) != 1 or recording.is_unknown(indices[given[0]]):
        return recording.other(func, args, kwargs)
    dim, index = given[0], recording.with_values(indices[given[0]])
    if index.dtype in (torch.bool, torch.uint8):
        if index.dim() != 1:
            return recording.other(func, args, kwargs)
        index = index.nonzero().reshape(-1)
    index = torch.where(index < 0, index + source.shape[dim], index)
    shape = (*source.shape[:dim], *index.shape, *source.shape[dim + 1 :])
    flat = index_select(recording, aten.index_select.default, (source, dim, index.reshape(-1)), {})
    return flat.reshape(shape)


def flip(recording: Recording, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    source, dims = args[0], args[1]
    result = func(*args, **kwargs)
    if recording.provenance.knows(source):
        recording.provenance.copy(result, source, reversed_dims=tuple(dim % source.dim() for dim in dims))
    return result


def roll(recording: Recording, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    source, shifts = args[0], args[1]
    dims = args[2] if len(args) > 2 else kwargs.get("dims", ())
    if not recording.provenance.knows(source):
        return func(*args, **kwargs)
    result = source if dims else source.reshape(-1)
    for shift, dim in zip(shifts, dims or (0,), strict=True):
        last = shift % max(1, result.shape[dim])
        parts = (
            result.narrow(dim, result.shape[dim] - last, last),
            result.narrow(dim, 0, result.shape[dim] - last),
        )
        result = cat(recording, aten.cat.default, (parts, dim), {})
    return result.reshape(source.shape)


def repeat(recording: Recording, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    source, repeats = args[0], args[1]
    result = func(*args, **kwargs)
    if recording.provenance.knows(source):
        added = len(repeats) - source.dim()
        source = source.reshape((1,) * added + tuple(source.shape))
        # Every extent becomes (repeats, extent), the first of which is read again and again.
        split = [extent for pair in zip(repeats, source.shape, strict=True) for extent in pair]
        once = [extent for each in source.shape for extent in (1, each)]
        recording.provenance.copy(result.view(split), source.reshape(once))
    return result


def pad(recording: Recording, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    source, padding = args[0], args[1]
    value = args[2] if len(args) > 2 else kwargs.get("value", 0)
    result = func(*args, **kwargs)
    if recording.provenance.knows(source):
        recording.provenance.fill(result, value)
        inner_target, inner_source = result, source
        for number in range(len(padding) // 2):
            dim = source.dim() - 1 - number
            before, after = padding[2 * number : 2 * number + 2]
            inner_source = inner_source.narrow(dim, max(0, -before), source.shape[dim] + min(0, before) + min(0, after))
            inner_target = inner_target.narrow(dim, max(0, before), inner_source.shape[dim])
        recording.provenance.copy(inner_target, inner_source)
    return result


def index_put_(recording: Recording, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """target[..., numbers, ...] = source, with one tensor of numbers."""
    target, indices, source = args[0], list(args[1]), args[2]
    given = [dim for dim, index in enumerate(indices) if index is not None]
    adds = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    if not (recording.provenance.knows(target) or recording.provenance.knows(source)):
        return func(*args, **kwargs)
    one = len(given) == 1 and not adds and not recording.is_unknown(indices[given[0]])
    index = recording.with_values(indices[given[0]]) if one else None
    if index is None or index.dim() != 1:
        return recording.other(func, args, kwargs)
    if index.dtype in (torch.bool, torch.uint8):
        index = index.nonzero().reshape(-1)
    dim, indices = given[0], index.tolist()
    runs = list(_runs(indices, target.shape[dim]))
    if len(runs) > MOST_PIECES or len(set(indices)) < len(indices):
        return recording.other(func, args, kwargs)
    source = source.expand((*target.shape[:dim], len(indices), *target.shape[dim + 1 :]))
    for at, start, count, step in runs:
        part = _stepped(target, dim, start, count, step)
        copy_(recording, aten.copy_.default, (part, source.narrow(dim, at, count)), {})
    return target


def tensors_in(*values: Any) -> list[torch.Tensor]:
    return [value for value in tree_flatten(values)[0] if isinstance(value, torch.Tensor)]


def are_mixed(tensors: list[torch.Tensor]) -> bool:
    """Whether torch would refuse them together: some have data and others are on meta."""
    return len({tensor.is_meta for tensor in tensors if tensor.dim() or tensor.is_meta}) > 1


def _stepped(tensor: torch.Tensor, dim: int, start: int, count: int, step: int) -> torch.Tensor:
    """The view of `count` indices of dimension `dim`: start, start + step ...; a step of 0 repeats one."""
    if step == 0:
        shape = list(tensor.shape)
        shape[dim] = count
        return tensor.narrow(dim, start, 1).expand(shape)
    if step < 0:
        raise AssertionError("runs never fall")
    last = start + (count - 1) * step
    view = tensor.narrow(dim, start, last - start + 1)
    return view[(slice(None),) * (dim % tensor.dim()) + (slice(None, None, step),)]


def _runs(indices: list[int], extent: int) -> Iterator[tuple[int, int, int, int]]:
    """(position, first, count, step) of the stretches of `indices` that rise evenly, or stay."""
    indices = [index + extent if index < 0 else index for index in indices]
    at = 0
    while at < len(indices):
        count, step = 1, 1
        if at + 1 < len(indices) and indices[at + 1] >= indices[at]:
            step = indices[at + 1] - indices[at]
            while at + count < len(indices) and indices[at + count] - indices[at + count - 1] == step:
                count += 1
        yield at, indices[at], count, step
        at += count


def _bare(args: Any) -> Any:
    """Arguments of which all or none are on meta."""
    if not are_mixed(tensors_in(args)):
        return args
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), args)


HANDLERS: dict[Any, Callable[..., Any]] = {
    aten.copy_: copy_,
    aten.fill_: fill_,
    aten.zero_: fill_,
    **dict.fromkeys(
        (aten.zeros, aten.ones, aten.full, aten.new_zeros, aten.new_ones, aten.new_full)
        + (aten.zeros_like, aten.ones_like, aten.full_like),
        constant,
    ),
    **dict.fromkeys((aten.empty, aten.empty_strided, aten.new_empty, aten.new_empty_strided, aten.empty_like), factory),
    **dict.fromkeys((aten.arange, aten.linspace, aten.eye, aten.scalar_tensor), numbers),
    **dict.fromkeys((aten.clone, aten._to_copy), clone),
    **dict.fromkeys((aten.cat, aten.stack), cat),
    aten.index_select: index_select,
    aten.index: index,
    aten.flip: flip,
    aten.roll: roll,
    aten.repeat: repeat,
    aten.constant_pad_nd: pad,
    aten.index_put_: index_put_,
}
"""What only moves elements, or asks for them. Everything else is a view or a computation."""
