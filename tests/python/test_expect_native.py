"""`wc_expect` beside torch and hashlib: random pieces executed with `copy_` on `as_strided` views."""

from __future__ import annotations

import ctypes
import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from vllm_weight_checker import NativeError, _native, checksum
from vllm_weight_checker._native import WcOptions, library
from vllm_weight_checker.errors import Status
from vllm_weight_checker.tensors import describe

RANK = {"dp": 0, "pp": 0, "pcp": 0, "tp": 0}
KEY = "dp0:pp0:pcp0:tp0:"
FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
OTHERS = [torch.int64, torch.int8, torch.uint8, torch.bool, torch.float8_e4m3fn, torch.uint8]
Plan = dict[str, Any]


def expect(plan: Plan, sources: Path | dict[str, torch.Tensor], algorithm: str = "sha256") -> dict[str, str]:
    native, out = library(), ctypes.c_void_p()
    options = WcOptions(ctypes.sizeof(WcOptions), _native.ALGORITHMS[algorithm], 0)
    text = json.dumps(plan).encode()
    if isinstance(sources, Path):
        status = native.wc_expect(text, str(sources).encode(), None, 0, options, out)
    else:
        described = describe(sources, writable=False)
        status = native.wc_expect(text, None, described.address, described.count, options, out)
    if status != Status.OK:
        raise NativeError(Status(status), native.wc_last_error().decode())
    try:
        return dict(json.loads(ctypes.string_at(out)))
    finally:
        native.wc_string_free(out)


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def document(sources: dict[str, torch.Tensor], parameters: Plan) -> Plan:
    described = {name: {"dtype": name_of(t.dtype), "shape": list(t.shape)} for name, t in sources.items()}
    ranks = [{"rank": RANK, "parameters": parameters}]
    return {"format": "weight-checker-plan", "version": 1, "sources": described, "ranks": ranks}


def sha256(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().view(-1).view(torch.uint8).numpy()).hexdigest()


def random_tensor(dice: random.Random, dtype: torch.dtype) -> torch.Tensor:
    shape = [dice.choice([1, 2, 3, 5, 16, 33, 70]) for _ in range(dice.randrange(4))]
    if dtype.is_floating_point and dtype.itemsize > 1:
        return torch.randn(shape, dtype=torch.float64).mul(3).to(dtype)
    if dtype == torch.bool:
        return torch.randint(2, shape, dtype=torch.bool)
    bits = torch.randint(0, 100, [*shape, dtype.itemsize], dtype=torch.uint8)
    return bits.view(dtype).view(shape)


def random_box(dice: random.Random, tensor: torch.Tensor) -> torch.Tensor:
    """A view of a part of a contiguous tensor, in any order of dimensions."""
    view = tensor
    for dim, extent in enumerate(tensor.shape):
        start = dice.randrange(extent)
        stop = dice.randrange(start, extent) + 1
        view = view.narrow(dim, start, stop - start)[
            (slice(None),) * dim + (slice(None, None, dice.choice([1, 1, 2, 3])),)
        ]
    return view.permute(dice.sample(range(view.ndim), view.ndim))


def random_source_view(dice: random.Random, source: torch.Tensor, shape: list[int]) -> torch.Tensor | None:
    """Any `as_strided` view of `shape` that stays in the source; strides may be 0."""
    for _ in range(50):
        strides = [dice.choice([0, 1, 1, 2, 5, 16, 33, 70, 80, 165, 1155]) for _ in shape]
        reach = sum((extent - 1) * stride for extent, stride in zip(shape, strides))
        if reach < source.numel():
            return source.as_strided(shape, strides, dice.randrange(source.numel() - reach))
    return None


def random_parameter(
    dice: random.Random, sources: dict[str, torch.Tensor], dtype: torch.dtype
) -> tuple[torch.Tensor, Plan]:
    """A parameter that torch made, and the plan that says how."""
    target = torch.zeros_like(random_tensor(dice, dtype))
    pieces: list[Plan] = [{"constant": 0, "shape": list(target.shape), "offset": 0, "strides": list(target.stride())}]
    for _ in range(dice.randrange(6)):
        box = random_box(dice, target)
        place = {"shape": list(box.shape), "offset": box.storage_offset(), "strides": list(box.stride())}
        casts = dtype in FLOATS
        name = dice.choice([n for n, t in sources.items() if t.dtype == dtype or (casts and t.dtype in FLOATS)])
        view = random_source_view(dice, sources[name], list(box.shape))
        if view is None or dice.randrange(5) == 0:
            value = dice.choice([1, True]) if dtype in OTHERS else dice.choice([0.1, -3, True, float("inf"), 1e-30])
            box.fill_(value)
            pieces.append({"constant": "inf" if value == float("inf") else value, **place})
            continue
        via = dice.sample(FLOATS, dice.randrange(3)) if casts else []
        moved = view
        for step in via:
            moved = moved.to(step)
        box.copy_(moved)
        where = {"source": name, "source_offset": view.storage_offset(), "source_strides": list(view.stride())}
        pieces.append({**where, **place, "via": [name_of(step) for step in via]})
    return target, {"dtype": name_of(dtype), "shape": list(target.shape), "pieces": pieces}


@pytest.mark.parametrize("seed", range(12))
def test_random_plans_are_what_torch_copies(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    torch.manual_seed(seed)
    sources = {f"{name_of(dtype)}.{n}": random_tensor(dice, dtype) for dtype in FLOATS + OTHERS for n in range(3)}
    made = {}
    for number in range(60):
        made[f"p{number}"] = random_parameter(dice, sources, dice.choice(FLOATS + OTHERS))
    plan = document(sources, {name: parameter for name, (_, parameter) in made.items()})
    save_file(sources, tmp_path / "model.safetensors")
    truth = {KEY + name: sha256(tensor) for name, (tensor, _) in made.items()}
    assert expect(plan, tmp_path) == truth
    assert expect(plan, sources) == truth
    # Sources whose elements do not lie side by side: transposed, every second one, one element for all.
    spread = {name: torch.stack([t, t, t], -1)[..., 1] for name, t in sources.items()}
    turned = {name: t.mT.contiguous().mT if t.ndim > 1 else t for name, t in sources.items()}
    assert expect(plan, spread) == truth
    assert expect(plan, turned) == truth


def test_the_tree_has_the_digests_of_the_tensors_themselves(tmp_path: Path) -> None:
    sources = {"w": torch.randn(300, 500), "v": torch.randn(700, 90)}
    copy = {
        name: {"source": name, "source_offset": 0, "source_strides": list(turned.stride()), "offset": 0}
        for name, turned in (("w", sources["w"].t()), ("v", sources["v"]))
    }
    shapes = {"w": [500, 300], "v": [700, 90]}
    parameters = {
        name: {
            "dtype": "float32",
            "shape": shape,
            "pieces": [{**copy[name], "shape": shape, "strides": [shape[1], 1]}],
        }
        for name, shape in shapes.items()
    }
    save_file(sources, tmp_path / "x.safetensors")
    plan = document(sources, parameters)
    held = {"w": sources["w"].t().contiguous(), "v": sources["v"]}
    for algorithm in ("sha256", "sha256-tree"):
        assert expect(plan, tmp_path / "x.safetensors", algorithm) == checksum(held, algorithm=algorithm)


@pytest.mark.parametrize("name", ["complex64", "float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e5m2"])
def test_types_without_casts_are_copied(name: str, tmp_path: Path) -> None:
    dtype = getattr(torch, name)
    held = torch.randint(0, 256, [40, 30 * dtype.itemsize], dtype=torch.uint8).view(dtype)
    save_file({"w": held}, tmp_path / "model.safetensors")
    turned = {"source": "w", "source_offset": 0, "source_strides": [1, 30], "offset": 0, "strides": [40, 1]}
    parameter = {"dtype": name, "shape": [30, 40], "pieces": [{**turned, "shape": [30, 40]}]}
    expected = {KEY + "p": sha256(held.t())}
    assert expect(document({"w": held}, {"p": parameter}), tmp_path) == expected


@pytest.mark.parametrize("names", [["model.safetensors.index.json", "other.safetensors.index.json"], []])
def test_the_files_of_a_folder(names: list[str], tmp_path: Path) -> None:
    """With an index only its files count; without one all of them do."""
    sources = {"a": torch.randn(5), "b": torch.randn(7)}
    for name, tensor in sources.items():
        save_file({name: tensor}, tmp_path / f"{name}.safetensors")
    for name in names:
        save_file({"a": torch.zeros(5)}, tmp_path / "unlisted.safetensors")
        index = {"metadata": {"total_size": 48}, "weight_map": {n: f"{n}.safetensors" for n in sources}}
        (tmp_path / name).write_text(json.dumps(index))
    whole = {"source_offset": 0, "source_strides": [1], "offset": 0, "strides": [1]}
    parameters = {
        name: {
            "dtype": "float32",
            "shape": list(t.shape),
            "pieces": [{**whole, "source": name, "shape": list(t.shape)}],
        }
        for name, t in sources.items()
    }
    expected = {KEY + name: sha256(tensor) for name, tensor in sources.items()}
    assert expect(document(sources, parameters), tmp_path) == expected
