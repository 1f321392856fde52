"""reset overwrites exactly the elements of each view, with valid values that are the same on every run."""

from __future__ import annotations

import hashlib
import json
import mmap
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from capsules import BeforeVersions, Exporter
from hypothesis import given
from hypothesis import strategies as st
from memory import PAGE, Island
from truth import LAYOUTS, PACKED, QUANTISED, SHAPE, TORCH_DTYPES, painted, twins

from vllm_weight_checker import CheckError, NativeError, Rank, checksum, reset
from vllm_weight_checker.errors import Status

# fp4 has neither infinity nor NaN, and torch no way to its values.
FLOATS = [
    dtype
    for dtype in TORCH_DTYPES
    if (dtype.is_floating_point or dtype.is_complex) and dtype is not torch.float4_e2m1fn_x2
]
# In the fnuz kinds NaN is 0x80, so that 0xFF is a number.
WITHOUT_POISON = {torch.float8_e4m3fnuz, torch.float8_e5m2fnuz}


def parts(tensor: torch.Tensor) -> torch.Tensor:
    """The values of a floating or complex tensor in float64."""
    if tensor.dtype is torch.complex32:
        tensor = tensor.view(torch.float16)
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).double()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [dtype for dtype in TORCH_DTYPES if dtype not in PACKED], ids=str)
def test_only_the_elements_of_the_view_are_written(dtype: torch.dtype, layout: str) -> None:
    torch_view, numpy_view = LAYOUTS[layout]
    places = numpy_view(np.arange(np.prod(SHAPE)).reshape(SHAPE))
    outside = np.delete(np.arange(np.prod(SHAPE)), places)
    for fill in ("zero", "random", "poison"):
        tensor, array = twins(dtype, SHAPE)
        before = array.flatten()
        report = reset({"view": torch_view(tensor)}, fill)
        assert report == {"tensors": 1, "written": 1, "shared": 0, "bytes": places.size * array.itemsize}
        after = array.flatten()
        assert after[outside].tobytes() == before[outside].tobytes()
        if fill == "random":
            assert places.size < 10 or after[places].tobytes() != before[places].tobytes()
        else:
            assert set(after[places].tobytes()) <= {0x00 if fill == "zero" else 0xFF}


@pytest.mark.parametrize("dtype", sorted(PACKED, key=str), ids=str)
def test_packed_quantised_types_are_written_whole(dtype: torch.dtype) -> None:
    tensor, raw = twins(dtype, (3, 5))
    reset({"packed": tensor}, "poison")
    assert set(raw.tobytes()) == {0xFF}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_random_floats_are_finite_and_poisoned_ones_are_not(dtype: torch.dtype) -> None:
    tensor = torch.empty(100_000, dtype=dtype)
    reset({"w": tensor}, "random")
    assert torch.isfinite(parts(tensor)).all()
    assert len(parts(tensor).unique()) > 60
    reset({"w": tensor}, "poison")
    assert torch.isnan(parts(tensor)).all() == (dtype not in WITHOUT_POISON)


def test_random_bools_are_both_0_and_1() -> None:
    tensor = torch.empty(10_000, dtype=torch.bool)
    reset({"w": tensor}, "random")
    values, counts = tensor.view(torch.uint8).unique(return_counts=True)
    assert values.tolist() == [0, 1] and counts.min() > 4_000


@pytest.mark.parametrize("dtype", [dtype for dtype in TORCH_DTYPES if dtype not in QUANTISED], ids=str)
def test_random_bytes_are_spread_evenly_over_valid_ones(dtype: torch.dtype) -> None:
    tensor = torch.empty(1 << 16, dtype=dtype)
    reset({"w": tensor}, "random")
    words = tensor.view(torch.uint8).numpy().reshape(-1, tensor.element_size())
    changing = np.bitwise_or.reduce(words, axis=0) & ~np.bitwise_and.reduce(words, axis=0)
    ones = np.unpackbits(words, axis=1).mean(axis=0)[np.unpackbits(changing) == 1]
    assert len(ones) > 0 and np.abs(ones - 0.5).max() < 0.02


def random_digests() -> dict[str, str]:
    """Digests of a few tensors after a random reset; also run in a process of its own."""
    made: dict[str, Any] = {
        "weight": torch.zeros(300, 200, dtype=torch.bfloat16),
        "other": torch.zeros(300, 200, dtype=torch.bfloat16),
        "flags": torch.zeros(1001, dtype=torch.bool),
        "scales": torch.zeros(3, 7, dtype=torch.float8_e8m0fnu).t(),
    }
    reset(made, "random", seed=2**64 - 1)
    return checksum(made)


# It stays in this folder, since PYTHONPATH and the library's path may be relative to it.
RANDOM_DIGESTS = """
import json, sys
sys.path.insert(0, sys.argv[1])
from test_reset import random_digests
print(json.dumps(random_digests()))
"""


def test_random_bytes_are_the_same_on_every_run_and_differ_by_name_and_seed() -> None:
    here = random_digests()
    command = [sys.executable, "-c", RANDOM_DIGESTS, str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == here
    assert len(set(here.values())) == len(here)
    tensor = torch.zeros(100)
    seen = set()
    for seed in (0, 1, 2**64 - 1):
        reset({"weight": tensor}, "random", seed)
        seen.add(tensor.numpy().tobytes())
    assert len(seen) == 3


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_random_values_follow_the_logical_order_whatever_the_layout_and_threads(threads: int) -> None:
    contiguous, transposed = torch.zeros(60, 50), torch.zeros(50, 60).t()
    gaps = torch.zeros(60, 100)[:, ::2]
    for tensor in (contiguous, transposed, gaps):
        reset({"w": tensor, "beside": torch.zeros(1000)}, "random", threads=threads)
    assert torch.equal(contiguous, transposed) and torch.equal(contiguous, gaps)
    assert hashlib.sha256(contiguous.numpy()).hexdigest() != hashlib.sha256(torch.zeros(60, 50).numpy()).hexdigest()


def test_shared_memory_is_written_once() -> None:
    storage = torch.ones(100)
    tied = {"embed": storage, "head": storage[:], "as rows": storage.view(10, 10), "apart": torch.ones(5)}
    assert reset(tied, "random") == {"tensors": 4, "written": 2, "shared": 2, "bytes": 420}
    alone = torch.ones(100)
    reset({"embed": alone}, "random")
    assert torch.equal(storage, alone)


def test_views_that_overlap_in_part_are_all_written() -> None:
    storage = torch.ones(100)
    report = reset({"left": storage[:60], "right": storage[40:], "odd": storage[1::2]}, "zero")
    assert report == {"tensors": 3, "written": 3, "shared": 0, "bytes": 4 * (60 + 60 + 50)}
    assert not storage.any()


def test_requires_grad_and_inference_tensors_can_be_reset() -> None:
    parameter = torch.nn.Parameter(torch.ones(5))
    with torch.inference_mode():
        inference = torch.ones(5)
    reset({"parameter": parameter, "inference": inference})
    assert not parameter.any() and not inference.any()


def test_nothing_to_reset() -> None:
    counts = {"written": 0, "shared": 0, "bytes": 0}
    assert reset({}) == {"tensors": 0, **counts}
    assert reset({"empty": torch.empty(0, 3)}) == {"tensors": 1, **counts, "written": 1}


@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    steps=st.lists(st.integers(1, 3), min_size=4, max_size=4),
    starts=st.lists(st.integers(0, 5), min_size=4, max_size=4),
    itemsize=st.sampled_from([1, 2, 4, 8]),
    data=st.data(),
)
def test_zeroing_any_view_is_what_numpy_does(
    shape: list[int], steps: list[int], starts: list[int], itemsize: int, data: st.DataObject
) -> None:
    array = painted(int(np.prod(shape)) * itemsize).view(f"u{itemsize}").reshape(shape)
    expected = array.copy()
    index = tuple(slice(start, None, step) for _, start, step in zip(shape, starts, steps))
    axes = data.draw(st.permutations(range(len(shape))))
    expected[index].transpose(axes)[...] = 0
    reset({"view": array[index].transpose(axes)})
    assert np.array_equal(array, expected)


def readonly_array() -> np.ndarray[Any, Any]:
    array = painted(64)
    array.flags.writeable = False
    return array


class ReadonlyInterface:
    __array_interface__ = {"version": 3, "typestr": "|u1", "shape": (64,), "data": bytes(64)}


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (readonly_array(), "marked read-only"),
        (Exporter(painted(64), flags=1), "exported it read-only"),
        (Exporter(painted(64), flags=2), "exported a copy"),
        (ReadonlyInterface(), "marked read-only"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_readonly_tensors_are_read_but_not_written(tensor: object, text: str) -> None:
    good = torch.ones(3)
    assert len(checksum({"good": good, "frozen": tensor})) == 2
    with pytest.raises(CheckError, match="'frozen' is read-only.*" + text):
        reset({"good": good, "frozen": tensor})
    assert good.all()


@pytest.mark.parametrize("through", [torch.from_numpy, BeforeVersions])
def test_memory_that_must_not_be_written_is_refused_before_anything_is(through: Any) -> None:
    island = Island()
    tensor = through(island.inside)
    island.make_readonly()
    good = torch.ones(3)
    assert len(checksum({"good": good, "frozen": tensor})) == 2
    with pytest.raises(NativeError, match="'frozen'") as caught:
        reset({"good": good, "frozen": tensor})
    assert caught.value.status is Status.MEMORY_PROTECTED and good.all()


def test_memory_of_a_file_opened_for_reading_is_refused() -> None:
    with open(__file__, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        tensor = torch.frombuffer(mapped, dtype=torch.uint8)
        assert list(checksum({"x": tensor}).values()) == [hashlib.sha256(mapped).hexdigest()]
        with pytest.raises(NativeError, match="'x'") as caught:
            reset({"x": tensor})
        assert caught.value.status is Status.MEMORY_PROTECTED
        del tensor


def test_the_last_byte_before_a_forbidden_page_is_written() -> None:
    island = Island()
    for length in range(1, 70):
        island.inside[:] = 7
        reset({"end": island.inside[PAGE - length :]})
        assert island.inside.sum(dtype=int) == 7 * (PAGE - length)


def test_a_numpy_scalar_shows_a_copy_and_is_refused() -> None:
    scalar = np.float32(2)
    assert checksum({"t": scalar})[Rank().prefix + "t"] == hashlib.sha256(scalar.tobytes()).hexdigest()
    with pytest.raises(CheckError, match="'t' is read-only .*copy"):
        reset({"t": scalar})
