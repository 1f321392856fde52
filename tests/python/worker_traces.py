"""What tests look at inside a vLLM worker to see whether something has left a trace in it.

Everything is for `llm.collective_rpc(function, args=...)`, which passes the worker first. Objects are told
apart by their ids, which is sound as long as the engine holds them.
"""

from __future__ import annotations

import gc
import hashlib
import os
import pickle
import random
import sys
from collections.abc import Iterator
from typing import Any

Traces = dict[str, Any]

_PLAIN = (type(None), bool, int, float, str, bytes)


def traces(worker: Any) -> Traces:
    """{what: its state} of the worker's model, configuration, vLLM's modules, and what is global in torch."""
    import torch

    model = worker.model_runner.get_model()
    seen: Traces = {"rank": worker._weight_checksum_prefix()}
    for kind, tensors in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, tensor in tensors:
            seen[f"{kind} {name}"] = (id(tensor), tensor.data_ptr(), list(tensor.shape), _digest(tensor))
            seen[f"attributes of {kind} {name}"] = {key: _told(value) for key, value in vars(tensor).items()}
    for name, module in model.named_modules():
        seen[f"module {name}"] = (id(module), type(module).__qualname__)
        seen[f"attributes of module {name}"] = {key: _told(value) for key, value in vars(module).items()}
    seen.update(_within("vllm_config", worker.vllm_config, set()))
    seen.update(_globals())
    seen["random"] = [
        _hash(torch.get_rng_state().numpy().tobytes()),
        _hash(pickle.dumps(random.getstate())),
        _hash(pickle.dumps(_numpys_state())),
    ]
    seen["torch"] = [str(torch.get_default_dtype()), str(torch.get_default_device()), torch.is_grad_enabled()]
    seen["modes"] = [torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()]
    return seen


def rope_cache(worker: Any) -> dict[str, int]:
    """The rotary embeddings that vLLM keeps for all models of a process."""
    from vllm.model_executor.layers.rotary_embedding import _ROPE_DICT

    return {repr(key): id(module) for key, module in _ROPE_DICT.items()}


def layers_in_context(worker: Any) -> list[str]:
    """The layers that vLLM's kernels find by name, if each is the served model's own."""
    modules = dict(worker.model_runner.get_model().named_modules())
    context = worker.vllm_config.compilation_config.static_forward_context
    assert all(any(layer is module for module in modules.values()) for layer in context.values())
    return list(context)


def alive(worker: Any) -> dict[str, int]:
    """How many modules and tensors this process has, and the bytes of its memory."""
    import torch

    gc.collect()
    kinds = [type(thing) for thing in gc.get_objects()]
    with open("/proc/self/statm") as statm:
        pages = int(statm.read().split()[1])
    return {
        "modules": sum(issubclass(kind, torch.nn.Module) for kind in kinds),
        "tensors": sum(issubclass(kind, torch.Tensor) for kind in kinds),
        "bytes": pages * os.sysconf("SC_PAGE_SIZE"),
    }


def second_model(worker: Any) -> dict[str, Any]:
    """Loads the model once more with vLLM's own loader: its digests, and whether its parts compute the same."""
    import copy

    import torch
    from vllm.config import set_current_vllm_config
    from vllm.forward_context import set_forward_context
    from vllm.model_executor.model_loader import get_model

    config = copy.copy(worker.vllm_config)
    config.compilation_config = copy.copy(config.compilation_config)
    config.compilation_config.static_forward_context = {}
    config.compilation_config.static_all_moe_layers = []
    with set_current_vllm_config(config):
        made, served = get_model(vllm_config=config), worker.model_runner.get_model()
    prefix = worker._weight_checksum_prefix()
    hidden = torch.linspace(-1, 1, 256 * 4, dtype=config.model_config.dtype).reshape(4, 256)
    positions = torch.arange(4)

    def computed(model: Any, its_config: Any) -> list[Any]:
        layer = model.model.layers[1]
        # Experts are found by name in the context of a forward pass.
        with torch.inference_mode(), set_forward_context(None, its_config, num_tokens=4):
            mixed = (layer.mlp if hasattr(layer, "mlp") else layer.block_sparse_moe)(hidden.clone())
            turned = layer.self_attn.rotary_emb(positions, hidden.clone(), hidden[:, :64].clone())
        return [mixed, *turned]

    pairs = zip(computed(made, config), computed(served, worker.vllm_config), strict=True)
    return {
        "digests": {prefix + name: _digest(parameter) for name, parameter in made.named_parameters()},
        "same outputs": [torch.equal(*pair) and bool(pair[0].abs().max() > 0) for pair in pairs],
        "in context": list(config.compilation_config.static_forward_context),
    }


def digests(worker: Any) -> dict[str, str]:
    """hashlib's SHA-256 of every parameter."""
    prefix = worker._weight_checksum_prefix()
    parameters = worker.model_runner.get_model().named_parameters()
    return {prefix + name: _digest(parameter) for name, parameter in parameters}


def differences(before: list[Traces], after: list[Traces]) -> list[str]:
    """What differs between the traces of all ranks."""
    assert len(before) == len(after)
    return [
        f"{was['rank']} {what}: {was.get(what)} -> {now.get(what)}"
        for was, now in zip(before, after, strict=True)
        for what in {**was, **now}
        if was.get(what) != now.get(what)
    ]


def _digest(tensor: Any) -> str:
    import torch

    return _hash(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _numpys_state() -> Any:
    import numpy

    return numpy.random.get_state()


def _told(value: Any) -> Any:
    """A plain value as it is, a container by what is in it, and everything else by its id."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if type(value) is dict:
        return {repr(key): _known(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return [_known(each) for each in value]
    if type(value) in (set, frozenset):
        return sorted(str(_known(each)) for each in value)
    return id(value)


def _known(value: Any) -> Any:
    return repr(value) if isinstance(value, _PLAIN) else id(value)


def _within(name: str, thing: Any, passed: set[int]) -> Iterator[tuple[str, Any]]:
    """The state of a configuration and of every configuration in it."""
    if id(thing) in passed:
        return
    passed.add(id(thing))
    yield name, id(thing)
    for key, value in vars(thing).items():
        yield f"{name}.{key}", _told(value)
        if type(value).__module__.startswith(("vllm.", "transformers.")) and hasattr(value, "__dict__"):
            yield from _within(f"{name}.{key}", value, passed)


def _globals() -> Iterator[tuple[str, Any]]:
    """The plain values and containers of vLLM's modules and of their classes: counters, caches, registries."""
    for name, module in sorted(sys.modules.items()):
        if not name.startswith("vllm."):
            continue
        for key, value in list(vars(module).items()):
            if key.startswith("__"):
                continue
            if isinstance(value, _PLAIN) or type(value) in (dict, list, set):
                yield f"{name}.{key}", _told(value)
            elif isinstance(value, type) and value.__module__ == name:
                for attribute, its_value in list(vars(value).items()):
                    if not attribute.startswith("__") and type(its_value) in (int, float, dict, list, set):
                        yield f"{name}.{key}.{attribute}", _told(its_value)
