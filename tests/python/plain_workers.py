"""Workers without an engine: plain torch modules in the place of a model, and process groups that only have a rank."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import Module, Parameter
from torch.testing._internal.two_tensor import TwoTensor
from vllm.distributed import parallel_state
from vllm.model_executor.parameter import SharedWeightParameter

from vllm_weight_checker import Rank, WorkerExtension, notices

RANK = Rank(dp=2, pp=1, pcp=0, tp=3)
NOTHING = hashlib.sha256(b"").hexdigest()
PARAMETERS = [
    "scalar",
    "embed.weight",
    "linear.weight",
    "linear.bias",
    "experts.w13_weight",
    "experts.scale",
    "narrow.weight",
]


def stand_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's process groups, of which this process is rank 3 in the tensor-parallel one and so on."""
    for group, index in (("pp", RANK.pp), ("pcp", RANK.pcp), ("tp", RANK.tp)):
        fake = SimpleNamespace(rank_in_group=index, world_size=1)
        monkeypatch.setattr(parallel_state, f"get_{group}_group", lambda fake=fake: fake)
    monkeypatch.setattr(notices, "_said", set())


class Worker(WorkerExtension):
    """The attributes of a vLLM worker that the package reads, and the methods, which the extension gives it."""

    def __init__(self, model: Module | None) -> None:
        self.parallel_config = SimpleNamespace(data_parallel_index=RANK.dp, data_parallel_rank=0)
        self.model_runner: Any = None if model is None else SimpleNamespace(get_model=lambda: model)


def module(**parameters: torch.Tensor | Module) -> Module:
    made = Module()
    for name, value in parameters.items():
        setattr(made, name, value if isinstance(value, Module) else Parameter(value, requires_grad=False))
    return made


def some_model() -> Module:
    generator = torch.Generator().manual_seed(7)

    def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    embed = module(weight=random(16, 8))
    model = module(
        embed=embed,
        linear=module(weight=random(8, 8).t(), bias=random(8)),
        experts=module(w13_weight=random(2, 4, 8)[:, ::2], scale=random(2, 1)),
        narrow=module(weight=random(5, 3, dtype=torch.bfloat16)),
        scalar=torch.tensor(2.5),
    )
    model.head = embed  # tied
    return model


def parts_model() -> Module:
    """Parameters that only wrap the tensors that hold their bytes, also two levels deep."""
    shared = SharedWeightParameter(weight_loader=lambda *args: None)
    shared.add_partition(0, "key a", 4, 6, dtype=torch.float32)
    shared.add_partition(2, "key b", 2, 6, dtype=torch.bfloat16)
    for index, partition in shared.partitions.items():
        torch.nn.init.constant_(partition, index + 0.5)
    pair = TwoTensor(torch.randn(3, 2), torch.randn(3, 2))
    deep = TwoTensor(TwoTensor(torch.randn(2), torch.randn(2)), torch.randn(2))
    model = module(pair=pair, plain=torch.randn(4), deep=module(weight=deep))
    model.register_parameter("shared", shared)
    return model


def packed_model() -> Module:
    """As vLLM's CPU kernels leave layers: an empty weight, and the bytes in a closure."""
    packed = module(weight=torch.empty(0), bias=torch.randn(4))
    packed.cpu_linear = lambda x, weight, bias: x
    experts = module(w13_weight=torch.empty(0), w2_weight=torch.empty(0))
    return module(packed=packed, experts=experts, norm=module(weight=torch.randn(4)))


def checksums(worker: Worker) -> dict[str, str]:
    return worker.weight_checker_checksum("n")["result"]["checksums"]


def keyed(digests: dict[str, str]) -> dict[str, str]:
    return {RANK.prefix + name: digest for name, digest in digests.items()}
