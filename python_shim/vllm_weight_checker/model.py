"""Which tensors of a vLLM worker are its weights, under which names, and which rank the worker is.

The rule is vLLM's own (its `weight_checksum` module, 0.32 and later), so that keys and digests are the
same; it is written here once more because it must also work in versions that lack that module. Every
verb takes its tensors from here, so that none of them looks at other ones than the rest.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import CheckError, RankError
from .rank import Rank

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Weights:
    """The weights of one worker."""

    tensors: dict[str, torch.Tensor]
    """Name -> tensor, in the order of the model's parameters. Tied parameters appear once."""
    hidden: tuple[str, ...]
    """Names of tensors without a byte whose layer keeps its weights elsewhere: nothing can be said of those."""

    @property
    def visible(self) -> dict[str, torch.Tensor]:
        """The tensors that are not hidden."""
        hidden = frozenset(self.hidden)
        return {name: tensor for name, tensor in self.tensors.items() if name not in hidden}


def weights_of(worker: Any) -> Weights:
    """The weights of a vLLM worker's (target) model.

    Raises:
        CheckError: the worker has no model yet, or has put its weights to sleep.
    """
    if _asleep(worker):
        raise CheckError("the weights of this worker are asleep; call wake_up(tags=['weights']) before the check")
    runner = getattr(worker, "model_runner", None)
    if runner is None:
        raise CheckError("this worker has not loaded a model yet; check after the engine has started")
    try:
        model = runner.get_model()
    except (AttributeError, ValueError) as error:
        raise CheckError(
            f"this worker has not loaded a model yet ({error}); check after the engine has started"
        ) from error
    return weights_of_model(model)


def weights_of_model(model: torch.nn.Module) -> Weights:
    """The weights of a module: its named parameters, or the tensors that such a parameter consists of."""
    tensors: dict[str, torch.Tensor] = {}
    hidden: list[str] = []
    for name, parameter in model.named_parameters():
        for full_name, tensor in _parts(name, parameter):
            tensors[full_name] = tensor
            if tuple(tensor.shape) == (0,) and _is_stand_in(model, name):
                hidden.append(full_name)
    return Weights(tensors, tuple(hidden))


def rank_of(worker: Any) -> Rank:
    """The rank of a vLLM worker, to be called in its process.

    Raises:
        RankError: vLLM does not say, as before its process groups are made.
    """
    try:
        from vllm.distributed import parallel_state

        def index(group: str) -> int:
            return int(getattr(parallel_state, group)().rank_in_group)

        return Rank(
            # data_parallel_rank would not do: it is 0 in every replica of a dense model.
            dp=int(worker.parallel_config.data_parallel_index),
            pp=index("get_pp_group"),
            pcp=index("get_pcp_group") if hasattr(parallel_state, "get_pcp_group") else 0,
            tp=index("get_tp_group"),
        )
    except Exception as error:
        raise RankError(f"vLLM does not say which rank this worker is: {type(error).__name__}: {error}") from error


def _parts(name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """`tensor` itself, or the tensors that hold its bytes when it is only their wrapper."""
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    # Who has not imported vLLM's module has no such parameter either.
    shared_weight = getattr(sys.modules.get("vllm.model_executor.parameter"), "SharedWeightParameter", ())
    if isinstance(tensor, shared_weight):
        inner = tensor.partitions.items()
    elif is_traceable_wrapper_subclass(tensor):
        inner = ((attribute, getattr(tensor, attribute)) for attribute in tensor.__tensor_flatten__()[0])
    else:
        yield name, tensor
        return
    for part, inner_tensor in inner:
        yield from _parts(f"{name}.{part}", inner_tensor)


def _is_stand_in(model: torch.nn.Module, name: str) -> bool:
    """Whether the parameter `name`, of shape (0,), stands for weights that its layer keeps elsewhere.

    vLLM's kernels that pack weights put `torch.empty(0)` in the place of the weight and keep the packed
    bytes in a closure, an attribute or a handle. Not stand-ins are the optional tables (such as an
    empty g_idx), and whatever belongs to a layer that has nothing on this rank, such as one without
    experts: its weights are empty in one dimension and keep the others.
    """
    path, _, leaf = name.rpartition(".")
    layer = model.get_submodule(path)
    if getattr(layer, "local_num_experts", None) == 0:
        return False
    if any(sibling.dim() > 1 and sibling.numel() == 0 for sibling in layer.parameters(recurse=False)):
        return False
    return "weight" in leaf


def _asleep(worker: Any) -> bool:
    """Whether vLLM's sleep mode has taken the memory of the weights away; reading it would break the process."""
    backend = getattr(worker, "_sleep_mode_backend", None)
    if backend is None:
        return False  # made by the first sleep
    if backend.state() != "RUNNING":
        return True
    # After wake_up(tags=["kv_cache"]) the backend says RUNNING and the weights still sleep.
    try:
        from vllm.device_allocator import get_mem_allocator_instance

        allocations = get_mem_allocator_instance().pointer_to_data.values()
        return any(allocation.is_asleep for allocation in allocations if allocation.tag == "weights")
    except Exception:
        return False  # a backend without vLLM's allocator, whose state is all that there is to know
