"""Everything that cannot be read in place is refused by name, before anything is hashed or written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from capsules import Exporter
from memory import PAGE, Island
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parameter import UninitializedParameter
from truth import painted

from vllm_weight_checker import CheckError, NativeError, Rank, checksum, compare, reset
from vllm_weight_checker.errors import Status, TensorError


class Wrapper(torch.Tensor):
    """A subclass whose elements are what its dispatch says."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(3)


def freed(start: int) -> torch.Tensor:
    """A tensor whose storage was given up, as sharded training does between uses."""
    tensor = torch.ones(100_000)[start:]
    tensor.untyped_storage().resize_(0)
    return tensor


FORBIDDEN = Island()
"""Seven bytes before its end are the last that may be touched."""

# How each is made, what is said of it, and the way out that is offered.
BAD_TENSORS: dict[str, tuple[Callable[[], object], str]] = {
    "sparse": (lambda: torch.eye(3).to_sparse(), r"torch\.sparse_coo.*\.values\(\)"),
    "compressed sparse": (lambda: torch.eye(3).to_sparse_csr(), r"torch\.sparse_csr.*\.values\(\)"),
    "mkldnn": (lambda: torch.eye(3).to_mkldnn(), r"mkldnn.*\.to_dense\(\)"),
    "meta": (lambda: torch.empty(3, device="meta"), "meta device.*load the weights"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), r"nested.*\.unbind\(\)"),
    "jagged": (
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        "NestedTensor.*inner tensors",
    ),
    "fake": (fake, "FakeTensor.*__torch_dispatch__.*plain tensor"),
    "wrapper": (lambda: Wrapper(torch.ones(3)), "Wrapper.*__torch_dispatch__.*plain tensor"),
    "functional": (lambda: torch._to_functional_tensor(torch.ones(3)), "no memory.*holds its values"),
    "freed storage": (lambda: freed(0), "no memory.*holds its values"),
    "zero without memory": (lambda: torch._efficientzerotensor(3), "no memory.*holds its values"),
    "uninitialised": (UninitializedParameter, "cannot be read.*uninitialized parameter"),
    "conjugated": (lambda: torch.ones(3, dtype=torch.complex64).conj(), r"lazily.*\.resolve_conj\(\)"),
    "negated": (lambda: torch.ones(3, dtype=torch.complex64).conj().imag, r"lazily.*\.resolve_neg\(\)"),
    "packed and strided": (
        lambda: torch._empty_affine_quantized([4, 4], scale=1.0, zero_point=0, dtype=torch.quint4x2).t(),
        r"share bytes.*\.contiguous\(\)",
    ),
    "numpy of foreign byte order": (lambda: np.ones(3, ">f4"), r"foreign byte order.*\.astype\('<f4'\)"),
    "numpy objects": (lambda: np.array([object()]), "object.*array of numbers"),
    "numpy records": (lambda: np.zeros(3, [("a", "f4"), ("b", "i4")]), "array of numbers"),
    "numpy text": (lambda: np.array(["a", "b"]), "array of numbers"),
    "numpy dates": (lambda: np.array(["2026-01-01"], "M8[s]"), "array of numbers"),
    "numpy long double": (lambda: np.ones(3, np.longdouble), "array of numbers"),
    "numpy between elements": (
        lambda: np.zeros(4, [("flag", "u1"), ("weight", "<f4")])["weight"],
        "5.* bytes, no multiple of its 4-byte elements; pass a copy",
    ),
    "a list": (lambda: [1.0, 2.0], "list.*pass a torch tensor"),
    "None": (lambda: None, "NoneType.*pass a torch tensor"),
    "a number": (lambda: 1.5, "float.*pass a torch tensor"),
    "a module": (lambda: torch.nn.Linear(2, 2), "Linear.*pass a torch tensor"),
}

BAD_FOR_THE_LIBRARY: dict[str, tuple[Callable[[], object], Status]] = {
    "negative stride": (lambda: painted(8)[::-1], Status.NEGATIVE_STRIDE),
    "33 dimensions": (lambda: torch.ones([1] * 33), Status.BAD_NDIM),
    "negative shape": (lambda: Exporter(painted(8), shape=(-2,)), Status.NEGATIVE_SHAPE),
    "size beyond 63 bits": (lambda: Exporter(painted(8), shape=(2**40, 2**40)), Status.SIZE_OVERFLOW),
    "beyond the address space": (lambda: Exporter(painted(8), byte_offset=2**64 - 1), Status.OUT_OF_ADDRESS_SPACE),
    "opaque handles": (lambda: Exporter(painted(8), code=3, bits=64), Status.UNSUPPORTED_DTYPE),
    "floats of 24 bits": (lambda: Exporter(painted(8), code=2, bits=24), Status.UNSUPPORTED_DTYPE),
    "rocm": (lambda: Exporter(painted(8), device_type=10), Status.UNSUPPORTED_DEVICE),
    "half a byte": (lambda: Exporter(painted(7), code=17, bits=4), Status.UNSUPPORTED_LAYOUT),
    "no memory": (lambda: Exporter(painted(8), data=None), Status.NULL_POINTER),
    "freed storage behind its begin": (lambda: freed(5), Status.UNMAPPED_MEMORY),
    "unmapped": (lambda: Exporter(painted(8), data=PAGE), Status.UNMAPPED_MEMORY),
    "protected": (lambda: Exporter(painted(8), data=FORBIDDEN.address + PAGE - 7), Status.MEMORY_PROTECTED),
}


def every_call(tensors: dict[str, object]) -> list[Callable[[], object]]:
    baseline = {f"{Rank().prefix}{name}": "0" * 64 for name in tensors}
    return [lambda: checksum(tensors), lambda: reset(tensors), lambda: compare(tensors, baseline)]


@pytest.mark.parametrize("kind", BAD_TENSORS)
def test_tensors_without_elements_in_place_are_refused(kind: str) -> None:
    make, text = BAD_TENSORS[kind]
    good = torch.ones(3)
    for call in every_call({"good": good, "layer.bad": make()}):
        with pytest.raises(TensorError, match=f"tensor 'layer.bad' .*{text}"):
            call()
    assert good.all()


@pytest.mark.parametrize("kind", BAD_FOR_THE_LIBRARY)
def test_descriptions_that_the_library_refuses(kind: str) -> None:
    make, status = BAD_FOR_THE_LIBRARY[kind]
    good = torch.ones(3)
    for call in every_call({"good": good, "layer.bad": make()}):
        with pytest.raises(NativeError, match="layer.bad") as caught:
            call()
        assert caught.value.status is status
        assert status.name in str(caught.value)
    assert good.all()


@pytest.mark.parametrize("name", [7, None, "a\0b", "\ud800"], ids=repr)
def test_names_that_are_no_text(name: Any) -> None:
    for call in every_call({name: torch.ones(3)}):
        with pytest.raises(TensorError, match="the name"):
            call()


@pytest.mark.parametrize(
    "tensors", [torch.nn.Linear(2, 2), [torch.ones(2)], torch.ones(2), None], ids=lambda t: type(t).__name__
)
def test_tensors_that_are_no_mapping(tensors: Any) -> None:
    for call in (lambda: checksum(tensors), lambda: reset(tensors), lambda: compare(tensors, {"a": "b"})):
        with pytest.raises(TensorError, match=r"mapping of name to tensor, such as dict\(model.named_parameters\(\)\)"):
            call()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda t: checksum(t, algorithm="md5"), "algorithm 'md5' is not known; there is sha256"),
        (lambda t: compare(t, {"a": "b"}, algorithm="SHA256"), "algorithm 'SHA256'"),
        (lambda t: reset(t, "ones"), "fill 'ones' is not known; there is zero, random, poison"),
        (lambda t: reset(t, "random", -1), "seed -1"),
        (lambda t: reset(t, "random", 2**64), "seed 18446744073709551616"),
        (lambda t: checksum(t, threads=-1), "threads -1"),
        (lambda t: reset(t, threads=2**32), "threads 4294967296"),
        (lambda t: checksum(t, Rank(tp=-1)), "index -1"),
        (lambda t: compare(t, {"a": "b"}, Rank(dp=2**32)), "index 4294967296"),
    ],
)
def test_options_out_of_range(call: Callable[[Any], object], text: str) -> None:
    good = torch.ones(3)
    with pytest.raises(NativeError, match=text) as caught:
        call({"good": good})
    assert caught.value.status is Status.BAD_OPTION and good.all()


def test_an_error_leaves_nothing_behind() -> None:
    tensors = {"good": torch.ones(3)}
    before = checksum(tensors)
    with pytest.raises(CheckError):
        checksum({"bad": painted(8)[::-1]})
    assert checksum(tensors) == before


def test_messages_without_a_number_of_this_version_are_still_errors() -> None:
    error = NativeError(99, "something new")
    assert str(error) == "something new [99]"
