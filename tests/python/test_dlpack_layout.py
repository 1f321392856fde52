"""The structs and numbers that Python writes by hand are those of weight_checker.h and of the real dlpack.h."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch
from truth import PACKED, QUANTISED, TORCH_DTYPES, twins

from vllm_weight_checker import _dlpack, _native, buffers, dtypes
from vllm_weight_checker.tensors import WC_TENSOR

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, int]]:
    """What the C program prints: {struct or kind: {field or name: number}}. It compiles only if WcTensor is right."""
    program = tmp_path_factory.mktemp("c") / "dlpack_layout"
    includes = [Path(torch.__file__).parent / "include", REPOSITORY / "include"]
    source = REPOSITORY / "tests" / "c" / "dlpack_layout.c"
    command = [
        "cc",
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-Werror",
        *(f"-I{path}" for path in includes),
        str(source),
        "-o",
        str(program),
    ]
    subprocess.run(command, check=True)
    numbers: dict[str, dict[str, int]] = {}
    for line in subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines():
        group, name, number = line.split()
        numbers.setdefault(group, {})[name] = int(number)
    return numbers


def test_packed_descriptors_are_wc_tensors(layout: dict[str, dict[str, int]]) -> None:
    expected = layout["WcTensor"]
    assert WC_TENSOR.size == expected.pop("size")
    fields = {
        "struct_size": 1,
        "name": 2,
        "data": 3,
        "device": (4, 5),
        "ndim": 6,
        "dtype": 7,
        "shape": 8,
        "strides": 9,
        "byte_offset": 10,
    }
    packed = WC_TENSOR.pack(*range(1, 11))
    # Where the bytes of each number went; all of them are little-endian and below 256.
    places = {
        name: packed.index(bytes([number[0] if isinstance(number, tuple) else number]))
        for name, number in fields.items()
    }
    assert places == expected


@pytest.mark.parametrize("struct", ["WcRank", "WcOptions"])
def test_ctypes_structs_are_those_of_the_header(layout: dict[str, dict[str, int]], struct: str) -> None:
    ours = getattr(_native, struct)
    fields = {name: getattr(ours, name).offset for name, *_ in ours._fields_}
    assert {"size": ctypes.sizeof(ours), **fields} == layout[struct]


def test_dlpack_structs_are_those_of_dlpack(layout: dict[str, dict[str, int]]) -> None:
    tensor, managed = _dlpack.DLTensor, _dlpack.DLManagedTensorVersioned
    shared = {name: getattr(tensor, name).offset for name in ("data", "ndim", "shape", "strides", "byte_offset")}
    both = {"device": tensor.device_type.offset, "dtype": tensor.code.offset}
    assert {"size": ctypes.sizeof(tensor), **shared, **both} == layout["DLTensor"]
    places = {"version": managed.major.offset, "flags": managed.flags.offset, "dl_tensor": managed.tensor.offset}
    assert {"size": ctypes.sizeof(managed), **places} == layout["DLManagedTensorVersioned"]
    assert layout["DLManagedTensor"] == {"dl_tensor": 0}
    assert _dlpack._MAJOR == layout["dlpack"]["major"]


CODES = {
    "int8": "kDLInt",
    "uint64": "kDLUInt",
    "float16": "kDLFloat",
    "bfloat16": "kDLBfloat",
    "complex64": "kDLComplex",
    "bool": "kDLBool",
    "float4_e2m1fn_x2": "kDLFloat4_e2m1fn",
}
FLOAT8 = ["e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu"]


@pytest.mark.parametrize(
    ("name", "code"), [*CODES.items(), *((f"float8_{kind}", f"kDLFloat8_{kind}") for kind in FLOAT8)]
)
def test_type_codes_are_those_of_dlpack(layout: dict[str, dict[str, int]], name: str, code: str) -> None:
    assert dtypes.BY_NAME[name] & 0xFF == layout["code"][code]


def test_devices_and_flags_are_those_of_dlpack(layout: dict[str, dict[str, int]]) -> None:
    names = {
        "kDLCPU": "CPU",
        "kDLCUDA": "CUDA",
        "kDLCUDAHost": "CUDA_HOST",
        "kDLROCM": "ROCM",
        "kDLROCMHost": "ROCM_HOST",
        "kDLCUDAManaged": "CUDA_MANAGED",
    }
    assert {theirs: getattr(buffers, ours) for theirs, ours in names.items()} == layout["device"]
    flags = {
        "READ_ONLY": _dlpack._READ_ONLY,
        "IS_COPIED": _dlpack._COPIED,
        "IS_SUBBYTE_TYPE_PADDED": _dlpack._SUBBYTE_PADDED,
    }
    assert flags == layout["flag"]


@pytest.mark.parametrize("dtype", sorted(set(TORCH_DTYPES) - PACKED, key=str), ids=str)
def test_our_table_is_what_torch_says_of_its_types(dtype: torch.dtype) -> None:
    tensor, _ = twins(dtype, (1,))
    word = dtypes.BY_NAME[str(dtype).removeprefix("torch.")]
    if dtype in QUANTISED or str(dtype).startswith("torch.bits"):
        # torch exports none of these, but they have a size.
        assert (word >> 8 & 0xFF) * (word >> 16) == 8 * tensor.element_size()
    else:
        buffer, _ = _dlpack.read_dlpack(tensor)
        assert word == buffer.dtype
