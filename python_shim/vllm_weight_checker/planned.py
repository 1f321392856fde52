"""The verbs on a plan, which need no engine: expect, audit. And what a trainer's tensors are, for making a plan.

`plans` says what a plan is; here it is a mapping or the JSON text of one. Errors are those of `verbs`, and
`NativeError` with the status BAD_PLAN, BAD_CHECKPOINT, MISSING_SOURCE or SOURCE_MISMATCH.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import _native
from ._native import Options, Progress
from .dtypes import BY_NAME
from .errors import CheckError, NativeError, Status, TensorError
from .pickled import is_pickled, open_pickled
from .plans import Plan, parse, text_of
from .report import Report
from .tensors import NO_TENSORS, describe

Source = Mapping[str, object] | str | os.PathLike[str]


def expect(
    plan: Plan,
    source: Source,
    *,
    algorithm: str = "sha256",
    threads: int = 0,
    progress: Progress | None = None,
) -> dict[str, str]:
    """The digests that each rank must hold once it has loaded the source: {key: digest}, a baseline.

    Holds every parameter whose bytes the plan determines: those of which each element is written, and none
    is computed by the engine. Some of them the engine rewrites after loading; `verify` tells those apart.
    Blocks until done, without holding the GIL, on up to `threads` cores (0: all that this process may
    use), and keeps no copy of weights.

    Args:
        plan: of one or many ranks; a mapping, or its JSON text.
        source: the path of a checkpoint (a folder with safetensors or with pytorch_model.bin files, or one
            .safetensors file), or a mapping of name to tensor, as for `checksum`. More tensors than the plan
            names do no harm. Nobody may change files or tensors meanwhile.

    Raises:
        CheckError: also when the plan determines no parameter at all.
    """
    text, options = _bytes_of(plan), Options(algorithm, threads, progress)
    if isinstance(source, Mapping):
        tensors = describe(_named_by(plan, source), writable=False)
        if tensors.elsewhere:
            name, tensor = next(iter(tensors.elsewhere.items()))
            raise TensorError(f"tensor {name!r} is on the device {tensor.device}, out of reach; pass .cpu() of it")
        return _native.expect(text, None, tensors, options)
    path = _path_of(source)
    if is_pickled(path):
        return _native.expect(text, None, describe(open_pickled(path), writable=False), options)
    return _native.expect(text, os.fsencode(path), NO_TENSORS, options)


def audit(plan: Plan) -> Report:
    """Looks for what a plan of all ranks places wrongly, without any weights.

    Returns:
        `complete`: whether every element of every source is placed somewhere (or its tensor is named as
        unused), and every element of every parameter is written by one source. The faults otherwise:
        `unplaced` (sources that no rank takes), `partly_placed`, `unwritten` (elements of parameters),
        `overlapping`, `past_the_end`. `replicas` are ranks that hold the same. Counts: `ranks`,
        `parameters`, `pieces`, `sources` = `placed` + len(`unplaced`). The README tells more.
    """
    return Report(_native.audit(_bytes_of(plan)))


def sources_of(tensors: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What a plan's sources say of tensors: {name: {"dtype", "shape"}}; a value may be that already.

    Raises:
        TensorError: one of them has no name, shape or dtype that a plan could name.
    """
    if not isinstance(tensors, Mapping):
        raise TensorError(f"the state dict is a {type(tensors).__qualname__}; pass a mapping of name to tensor")
    if not tensors:
        raise TensorError("the state dict is empty, so no weight can be from it")
    sources = {}
    for name, tensor in tensors.items():
        told = tensor if isinstance(tensor, Mapping) else {of: getattr(tensor, of, None) for of in ("dtype", "shape")}
        # Of torch, numpy and those like them: "torch.bfloat16", "bfloat16"
        dtype = str(told.get("dtype")).removeprefix("torch.")
        try:
            shape = list(map(operator.index, told.get("shape")))  # type: ignore[arg-type]
        except TypeError:
            shape = [-1]
        if not isinstance(name, str) or dtype not in BY_NAME or min(shape, default=0) < 0:
            raise TensorError(
                f"{name!r} of the state dict is a {type(tensor).__qualname__} of dtype {told.get('dtype')} and shape "
                f"{told.get('shape')}; pass names with tensors of a known dtype"
            )
        sources[name] = {"dtype": dtype, "shape": shape}
    return sources


def _named_by(plan: Plan, tensors: Mapping[str, object]) -> Mapping[str, object]:
    """The tensors that the plan names. A state dict may hold other things, on other devices."""
    try:
        sources = parse(plan)["sources"]
    except CheckError as error:
        raise NativeError(Status.BAD_PLAN, str(error)) from error
    return {name: tensor for name, tensor in tensors.items() if name in sources}


def _bytes_of(plan: Plan) -> bytes:
    if not isinstance(plan, (str, Mapping)):
        what = f"the plan is a {type(plan).__qualname__}; pass the mapping that it is, or its JSON text"
        raise NativeError(Status.BAD_PLAN, what)
    try:
        text = text_of(plan).encode()
    except (CheckError, UnicodeEncodeError) as error:
        raise NativeError(Status.BAD_PLAN, str(error)) from error
    if b"\0" in text:
        raise NativeError(Status.BAD_PLAN, "the plan holds a NUL character, so it is no JSON text")
    return text


def _path_of(source: object) -> Path:
    if not isinstance(source, (str, os.PathLike)):
        raise CheckError(
            f"the source is a {type(source).__qualname__}; pass a checkpoint's path, or a mapping of name to tensor"
        )
    path = os.fspath(source)
    if not isinstance(path, str) or not path or "\0" in path:
        raise NativeError(Status.BAD_CHECKPOINT, f"the checkpoint {path!r} is no path")
    return Path(path)
