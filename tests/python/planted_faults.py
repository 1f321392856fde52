"""Faults of loaders, planted in vLLM's own classes; before an engine starts, so that its workers have them.

Each is a mistake that people make, and none makes vLLM complain.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

PADDED = 256
"""Rows that a padded loader takes for each rank."""


def every_rank_takes_the_first_shard() -> None:
    from vllm.model_executor import parameter
    from vllm.model_executor.layers import linear

    for module in (linear, parameter):
        module.get_tensor_model_parallel_rank = lambda: 0


def qkv_split_evenly() -> None:
    """q, k and v are taken for a third each of a fused tensor, and slices past an end come out shorter."""
    from vllm.model_executor.layers.linear import QKVParallelLinear

    def load(self: Any, param: Any, loaded_weight: Any) -> None:
        for shard_id, third in zip("qkv", loaded_weight.chunk(3), strict=True):
            rows = self._get_shard_size_mapping(shard_id)
            part = third[self.tp_rank * rows :][:rows]
            param.data.narrow(0, self._get_shard_offset_mapping(shard_id), len(part)).copy_(part)

    QKVParallelLinear._load_fused_module_from_checkpoint = load


def an_expert_is_skipped() -> None:
    """The third of each layer, said to be loaded."""
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts

    own = RoutedExperts.weight_loader

    def load(self: Any, *args: Any, expert_id: int, **kwargs: Any) -> bool | None:
        return True if expert_id == 2 else own(self, *args, expert_id=expert_id, **kwargs)

    RoutedExperts.weight_loader = load


def a_name_is_ignored() -> None:
    from vllm.model_executor.models.llama import LlamaForCausalLM

    own = LlamaForCausalLM.load_weights

    def load(self: Any, weights: Iterable[tuple[str, Any]]) -> set[str]:
        return own(self, (each for each in weights if each[0] != "model.layers.1.mlp.up_proj.weight"))

    LlamaForCausalLM.load_weights = load


def padded_rows(fill: bool) -> None:
    """Each rank starts at a multiple of the padded size; what lies past the end is filled with zeros or left out."""
    from vllm.model_executor.layers.linear import MergedColumnParallelLinear
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    def take(target: Any, loaded: Any, rank: int) -> None:
        part = loaded[rank * PADDED :][: len(target)]
        target[: len(part)].copy_(part)
        if fill:
            target[len(part) :].fill_(0)

    def load_merged(self: Any, param: Any, loaded_weight: Any, loaded_shard_id: int) -> None:
        rows = self.output_sizes[loaded_shard_id] // self.tp_size
        take(param.data.narrow(0, loaded_shard_id * rows, rows), loaded_weight, self.tp_rank)

    def load_embedding(self: Any, param: Any, loaded_weight: Any) -> None:
        take(param.data, loaded_weight, self.shard_indices.padded_org_vocab_start_index // PADDED)

    MergedColumnParallelLinear.weight_loader_v2 = load_merged
    VocabParallelEmbedding.weight_loader = load_embedding


def k_and_v_are_swapped() -> None:
    from vllm.model_executor.layers.linear import QKVParallelLinear

    own = QKVParallelLinear.weight_loader_v2

    def load(self: Any, param: Any, loaded_weight: Any, loaded_shard_id: str | None = None) -> None:
        own(self, param, loaded_weight, {"k": "v", "v": "k"}.get(loaded_shard_id, loaded_shard_id))

    load.own = own
    QKVParallelLinear.weight_loader_v2 = load


def mend_k_and_v(worker: Any) -> None:
    """For `collective_rpc`: only what the worker has loaded before stays swapped."""
    from vllm.model_executor.layers.linear import QKVParallelLinear

    QKVParallelLinear.weight_loader_v2 = QKVParallelLinear.weight_loader_v2.own


def gate_is_written_twice() -> None:
    """To its own place and to up_proj's. What is up_proj's overwrites it in layer 0 and is dropped in layer 1."""
    from vllm.model_executor.layers.linear import MergedColumnParallelLinear

    own = MergedColumnParallelLinear.weight_loader_v2

    def load(self: Any, param: Any, loaded_weight: Any, loaded_shard_id: int) -> None:
        if loaded_shard_id == 0:
            own(self, param, loaded_weight, 1)
        if loaded_shard_id == 0 or "layers.0" in self.prefix:
            own(self, param, loaded_weight, loaded_shard_id)

    MergedColumnParallelLinear.weight_loader_v2 = load
