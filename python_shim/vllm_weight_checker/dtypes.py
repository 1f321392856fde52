"""The one table of element types: the names of torch and of numpy (with ml_dtypes) -> DLPack's types."""

from __future__ import annotations


def dlpack_type(code: int, bits: int, lanes: int = 1) -> int:
    """DLPack's DLDataType {uint8 code, uint8 bits, uint16 lanes} as the 32-bit word that it is in memory."""
    return code | bits << 8 | lanes << 16


_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6
BYTE = dlpack_type(_UINT, 8)

# An element of a type that DLPack cannot name, or that torch or numpy keeps in a wider cell than
# its name says (int4 in one byte), is described as an integer of its cell's size: its bytes.
BY_NAME: dict[str, int] = {
    "bool": dlpack_type(_BOOL, 8),
    **{f"int{bits}": dlpack_type(_INT, bits) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": dlpack_type(_UINT, bits) for bits in (8, 16, 32, 64)},
    **{f"float{bits}": dlpack_type(_FLOAT, bits) for bits in (16, 32, 64)},
    "bfloat16": dlpack_type(_BFLOAT, 16),
    **{f"complex{bits}": dlpack_type(_COMPLEX, bits) for bits in (32, 64, 128)},
    "bcomplex32": dlpack_type(_BFLOAT, 16, lanes=2),
    "float8_e3m4": dlpack_type(7, 8),
    "float8_e4m3": dlpack_type(8, 8),
    "float8_e4m3b11fnuz": dlpack_type(9, 8),
    "float8_e4m3fn": dlpack_type(10, 8),
    "float8_e4m3fnuz": dlpack_type(11, 8),
    "float8_e5m2": dlpack_type(12, 8),
    "float8_e5m2fnuz": dlpack_type(13, 8),
    "float8_e8m0fnu": dlpack_type(14, 8),
    "float4_e2m1fn_x2": dlpack_type(17, 4, lanes=2),
    # torch's quantised types, which hold plain integers beside a scale
    "qint8": dlpack_type(_INT, 8),
    "quint8": dlpack_type(_UINT, 8),
    "qint32": dlpack_type(_INT, 32),
    # one value or field group in each byte (or two bytes)
    **{f"int{bits}": dlpack_type(_INT, 8) for bits in range(1, 8)},
    **{f"uint{bits}": BYTE for bits in range(1, 8)},
    **{name: BYTE for name in ("bits8", "bits1x8", "bits2x4", "bits4x2")},
    "bits16": dlpack_type(_UINT, 16),
    **{name: BYTE for name in ("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn")},
}

# torch's types with several elements in a byte although shape and strides count elements.
PER_BYTE: dict[str, int] = {"quint4x2": 2, "quint2x4": 4}
