"""checksum gives what hashlib gives for the logical bytes, whatever the dtype, layout, length or place."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from memory import PAGE, Island
from truth import LAYOUTS, PACKED, PREFIX, SHAPE, TORCH_DTYPES, painted, sha256, twins

from vllm_weight_checker import Rank, checksum
from vllm_weight_checker._native import library
from vllm_weight_checker.tensors import describe

EDGES = sorted(
    {edge + step for edge in (4096, 65536, 262144, 1 << 20, 4 << 20) for step in (-65, -64, -1, 0, 1, 63, 64)}
)


def expect(tensors: dict[str, object], truth: dict[str, str], **options: int) -> None:
    assert checksum(tensors, **options) == {PREFIX + name: digest for name, digest in truth.items()}


@pytest.mark.parametrize("dtype", [dtype for dtype in TORCH_DTYPES if dtype not in PACKED], ids=str)
def test_every_dtype_in_every_layout(dtype: torch.dtype) -> None:
    tensor, array = twins(dtype, SHAPE)
    views = {name: torch_view(tensor) for name, (torch_view, _) in LAYOUTS.items()}
    expect(views, {name: sha256(numpy_view(array)) for name, (_, numpy_view) in LAYOUTS.items()})


@pytest.mark.parametrize("dtype", sorted(PACKED, key=str), ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (8,), (3, 5), (2, 3, 9)], ids=str)
def test_rows_of_packed_quantised_types_end_on_a_byte(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor, raw = twins(dtype, shape)
    expect({"packed": tensor}, {"packed": sha256(raw)})


def test_every_length_at_every_misalignment() -> None:
    raw = painted(1024)
    tensor = torch.from_numpy(raw)
    spans = {f"{length} at {start}": slice(start, start + length) for length in range(301) for start in range(0, 64, 7)}
    expect(
        {name: tensor[span] for name, span in spans.items()}, {name: sha256(raw[span]) for name, span in spans.items()}
    )


@pytest.mark.parametrize("length", EDGES)
def test_lengths_around_the_sizes_of_pieces(length: int) -> None:
    raw = painted(2 * length + 1)
    tensor = torch.from_numpy(raw)
    views = {
        "contiguous": tensor[1 : length + 1],
        "gathered": tensor[1::2],
        "reversed rows": tensor[:length].view(1, -1).t(),
    }
    truth = {
        "contiguous": sha256(raw[1 : length + 1]),
        "gathered": sha256(raw[1::2]),
        "reversed rows": sha256(raw[:length]),
    }
    expect(views, truth)


@pytest.mark.parametrize("threads", [0, 1, 2, 3, 16])
def test_the_number_of_threads_changes_nothing(threads: int) -> None:
    raw = painted(9 << 20)
    tensor = torch.from_numpy(raw)
    views = {
        "large": tensor,
        "columns": tensor.view(-1, 64).t(),
        **{f"small {n}": tensor[n : 3 * n] for n in range(50)},
    }
    truth = {
        "large": sha256(raw),
        "columns": sha256(raw.reshape(-1, 64).T),
        **{f"small {n}": sha256(raw[n : 3 * n]) for n in range(50)},
    }
    expect(views, truth, threads=threads)


def test_no_byte_outside_the_tensor_is_touched() -> None:
    island = Island()
    island.inside[:] = painted(PAGE)
    tensor = torch.from_numpy(island.inside)
    views, truth = {}, {}
    for length in range(1, 301):
        spans = {"last": slice(PAGE - length, PAGE), "first": slice(0, length)}
        spans["last strided"] = slice(PAGE - 1 - 3 * (length - 1), PAGE, 3)
        for name, span in spans.items():
            views[f"{name} {length}"], truth[f"{name} {length}"] = tensor[span], sha256(island.inside[span])
    expect(views, truth)


@pytest.mark.parametrize("ndim", [0, 1, 31, 32])
def test_every_number_of_dimensions(ndim: int) -> None:
    raw = painted(8)
    shape = [1] * max(0, ndim - 3) + [2] * min(3, ndim)
    count = int(np.prod(shape))
    expect({"x": torch.from_numpy(raw)[:count].reshape(shape)}, {"x": sha256(raw[:count])})


def test_no_elements_have_the_digest_of_no_bytes() -> None:
    empty = {
        "vector": torch.empty(0),
        "matrix": torch.empty(3, 0, dtype=torch.bfloat16),
        "parameter": torch.nn.Parameter(torch.empty(0)),
    }
    expect(empty, {name: sha256(b"") for name in empty})
    assert checksum({}) == {}


def test_keys_have_the_rank_and_keep_the_order_of_the_tensors() -> None:
    tensors = {name: torch.full((3,), index) for index, name in enumerate(["z", "a.b", "Gewicht ä 重み", "", "m"])}
    keys = list(checksum(tensors, Rank(dp=3, pp=2, pcp=1, tp=4294967295)))
    assert keys == [f"dp3:pp2:pcp1:tp4294967295:{name}" for name in tensors]


def test_tied_tensors_appear_under_every_name() -> None:
    raw = painted(64)
    tensor = torch.from_numpy(raw)
    expect(
        {"embed": tensor, "head": tensor, "half": tensor[:32]},
        {"embed": sha256(raw), "head": sha256(raw), "half": sha256(raw[:32])},
    )


def test_classes_that_only_watch_functions_are_read_past_them() -> None:
    """vLLM's parameter classes define `__torch_function__`, and keep their elements like any parameter."""

    class Watching(torch.nn.Parameter):
        @classmethod
        def __torch_function__(cls, func: object, types: object, args: object = (), kwargs: object = None) -> object:
            raise AssertionError(f"{func} was asked")

    tensor = torch.arange(6.0)
    watching = tensor.as_subclass(Watching)
    expect({"w": watching}, {"w": sha256(tensor.numpy())})


def test_raw_digests_are_those_of_the_keys() -> None:
    tensors = {f"w{n}": torch.from_numpy(painted(n * 100, n)) for n in range(20)}
    described = describe(tensors, writable=False)
    out = (ctypes.c_uint8 * (32 * len(tensors)))()
    assert library().wc_digest(described.address, described.count, None, out, len(out)) == 0
    assert bytes(out).hex() == "".join(sha256(painted(n * 100, n)) for n in range(20))


def test_same_answers_as_vllm() -> None:
    from vllm.model_executor.model_loader.weight_checksum import compute_tensor_digests

    model = torch.nn.TransformerEncoderLayer(64, 4, 128, dtype=torch.bfloat16)
    model.tied = torch.nn.Linear(3, 3)
    model.tied.weight = model.linear1.weight
    model.register_parameter("transposed", torch.nn.Parameter(torch.randn(40, 30).t()))
    digests = compute_tensor_digests(model)
    assert len(digests) > 10
    expect(dict(model.named_parameters()), digests)


@st.composite
def numpy_views(draw: st.DrawFn) -> tuple[str, tuple[int, ...], list[tuple[str, object]]]:
    """A dtype, a shape, and steps that make a view of it."""
    dtype = draw(st.sampled_from(["bool", "int8", "uint16", "bfloat16", "float32", "complex64", "complex128"]))
    shape = tuple(draw(st.lists(st.integers(0, 7), min_size=1, max_size=4)))
    slices = [
        slice(draw(st.integers(0, extent)), draw(st.integers(0, extent)), draw(st.integers(1, 3))) for extent in shape
    ]
    return dtype, shape, [("index", tuple(slices)), ("order", draw(st.permutations(range(len(shape)))))]


@given(numpy_views(), st.integers(0, 3), st.booleans(), st.integers(0, 100))
def test_any_view_of_any_shape(
    view: tuple[str, tuple[int, ...], list[tuple[str, object]]], threads: int, expand: bool, seed: int
) -> None:
    dtype, shape, steps = view
    tensor, array = twins(getattr(torch, dtype), shape, seed)
    for step, argument in steps:
        tensor = tensor[argument] if step == "index" else tensor.permute(*argument)
        array = array[argument] if step == "index" else array.transpose(argument)
    if expand:
        tensor, array = tensor.expand(2, *tensor.shape), np.broadcast_to(array, (2, *array.shape))
    expect({"view": tensor}, {"view": sha256(array)}, threads=threads)
