"""What tests run inside a vLLM worker: `llm.collective_rpc(function, args=...)` passes the worker first.

Nothing here uses the package. Ranks are named by vLLM's own prefix of their keys, such as "dp0:pp0:pcp0:tp1:".
"""

from __future__ import annotations

from typing import Any


def own_digests(worker: Any) -> dict[str, str]:
    """The digests of vLLM's own function, which stays as it is in the module that defines it."""
    from vllm.model_executor.model_loader.weight_checksum import compute_tensor_digests

    prefix = worker._weight_checksum_prefix()
    return {prefix + name: digest for name, digest in compute_tensor_digests(worker.model_runner.get_model()).items()}


def linear_weights(worker: Any) -> list[str]:
    """The keys of the weights of all linear layers. vLLM packs a copy of the head's, and leaves that as loaded."""
    from vllm.model_executor.layers.linear import LinearBase

    modules = worker.model_runner.get_model().named_modules()
    prefix = worker._weight_checksum_prefix()
    return [f"{prefix}{name}.weight" for name, layer in modules if isinstance(layer, LinearBase)]


def flip(worker: Any, key: str) -> bool:
    """Flips one bit of one element in the middle of the parameter `key`, on the rank that has it: whether it did."""
    import torch

    prefix = worker._weight_checksum_prefix()
    parameters = dict(worker.model_runner.get_model().named_parameters())
    name = key.removeprefix(prefix)
    if not key.startswith(prefix) or name not in parameters:
        return False
    elements = parameters[name].data.view(-1)
    elements[elements.numel() // 2].view(-1).view(torch.uint8)[0] ^= 1
    return True


def break_checks(worker: Any, prefix: str) -> None:
    """Whoever asks this rank for its model gets an error, until `mend_checks`; serving does not ask."""
    if worker._weight_checksum_prefix() == prefix:

        def get_model() -> None:
            raise OSError("the model of this rank cannot be reached")

        worker.model_runner.get_model = get_model


def mend_checks(worker: Any) -> None:
    vars(worker.model_runner).pop("get_model", None)


def prepare_stages(worker: Any) -> None:
    """Allocates what pipeline stages pass on, which vLLM 0.32 on CPU does while compiling only.

    Without it the first request of an eager engine with several stages ends that engine.
    """
    worker.model_runner.profile_run()


def is_accelerated(worker: Any) -> list[bool]:
    """Whether vLLM's worker module calls the library in the place of vLLM's own two functions."""
    from vllm.model_executor.model_loader import weight_checksum
    from vllm.v1.worker import gpu_worker

    names = ("compute_tensor_digests", "zero_weights")
    return [getattr(gpu_worker, name) is not getattr(weight_checksum, name) for name in names]
