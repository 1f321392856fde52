"""Tensors that are not torch's: numpy, ml_dtypes, DLPack and __array_interface__, each in place."""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from capsules import BeforeVersions, Exporter, Forwarding, name_of
from truth import LAYOUTS, PREFIX, SHAPE, painted, sha256, twins

from vllm_weight_checker import CheckError, checksum, reset

NUMPY_DTYPES = ["bool", *(f"{kind}int{bits}" for kind in ("", "u") for bits in (8, 16, 32, 64))]
NUMPY_DTYPES += ["float16", "float32", "float64", "complex64", "complex128"]
ML_DTYPES = sorted(
    name
    for name in dir(ml_dtypes)
    if isinstance(getattr(ml_dtypes, name), type) and hasattr(getattr(ml_dtypes, name), "dtype")
)


def digest(tensor: object) -> str:
    return checksum({"x": tensor})[PREFIX + "x"]


def numpy_dtypes() -> list[np.dtype[Any]]:
    return [np.dtype(name) for name in NUMPY_DTYPES] + [np.dtype(getattr(ml_dtypes, name)) for name in ML_DTYPES]


def test_ml_dtypes_were_found() -> None:
    assert {"bfloat16", "float8_e4m3fn", "float8_e8m0fnu", "float4_e2m1fn", "int4"} <= set(ML_DTYPES)


@pytest.mark.parametrize("dtype", numpy_dtypes(), ids=str)
def test_every_numpy_dtype_in_every_layout(dtype: np.dtype[Any]) -> None:
    array = painted(int(np.prod(SHAPE)) * dtype.itemsize).view(dtype).reshape(SHAPE)
    views = {name: numpy_view(array) for name, (_, numpy_view) in LAYOUTS.items()}
    assert checksum(views) == {PREFIX + name: sha256(view) for name, view in views.items()}


def test_numpy_strides_of_dimensions_without_steps_do_not_matter() -> None:
    record = np.zeros(4, dtype=[("flag", "u1"), ("weight", "<f4")])
    assert digest(record["weight"][:1]) == sha256(record["weight"][:1])
    assert digest(record["weight"][::-1][:1]) == sha256(record["weight"][-1:])


@pytest.mark.parametrize("kind", [Forwarding, BeforeVersions])
@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.bfloat16, torch.float8_e5m2, torch.complex64, torch.float4_e2m1fn_x2], ids=str
)
def test_dlpack_of_torch(kind: type[Forwarding], dtype: torch.dtype) -> None:
    tensor, array = twins(dtype, SHAPE)
    names = [name for name in LAYOUTS if dtype is not torch.float4_e2m1fn_x2 or name == "contiguous"]
    views = {name: kind(LAYOUTS[name][0](tensor)) for name in names}
    assert checksum(views) == {PREFIX + name: sha256(LAYOUTS[name][1](array)) for name in names}


@pytest.mark.parametrize("kind", [Forwarding, BeforeVersions])
def test_a_capsule_is_only_looked_at(kind: type[Forwarding]) -> None:
    array = painted(100)
    producer = kind(array)
    references = sys.getrefcount(array)
    assert digest(producer) == sha256(array)
    # Not renamed: so its own destructor lets go of the array once nobody holds the capsule.
    assert name_of(producer.capsule) in (b"dltensor_versioned", b"dltensor")
    assert sys.getrefcount(array) > references
    producer.capsule = None
    assert sys.getrefcount(array) == references


def test_dlpack_fields_are_followed() -> None:
    array = painted(96)
    assert digest(Exporter(array)) == sha256(array)
    assert digest(Exporter(array[:64], byte_offset=32)) == sha256(array[32:])
    assert digest(Exporter(array[:64].reshape(4, 16), bits=4)) == sha256(array[:32])
    padded = 4
    assert digest(Exporter(array[:64].reshape(4, 16), bits=4, flags=padded)) == sha256(array[:64])
    assert digest(Exporter(array[:0], data=None)) == sha256(b"")
    assert digest(Exporter(array[:1].reshape(()))) == sha256(array[:1])


@pytest.mark.parametrize(
    ("exporter", "text"),
    [
        (Exporter(painted(4), major=2), "DLPack 2.0"),
        (Exporter(painted(4), capsule_name=b"used_dltensor"), "no unused DLPack capsule"),
        (Exporter(painted(4), device_type=8), "device type 8"),
        (Exporter(painted(4), ndim=-1), "-1 dimensions"),
        (Exporter(painted(4), ndim=65), "65 dimensions"),
        (Exporter(painted(4), code=3, bits=64), "code 3"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_dlpack_that_cannot_be_read_is_refused(exporter: Exporter, text: str) -> None:
    with pytest.raises(CheckError, match="'x'.*" + text):
        digest(exporter)


def test_a_failing_exporter_is_named() -> None:
    class Broken:
        def __dlpack__(self, **_: Any) -> object:
            raise BufferError("on strike")

    with pytest.raises(CheckError, match="'x'.*BufferError: on strike"):
        digest(Broken())


class Interface:
    """An object with the `__array_interface__` that a test wants, and perhaps a buffer of its own."""

    def __init__(self, **interface: Any) -> None:
        self.__array_interface__ = {"version": 3, "typestr": "|u1", **interface}


def test_array_interface_around_buffers() -> None:
    data = bytes(painted(96))
    own = bytearray(data)
    assert digest(Interface(shape=(96,), data=own)) == sha256(data)
    assert digest(Interface(shape=(2, 6), typestr="<f8", data=data)) == sha256(data)
    assert digest(Interface(shape=(10,), data=data, offset=5)) == sha256(data[5:15])
    assert digest(Interface(shape=(4, 3), typestr="<i2", strides=(2, 8), data=memoryview(own))) == sha256(
        np.lib.stride_tricks.as_strided(np.frombuffer(data, "<i2"), (4, 3), (2, 8))
    )
    assert digest(Interface(shape=(), typestr="<c8", data=data)) == sha256(data[:8])
    assert digest(Interface(shape=(0, 4), data=b"")) == sha256(b"")
    own.append(0)  # Its buffer was let go of, or this would raise.


def test_array_interface_with_an_address() -> None:
    array = painted(64)
    interface = Interface(shape=(8, 4), strides=(8, 1), data=(array.ctypes.data, True))
    assert digest(interface) == sha256(array.reshape(8, 8)[:, :4])


def test_array_interface_of_the_object_itself() -> None:
    class Weights(bytearray):
        __array_interface__ = {"version": 3, "typestr": "<u2", "shape": (4,)}

    assert digest(Weights(b"abcdefgh")) == sha256(b"abcdefgh")


@pytest.mark.parametrize(
    ("interface", "text"),
    [
        ({"shape": (97,), "data": bytes(96)}, "leave its buffer of 96 bytes"),
        ({"shape": (95,), "offset": 2, "data": bytes(96)}, "leave its buffer"),
        ({"shape": (2,), "strides": (96,), "data": bytes(96)}, "leave its buffer"),
        ({"shape": (2,), "offset": -1, "data": bytes(96)}, "leave its buffer"),
        ({"shape": (2,), "typestr": ">f4", "data": bytes(96)}, "foreign byte order"),
        ({"shape": (2,), "typestr": "|V2", "data": bytes(96)}, "no number of a known width"),
        ({"shape": (2,), "typestr": "<f16", "data": bytes(96)}, "no number of a known width"),
        ({"shape": (2,), "typestr": "<O8", "data": bytes(96)}, "no number of a known width"),
        ({"shape": (2,), "typestr": "", "data": bytes(96)}, "no number of a known width"),
        ({"shape": (2,), "typestr": "<f4", "strides": (6,), "data": bytes(96)}, "no multiple of its 4-byte elements"),
        ({"shape": (2,), "strides": (1, 1), "data": bytes(96)}, "1 dimensions and 2 strides"),
        ({"shape": (2,), "mask": object(), "data": bytes(96)}, "mask"),
        ({"shape": (2,), "data": "text"}, "data in a str"),
        ({"shape": (2,)}, "data in a Interface"),
        ({"shape": ("two",), "data": (64, False)}, "shape"),
        ({"data": bytes(96)}, "without shape"),
    ],
    ids=str,
)
def test_array_interface_that_cannot_be_read_is_refused(interface: dict[str, Any], text: str) -> None:
    with pytest.raises(CheckError, match="'x'.*" + text):
        digest(Interface(**interface))


def test_memory_that_only_the_export_holds_lives_through_the_call() -> None:
    class Fresh:
        def __dlpack__(self, **options: Any) -> object:
            return painted(1 << 20).__dlpack__(**options)

    class FreshInterface:
        @property
        def __array_interface__(self) -> dict[str, Any]:
            return {"version": 3, "typestr": "|u1", "shape": (1 << 20,), "data": painted(1 << 20).tobytes()}

    truth = sha256(painted(1 << 20))
    assert checksum({"a": Fresh(), "b": FreshInterface()}) == {PREFIX + "a": truth, PREFIX + "b": truth}


def test_reset_writes_through_every_kind() -> None:
    arrays = {
        kind: painted(64, seed) + np.uint8(1)
        for seed, kind in enumerate(["numpy", "dlpack", "old", "address", "buffer"])
    }
    own = bytearray(b"x" * 8)
    tensors = {
        "numpy": arrays["numpy"][::2],
        "dlpack": Forwarding(arrays["dlpack"][::2]),
        "old": BeforeVersions(arrays["old"][::2]),
        "address": Interface(shape=(32,), strides=(2,), data=(arrays["address"].ctypes.data, False)),
        "buffer": Interface(shape=(32,), strides=(2,), data=arrays["buffer"]),
        "own": Interface(shape=(8,), data=own),
    }
    before = {name: array.copy() for name, array in arrays.items()}
    assert reset(tensors) == {"tensors": 6, "written": 6, "shared": 0, "bytes": 5 * 32 + 8}
    assert own == bytes(8)
    for name, array in arrays.items():
        assert not array[::2].any() and np.array_equal(array[1::2], before[name][1::2])
