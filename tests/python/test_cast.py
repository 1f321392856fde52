"""Casts beside torch: every pair of types, and constants.

torch converts in vectors what lies side by side, and what is left over one by one. The two differ in NaN's payload, and
vectors of other processors may. Floats that do not fit into an integer are undefined in C++; with x86's vectors torch's
answer is always the same one. So all bits are compared where torch has those vectors, in tensors that fill them, by one
thread; elsewhere NaN and what is undefined are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from test_expect_native import KEY, document, expect, name_of, sha256

from vllm_weight_checker import NativeError
from vllm_weight_checker.errors import Status

FLOATS = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
]
INTEGERS = [
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
]
TYPES = [*FLOATS, *INTEGERS, torch.bool]
SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
VECTORS = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
# Elements that fill whole vectors of every type.
BLOCK = 512

NUMBERS: list[Any] = [
    *(0.0, -0.0, 1.5, -1.5, 0.1, 1 / 3, 1e-8, 1e-45, 1 + 2**-8 + 2**-40, 1 + 2**-11 + 2**-40, 127.9, 255.5, -128.5),
    *(448.0, 449.0, 480.0, 57344.0, 57345.0, 65504.0, 65519.0, 65520.0, 1e5, 3e38, 3.39e38, 3.5e38, -3.5e38, 1e300),
    *(float("inf"), float("-inf"), float("nan"), 2.0**31, 2.0**32, 2.0**63, -(2.0**63), 2.0**64, -1e19),
    *(0, 1, -1, 127, 128, -128, -129, 255, 256, -255, -256, 32767, 32768, -32769, 65535, 65536, -65535, -65536, 449),
    *(57345, 65505, 2**24 + 1, 2**31 - 1, 2**31, -(2**31) - 1, 2**32 - 1, 2**32, -(2**32), 2**53 + 1, 2**63 - 1),
    *(-(2**63), 2**63, 2**63 + 2**39 + 1, 2**64 - 1, True, False),
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads would share a tensor out in parts that do not fill vectors."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def patterns(dtype: torch.dtype) -> torch.Tensor:
    """Every pattern of 8 or 16 bits; of more, each upper half with edges below it, random ones and plain numbers."""
    if dtype == torch.bool:
        return torch.arange(BLOCK).remainder(2).to(torch.bool)
    bits = 8 * dtype.itemsize
    if bits <= 16:
        return torch.arange(max(BLOCK, 1 << bits)).to(SIGNED[dtype.itemsize]).view(dtype)
    dice = torch.Generator().manual_seed(bits)
    step = 1 << (bits - 16)
    upper = torch.arange(1 << 16) * step
    # Halfway between neighbours of 16 bits, of float16's and of float32's mantissa, and around it.
    halves = [step // 2, step // 16, step // 8, 3 * step // 16, *([1 << 28] if bits == 64 else [])]
    edges = [0, 1, step - 1, *(half + off for half in halves for off in (-1, 0, 1))]
    whole = torch.randint(-(1 << (bits - 1)), (1 << (bits - 1)) - 1, (1 << 16,), generator=dice)
    small = torch.randint(-70_000, 70_000, (1 << 16,), generator=dice)
    normal = torch.randn(1 << 16, generator=dice, dtype=torch.float64).mul(4).exp()
    wide = normal if bits == 64 else normal.float()
    numbers = [(upper + edge).to(SIGNED[dtype.itemsize]) for edge in edges]
    numbers += [whole.to(SIGNED[dtype.itemsize]), small.to(SIGNED[dtype.itemsize]), wide.view(SIGNED[dtype.itemsize])]
    if bits == 64:
        single = torch.randint(-(1 << 31), 1 << 31, (1 << 16,), generator=dice).to(torch.int32).view(torch.float32)
        exact = single.double().view(torch.int64)
        numbers += [exact, exact + 1, exact - 1]
    return torch.cat(numbers).view(dtype)


def defined(source: torch.Tensor, to: torch.dtype) -> torch.Tensor:
    """`source`, with zeros for what torch converts in one way here and in another there."""
    if VECTORS or source.dtype not in FLOATS:
        return source
    value = source.double()
    undefined = value.isnan()
    if to in INTEGERS:
        bounds = torch.iinfo(to)
        undefined = undefined | (value.trunc() < bounds.min) | (value.trunc() > bounds.max) | (value.abs() >= 2.0**63)
    return value.masked_fill(undefined, 0).to(source.dtype)


def copied(source: str, offset: int, shape: list[int], to: torch.dtype) -> dict[str, Any]:
    where = {"source": source, "source_offset": offset, "source_strides": [1] * len(shape)}
    piece = {**where, "shape": shape, "offset": 0, "strides": [1] * len(shape)}
    return {"dtype": name_of(to), "shape": shape, "pieces": [piece]}


def first_difference(source: torch.Tensor, truth: torch.Tensor) -> str:
    """Which element is another one in the library than in torch's `truth`."""
    start, length = 0, len(truth)
    while length > 1:
        part = max(length // 256, 1)
        parts = {
            str(at): copied("x", at, [min(part, start + length - at)], truth.dtype)
            for at in range(start, start + length, part)
        }
        ours = expect(document({"x": source}, parts), {"x": source})
        start = next(at for at in map(int, parts) if ours[KEY + str(at)] != sha256(truth[at : at + part]))
        length = len(truth[start : start + part])
    bits = [tensor[start : start + 1].view(torch.uint8).tolist() for tensor in (source, truth)]
    return f"element {start}: {source[start]}, bytes {bits[0]}, is {truth[start]}, bytes {bits[1]}, in torch"


@pytest.mark.parametrize("source", TYPES, ids=name_of)
def test_every_bit_is_torchs(source: torch.dtype) -> None:
    values = patterns(source)
    assert len(values) % BLOCK == 0
    targets = [to for to in TYPES if to != source]
    sources = {name_of(to): defined(values, to) for to in targets}
    truth = {name_of(to): torch.empty(len(values), dtype=to).copy_(sources[name_of(to)]) for to in targets}
    parameters = {name: copied(name, 0, [len(values)], held.dtype) for name, held in truth.items()}
    ours = expect(document(sources, parameters), sources)
    different = [name for name, held in truth.items() if ours[KEY + name] != sha256(held)]
    assert not different, {name: first_difference(sources[name], truth[name]) for name in different}


def number(value: Any) -> Any:
    """As a plan writes it."""
    return str(value) if value != value or value in (float("inf"), float("-inf")) else value


@pytest.mark.parametrize("to", TYPES, ids=name_of)
def test_constants_are_what_fill_writes(to: torch.dtype) -> None:
    for value in NUMBERS:
        for via in (None, torch.float16, torch.bfloat16, torch.int16, torch.float32):
            steps = [] if via is None else [name_of(via)]
            piece = {"constant": number(value), "shape": [1], "offset": 0, "strides": [1], "via": steps}
            plan = document({}, {"p": {"dtype": name_of(to), "shape": [1], "pieces": [piece]}})
            try:
                filled = torch.empty(1, dtype=via or to).fill_(value)
            except (RuntimeError, OverflowError):
                with pytest.raises(NativeError) as refused:
                    expect(plan, {})
                assert refused.value.status == Status.BAD_PLAN, (value, via)
                continue
            whole = defined(filled, to).repeat(BLOCK)
            if VECTORS or torch.equal(whole, filled.repeat(BLOCK)):
                held = torch.empty(BLOCK, dtype=to).copy_(whole)[:1] if via else filled
                assert expect(plan, {})[KEY + "p"] == sha256(held), (value, via)
