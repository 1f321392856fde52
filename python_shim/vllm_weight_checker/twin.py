"""A second model like the one that an engine serves, without its weights: what a loader can be watched on.

Building it must leave no trace: vLLM keeps layers by name in its configuration, rotary embeddings in a
cache, counters and registries in modules, and torch has random generators. All of that is put back.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .errors import CheckError
from .recording import SMALL, forbid_kernels

aten = torch.ops.aten
_CONTAINERS = (dict, list, set)


def build_twin(vllm_config: Any) -> torch.nn.Module:
    """The model of `vllm_config` once more, its parameters on the meta device. To be called in a worker.

    It has the layout that weights are loaded in, whatever the serving model was turned into since then.
    Buffers and other small tensors have their values, since loaders and constructors use them.

    Raises:
        CheckError: the model cannot be built a second time, with the reason.
    """
    try:
        twin = _construct(vllm_config, bare=True)
    except Exception:
        # Some constructors compute with what they allocate. Untouched memory of torch.empty costs nothing either.
        try:
            twin = _construct(vllm_config, bare=False)
        except Exception as error:
            raise CheckError(
                f"the model cannot be built a second time to watch its loader: {type(error).__name__}: {error}"
            ) from error
    stripped: dict[int, tuple[torch.nn.Parameter, torch.nn.Parameter]] = {}  # with the old one, to keep its id taken
    for module in twin.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                if id(parameter) not in stripped:
                    stripped[id(parameter)] = (parameter, _stripped(parameter))
                module._parameters[name] = stripped[id(parameter)][1]
    return twin


@contextmanager
def untouched(vllm_config: Any) -> Iterator[Any]:
    """A copy of the configuration to work with; what is global in vLLM and torch is as before when it ends."""
    with _restored_randomness(), _own_module_caches(), torch.no_grad():
        yield _independent(vllm_config)


def _construct(vllm_config: Any, bare: bool) -> torch.nn.Module:
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    config = _independent(vllm_config)
    with torch.device("cpu"), set_default_torch_dtype(config.model_config.dtype), _OnCpu(bare):
        return initialize_model(config)


class _OnCpu(TorchDispatchMode):
    """Allocates on the CPU whatever a constructor asks for; with `bare`, large untouched memory on meta."""

    def __init__(self, bare: bool) -> None:
        super().__init__()
        self._bare = bare

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        if device is not None and torch.device(device).type not in ("cpu", "meta"):
            kwargs["device"] = torch.device("cpu")
        kwargs.pop("pin_memory", None)
        if self._bare and func.overloadpacket in (aten.empty, aten.empty_strided, aten.new_empty):
            bare = func(*args, **{**kwargs, "device": torch.device("meta")})
            if bare.numel() > SMALL:
                return bare
        return func(*args, **kwargs)


def _stripped(parameter: torch.nn.Parameter) -> torch.nn.Parameter:
    """A parameter on meta with the same layout, weight loader and other attributes; the same object if possible."""
    if not parameter.is_meta:
        bare = torch.empty_strided(parameter.shape, parameter.stride(), dtype=parameter.dtype, device="meta")
        made = torch.Tensor._make_subclass(type(parameter), bare, parameter.requires_grad)
        attributes = dict(parameter.__dict__)
        try:
            torch.utils.swap_tensors(parameter, made)
        except RuntimeError:  # torch itself holds on to it, as a view's base for example
            parameter = made
        parameter.__dict__.update(attributes)
    forbid_kernels(parameter)
    return parameter


def _independent(vllm_config: Any) -> Any:
    """A copy whose parts and containers can be changed without changing the original's."""
    config = copy.copy(vllm_config)
    for name, part in vars(vllm_config).items():
        if type(part).__module__.startswith("vllm.config"):
            part = copy.copy(part)
            _copy_containers(part)
            setattr(config, name, part)
    _copy_containers(config)
    # The live layers are in it under the names that the twin's will have.
    config.compilation_config.static_forward_context = {}
    return config


def _copy_containers(owner: Any) -> None:
    for name, value in list(vars(owner).items()):
        if isinstance(value, _CONTAINERS):
            object.__setattr__(owner, name, copy.copy(value))


@contextmanager
def _restored_randomness() -> Iterator[None]:
    import random

    import numpy

    own, numpys = random.getstate(), numpy.random.get_state()
    # Nothing is drawn on a device, where the twin has no tensors.
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(own)
            numpy.random.set_state(numpys)


@contextmanager
def _own_module_caches() -> Iterator[None]:
    """vLLM's caches of shared modules, such as its rotary embeddings, empty meanwhile and afterwards as before.

    So the twin shares no module with the serving model, and leaves none behind for the next one.
    """
    caches = [(cache, dict(cache)) for cache in _module_caches()]
    for cache, _ in caches:
        cache.clear()
    try:
        yield
    finally:
        for cache, before in caches:
            cache.clear()
            cache.update(before)


def _module_caches() -> list[dict[Any, Any]]:
    """The dicts of vLLM's modules that hold nothing but torch modules."""
    found = {}
    for name, module in list(sys.modules.items()):
        if name.startswith("vllm.model_executor."):
            # Only plain dicts: a look into another mapping may import what it promises.
            dicts = [value for value in list(vars(module).values()) if type(value) is dict and value]
            found.update({id(value): value for value in dicts if all(map(_is_module, list(value.values())))})
    return list(found.values())


def _is_module(value: object) -> bool:
    return isinstance(value, torch.nn.Module)
