"""What vLLM does to a model after loading, run on a twin layer by layer: where the live weights end up.

A step that only moves elements is followed like a loader. One that fails, because its kernel needs real
weights, leaves its layer's parameters unknown: what the engine holds is then not the checkpoint's bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .recording import NeedsNumbers

Step = tuple[str, torch.nn.Module, Callable[[], None]]
"""The name of a layer, the layer, and what is done to it."""


def finish(twin: torch.nn.Module, model_config: Any) -> dict[str, str]:
    """Does all steps, in vLLM's order; to be called under a `Recording`.

    Returns:
        name of a layer -> why the bytes of its parameters cannot be known.
    """
    reasons: dict[str, str] = {}
    with _no_kernels():
        for prefix, layer, step in _steps(twin, model_config):
            try:
                step()
            except NeedsNumbers:
                raise  # the recording starts again
            except Exception as error:
                why = f"vLLM changes it after loading, which needs the weights: {_first_line(error)}"
                names = [name for name, _ in layer.named_modules()]
                reasons.update({".".join(filter(None, (prefix, name))): why for name in names})
    return reasons


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0][:160]


def _steps(twin: torch.nn.Module, model_config: Any) -> Iterator[Step]:
    """As vLLM's `process_weights_after_loading`, which would end at the first layer that fails."""
    retie = _retie()
    if retie is not None:
        yield "", torch.nn.Module(), lambda: retie(twin, model_config)
    for name, layer in list(twin.named_modules()):
        method = getattr(layer, "quant_method", None)
        if hasattr(method, "process_weights_after_loading"):
            yield name, layer, lambda layer=layer, method=method: method.process_weights_after_loading(layer)
    for name, layer in list(twin.named_modules()):
        if layer is not twin and _is_deferred(layer):
            yield name, layer, lambda layer=layer: layer.process_weights_after_loading(model_config.dtype)
    if hasattr(twin, "process_weights_after_loading"):
        yield "", twin, twin.process_weights_after_loading


def _retie() -> Callable[[torch.nn.Module, Any], None] | None:
    try:
        from vllm.model_executor.model_loader.weight_tying import maybe_retie_word_embeddings
    except ImportError:
        return None  # before vLLM 0.30
    return maybe_retie_word_embeddings


def _is_deferred(layer: torch.nn.Module) -> bool:
    try:
        from vllm.model_executor.layers.attention import is_deferred_attention_layer
    except ImportError:
        return hasattr(layer, "process_weights_after_loading") and not hasattr(layer, "quant_method")
    return is_deferred_attention_layer(layer)


@contextmanager
def _no_kernels() -> Iterator[None]:
    """Nothing is launched on a device: a kernel that is given tensors without data would bring the engine down."""
    runtime = sys.modules.get("triton.runtime.jit")
    jit = getattr(runtime, "JITFunction", None)
    if jit is None:
        yield
        return
    own = jit.run

    def refuse(self: Any, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("a Triton kernel would be launched on tensors without data")

    jit.run = refuse
    try:
        yield
    finally:
        jit.run = own
