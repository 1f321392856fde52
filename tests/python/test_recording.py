"""What a recording says of a loader, against the same loader run on real data."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from vllm_weight_checker.errors import CheckError
from vllm_weight_checker.provenance import Provenance, piece
from vllm_weight_checker.recording import SMALL, NeedsNumbers, NeedsValues, NumbersHaveValues, Recording

Loader = Callable[[dict[str, Tensor], dict[str, Tensor]], None]
"""Puts sources into parameters, each by name."""


def recorded(
    loader: Loader, parameters: dict[str, Tensor], sources: dict[str, Tensor], real: int = 0
) -> dict[str, Any]:
    """The pieces of each parameter; sources of up to `real` elements have values."""
    provenance = Provenance()
    bare = {
        name: torch.empty_strided(p.shape, p.stride(), dtype=p.dtype, device="meta") for name, p in parameters.items()
    }
    given = {
        name: s.clone() if s.numel() <= real else torch.empty_like(s, device="meta") for name, s in sources.items()
    }
    for name, source in given.items():
        provenance.add_source(name, source)
    with torch.no_grad(), NumbersHaveValues(), Recording(provenance, sources.get, SMALL, True):
        loader(bare, given)
    return {name: [piece(block) for block in provenance.blocks(parameter)] for name, parameter in bare.items()}


def execute(pieces: list[dict[str, Any]], like: Tensor, sources: Mapping[str, Tensor]) -> Tensor:
    """Carries a parameter's pieces out, element by element as the plan's format defines them."""
    flat = torch.zeros(like.numel(), dtype=like.dtype)
    for each in pieces:
        assert "computed" not in each, each
        where = torch.arange(like.numel()).as_strided(each["shape"], each["strides"], each["offset"]).reshape(-1)
        if "constant" in each:
            values = torch.tensor(float(each["constant"]), dtype=torch.float64)
        else:
            at = torch.full(tuple(each["shape"]), each["source_offset"])
            for dim, (extent, stride) in enumerate(zip(each["shape"], each["source_strides"], strict=True)):
                steps = torch.arange(extent) * stride
                at = at + steps.reshape([-1 if d == dim else 1 for d in range(len(each["shape"]))])
            values = sources[each["source"]].reshape(-1)[at.reshape(-1)]
        for dtype in each.get("via", []):
            values = values.to(getattr(torch, dtype))
        flat[where] = values.to(like.dtype)
    return flat.reshape(like.shape)


def check(loader: Loader, parameters: dict[str, Tensor], sources: dict[str, Tensor], real: int = 0) -> dict[str, Any]:
    """Runs the loader both ways; parameters begin as zeros. Gives the pieces."""
    pieces = recorded(loader, parameters, sources, real)
    loader(parameters, {name: source.clone() for name, source in sources.items()})
    for name, parameter in parameters.items():
        made = execute(pieces[name], parameter, sources)
        assert torch.equal(made.reshape(-1).view(torch.uint8), parameter.reshape(-1).view(torch.uint8)), name
    return pieces


def numbered(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    count = torch.Size(shape).numel()
    return (torch.arange(count, dtype=torch.float32) / 7 + 1).reshape(shape).to(dtype)


def alone(loader: Callable[[Tensor, Tensor], object]) -> Loader:
    """The loader of one parameter from one source, called p and s."""

    def load(parameters: dict[str, Tensor], sources: dict[str, Tensor]) -> None:
        loader(parameters["p"], sources["s"])

    return load


def one(loader: Callable[[Tensor, Tensor], object], parameter: tuple[int, ...], source: Tensor) -> list[dict[str, Any]]:
    """`check` for one parameter and one source."""
    pieces = check(alone(loader), {"p": torch.zeros(parameter)}, {"s": source})
    return pieces["p"]


ROTARY = (torch.arange(8).reshape(2, 4).t()).reshape(-1)

MOVES: dict[str, tuple[Callable[[Tensor, Tensor], object], tuple[int, ...], Tensor]] = {
    "narrow": (lambda p, s: p.copy_(s.narrow(0, 4, 4)), (4, 6), numbered(8, 6)),
    "columns": (lambda p, s: p.copy_(s[:, 3:]), (8, 3), numbered(8, 6)),
    "transpose": (lambda p, s: p.copy_(s.t()), (6, 8), numbered(8, 6)),
    "into a part": (lambda p, s: (p.zero_(), p[2:6].copy_(s)), (8, 6), numbered(4, 6)),
    "cat": (lambda p, s: p.copy_(torch.cat([s[4:], s[:4]])), (8, 6), numbered(8, 6)),
    "cat along columns": (lambda p, s: p.copy_(torch.cat([s[:, 2:], s[:, :2]], dim=-1)), (8, 6), numbered(8, 6)),
    "zeros joined": (lambda p, s: p.copy_(torch.cat([s, torch.zeros(2, 6)])), (10, 6), numbered(8, 6)),
    "zeros like": (lambda p, s: p.copy_(torch.cat([s, torch.zeros_like(s)])), (16, 6), numbered(8, 6)),
    "stack": (lambda p, s: p.copy_(torch.stack([s[0], s[2], s[1]], dim=1)), (6, 3), numbered(8, 6)),
    "interleaved": (lambda p, s: p.copy_(s.view(2, 3, 2, 6).transpose(0, 1).reshape(12, 6)), (12, 6), numbered(12, 6)),
    "grouped": (
        lambda p, s: p.copy_(torch.cat([x.reshape(-1, 6) for x in s.view(2, 4, 2, 6).split([2, 1, 1], dim=1)])),
        (16, 6),
        numbered(16, 6),
    ),
    "rotary": (lambda p, s: p.copy_(s.view(2, 4, 2, 6).transpose(1, 2).reshape(16, 6)), (16, 6), numbered(16, 6)),
    "index": (lambda p, s: p.copy_(s[ROTARY]), (8, 6), numbered(8, 6)),
    "index of columns": (lambda p, s: p.copy_(s[:, [4, 1, 1, -1]]), (8, 4), numbered(8, 6)),
    "index tensor on the device": (
        lambda p, s: p.copy_(s[torch.tensor([5, 2, 7], device=s.device)]), (3, 6), numbered(8, 6)
    ),
    "index with bools": (lambda p, s: p.copy_(s[torch.tensor([True, False] * 4)]), (4, 6), numbered(8, 6)),
    "index select": (lambda p, s: p.copy_(s.index_select(1, torch.tensor([5, 0, 3]))), (8, 3), numbered(8, 6)),
    "index in two dimensions": (lambda p, s: p.copy_(s[torch.tensor([[0, 7], [3, 1]])]), (2, 2, 6), numbered(8, 6)),
    "index put": (lambda p, s: p.index_put_((torch.tensor([6, 0, 3]),), s[:3]), (8, 6), numbered(8, 6)),
    "assigned rows": (lambda p, s: p.__setitem__(slice(0, 8, 2), s[:4]), (8, 6), numbered(8, 6)),
    "flip": (lambda p, s: p.copy_(s.flip(0, 1)), (8, 6), numbered(8, 6)),
    "flip of a part": (lambda p, s: p.copy_(s.flip(1)[2:, 1:4]), (6, 3), numbered(8, 6)),
    "repeat": (lambda p, s: p.copy_(s.repeat(2, 1, 3)), (2, 8, 18), numbered(8, 6)),
    "repeated heads": (lambda p, s: p.copy_(s.repeat_interleave(2, dim=0).view(16, 6)), (16, 6), numbered(8, 6)),
    "expand": (lambda p, s: p.copy_(s[0]), (8, 6), numbered(8, 6)),
    "pad": (lambda p, s: p.copy_(torch.nn.functional.pad(s, (1, 2, 0, 3), value=2.5)), (11, 9), numbered(8, 6)),
    "negative pad": (lambda p, s: p.copy_(torch.nn.functional.pad(s, (-1, 2))), (8, 7), numbered(8, 6)),
    "experts transposed": (lambda p, s: [p[e].copy_(s[e].t()) for e in range(3)], (3, 6, 4), numbered(3, 4, 6)),
    "permuted and copied": (lambda p, s: p.copy_(s.permute(2, 0, 1).contiguous()), (6, 3, 4), numbered(3, 4, 6)),
    "rolled flat": (lambda p, s: p.copy_(s.roll(-5)), (8, 6), numbered(8, 6)),
    "rolled in two dimensions": (lambda p, s: p.copy_(s.roll((1, 3), (0, 1))), (8, 6), numbered(8, 6)),
    "new memory": (lambda p, s: p.copy_(s.new_zeros(8, 6).copy_(s)), (8, 6), numbered(8, 6)),
    "filled memory": (lambda p, s: p.copy_(s.new_full((8, 6), 1.5)), (8, 6), numbered(8, 6)),
    "source zeroed": (lambda p, s: (s[2:4].zero_(), p.copy_(s)), (8, 6), numbered(8, 6)),
    "source zeroed wholly": (lambda p, s: (s.zero_(), p.copy_(s)), (8, 6), numbered(8, 6)),
    "copied, then zeroed": (lambda p, s: (p.copy_(s), s.zero_()), (8, 6), numbered(8, 6)),
    "copied to itself": (lambda p, s: (p.copy_(s), p.copy_(p.view(p.shape))), (8, 6), numbered(8, 6)),
    "written twice": (lambda p, s: (p.copy_(s), p[3:].copy_(s[:5])), (8, 6), numbered(8, 6)),
    "data": (lambda p, s: p.data.copy_(s.data.view(8, 6)), (8, 6), numbered(48)),
    "scalar": (lambda p, s: p.fill_(s.item()), (1,), numbered(1)),
    "scalar to scalar": (lambda p, s: p.data.copy_(s.view(p.shape)), (), numbered(1)),
    "through bfloat16": (lambda p, s: p.copy_(s.to(torch.bfloat16)), (8, 6), numbered(8, 6)),
    "through two dtypes": (lambda p, s: p.copy_(s.half().to(torch.bfloat16).float()), (8, 6), numbered(8, 6)),
    "on the parameter's device": (
        lambda p, s: p.copy_(s.to(p.device)[torch.arange(7, -1, -1, device=p.device)]), (8, 6), numbered(8, 6)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(MOVES))
def test_moves_are_followed(name: str) -> None:
    one(*MOVES[name])


@pytest.mark.parametrize("name", list(MOVES))
def test_moves_of_small_sources_with_values_are_followed(name: str) -> None:
    loader, shape, source = MOVES[name]
    check(alone(loader), {"p": torch.zeros(shape)}, {"s": source}, real=SMALL)


def test_large_tensors_are_followed_too() -> None:
    source = numbered(64, 3, 16, 32)  # more than what has values
    one(lambda p, s: p.copy_(torch.cat([s[:, part].reshape(-1, 32) for part in range(3)])), (3072, 32), source)
    one(lambda p, s: p.copy_(torch.cat([s.reshape(-1), s.new_zeros(8192)])), (98304 + 8192,), source)


def test_several_sources_and_parameters() -> None:
    def loader(p: dict[str, Tensor], s: dict[str, Tensor]) -> None:
        fused = torch.cat([s["q"], s["k"], s["v"]])
        p["qkv"].copy_(fused)
        p["v"].copy_(fused[-2:])
        p["both"].copy_(torch.stack([p["v"], s["k"]]))

    parameters = {"qkv": torch.zeros(8, 3), "v": torch.zeros(2, 3), "both": torch.zeros(2, 2, 3)}
    check(loader, parameters, {"q": numbered(4, 3), "k": -numbered(2, 3), "v": numbered(2, 3) * 2})


def test_a_parameter_that_is_replaced_is_followed() -> None:
    holder = {}

    def loader(p: dict[str, Tensor], s: dict[str, Tensor]) -> None:
        parameter = torch.nn.Parameter(p["p"], requires_grad=False)
        parameter.data = s["s"].t().contiguous()
        holder["p"] = parameter

    provenance = Provenance()
    source = torch.empty(4, 6, device="meta")
    provenance.add_source("s", source)
    with torch.no_grad(), Recording(provenance, {}.get, SMALL):
        loader({"p": torch.empty(6, 4, device="meta")}, {"s": source})
    pieces = [piece(block) for block in provenance.blocks(holder["p"])]
    assert torch.equal(execute(pieces, torch.zeros(6, 4), {"s": numbered(4, 6)}), numbered(4, 6).t())


COMPUTATIONS: dict[str, Callable[[Tensor, Tensor], object]] = {
    "aten.exp": lambda p, s: p.copy_(-torch.exp(s)),
    "aten.mul": lambda p, s: p.copy_(s * 2),
    "aten.mul_": lambda p, s: (p.copy_(s), p.mul_(2)),
    "aten.add": lambda p, s: p.copy_(s + s.t().t()),
    "aten.mm": lambda p, s: p.copy_(s @ torch.eye(6)),
    "another dtype": lambda p, s: p.copy_(s.view(torch.int32)),
}


@pytest.mark.parametrize("real", [0, SMALL])
@pytest.mark.parametrize("name", list(COMPUTATIONS))
def test_arithmetic_makes_a_parameter_opaque_and_names_the_sources(name: str, real: int) -> None:
    loader = COMPUTATIONS[name]
    pieces = recorded(alone(loader), {"p": torch.zeros(8, 6)}, {"s": numbered(8, 6), "t": numbered(1)}, real)["p"]
    last = pieces[-1]
    assert last["sources"] == ["s"] and last["shape"] == [48]
    assert name in ("another dtype", "aten.exp") or name.removesuffix("_") in last["computed"]


def test_values_are_had_where_a_loader_branches_on_them() -> None:
    def loader(p: dict[str, Tensor], s: dict[str, Tensor]) -> None:
        tied = torch.equal(s["head"].cpu(), s["embedding"].cpu())
        last = s["order"][-1].item()
        p["p"].copy_(s["embedding"] if tied else s["head"])
        p["q"].copy_(s["head"][int(last)])
        if bool((s["order"] > 1).any()):
            p["q"].zero_()

    large = numbered(96, 64)
    for head in (large, large + 1):
        for order in (torch.tensor([1, 0, 2]), torch.tensor([1, 0, 1])):
            sources = {"embedding": large, "head": head, "order": order}
            check(loader, {"p": torch.zeros(96, 64), "q": torch.zeros(64)}, sources, real=8)


def test_a_branch_on_computed_values_asks_for_the_tensors_they_are_computed_from() -> None:
    def loader(p: dict[str, Tensor], s: dict[str, Tensor]) -> None:
        if (s["a"] + s["b"]).max().item() > 0:
            p["p"].copy_(s["a"])

    sources = {"a": numbered(96, 64), "b": numbered(96, 64), "c": numbered(4)}
    with pytest.raises(NeedsValues) as needs:
        recorded(loader, {"p": torch.zeros(96, 64)}, sources)
    assert needs.value.names == {"a", "b"}
    check(loader, {"p": torch.zeros(96, 64)}, sources, real=1 << 20)


def test_values_that_nobody_has_are_an_error_that_names_the_tensor() -> None:
    provenance = Provenance()
    source = torch.empty(3, device="meta")
    provenance.add_source("model.order", source)
    with pytest.raises(CheckError, match=r"model\.order"), Recording(provenance, {}.get, 0):
        source[0].item()


def test_numbers_that_were_lost_are_asked_for() -> None:
    provenance = Provenance()
    source = torch.empty(3, device="meta")
    provenance.add_source("s", source)
    with pytest.raises(NeedsNumbers), Recording(provenance, {}.get, 0):
        source[[1, 2]]


def test_no_kernel_gets_the_address_of_a_tensor_without_data() -> None:
    provenance = Provenance()
    source = torch.empty(96, 64, device="meta")
    provenance.add_source("s", source)
    with Recording(provenance, {}.get, SMALL):
        for made in (source.t().contiguous(), source + 1, torch.empty(96, 64), torch.cat([source, source])):
            with pytest.raises(RuntimeError, match="data pointer"):
                made.data_ptr()


def random_loader(choose: random.Random) -> Callable[[Tensor, Tensor], None]:
    """A chain of moves, the last of which writes into a part of the parameter."""
    seed = choose.random()

    def loader(p: Tensor, s: Tensor) -> None:
        steps = random.Random(seed)
        for _ in range(steps.randint(1, 6)):
            s = step(steps, s)
        flat = s.reshape(-1)[: p.numel()]
        start = steps.randint(0, p.numel() - flat.numel())
        p.fill_(3)
        p.view(-1)[start : start + flat.numel()].copy_(flat)

    return loader


def step(choose: random.Random, s: Tensor) -> Tensor:
    dim = choose.randrange(s.dim())
    extent = s.shape[dim]
    start = choose.randrange(extent)
    moves: list[Callable[[], Tensor]] = [
        lambda: s.narrow(dim, start, choose.randint(1, extent - start)),
        lambda: s.transpose(dim, choose.randrange(s.dim())),
        lambda: s.flip(dim),
        lambda: torch.cat([s.narrow(dim, start, extent - start), s.narrow(dim, 0, start)], dim),
        lambda: torch.stack([s, s], choose.randint(0, s.dim())) if s.numel() < 2000 else s,
        lambda: s.contiguous(),
        lambda: s.reshape(-1, s.shape[-1]),
        lambda: s.index_select(dim, torch.tensor([choose.randrange(extent) for _ in range(choose.randint(1, 5))])),
        lambda: s.clone().to(choose.choice([torch.float32, torch.float64])),
        lambda: s[(slice(None),) * dim + (slice(None, None, choose.randint(1, 3)),)],
        lambda: torch.nn.functional.pad(s, (choose.randint(0, 2), choose.randint(0, 2)), value=choose.random()),
    ]
    return choose.choice(moves)()


@pytest.mark.parametrize("seed", range(30))
def test_random_chains_of_moves(seed: int) -> None:
    choose = random.Random(seed)
    for _ in range(10):
        loader = random_loader(choose)
        shape = [choose.randint(1, 7) for _ in range(choose.randint(1, 4))]
        one(loader, (4000,), numbered(*shape))
