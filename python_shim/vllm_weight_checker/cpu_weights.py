"""Keeps weights as loaded on vLLM's CPU backend: VLLM_WEIGHT_CHECKER_KEEP_CPU_WEIGHTS=1.

That backend packs weights for its kernels after loading and leaves empty parameters, or other bytes,
behind. Here the packing is replaced together with the kernel that needs it, so that a model computes
with the very bytes that are checked: slower, and the same answers up to rounding. Unquantised linear
layers, mixture-of-experts layers and convolutions are kept; quantised ones keep the layout of their
kernels, and DeepSeek's attention needs attention_backend="CPU_MLA" besides.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from .cpu_experts import forward_experts
from .notices import warn_once

VARIABLE = "VLLM_WEIGHT_CHECKER_KEEP_CPU_WEIGHTS"
_applied: set[str] = set()
"""The kinds of layers whose packing is already replaced in this process."""


@dataclass(frozen=True)
class Hook:
    """An attribute of vLLM and what makes its replacement from it (None: it is taken away)."""

    module: str
    path: str
    replace: Callable[[Any], Any] | None

    def __str__(self) -> str:
        return f"{self.module}.{self.path}"

    def owner(self) -> Any:
        """The object that has the attribute; raises ImportError or AttributeError when this vLLM lacks it."""
        *parents, name = self.path.split(".")
        owner = functools.reduce(getattr, parents, import_module(self.module))
        getattr(owner, name)
        return owner

    def apply(self) -> None:
        owner, name = self.owner(), self.path.rpartition(".")[2]
        own = getattr(owner, name)
        if self.replace is None:
            delattr(owner, name)
        else:
            setattr(owner, name, self.replace(own))


def keep_if_asked() -> None:
    """Replaces the packing of this process when the environment asks for it; before the model is built."""
    if os.environ.get(VARIABLE) != "1":
        return
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        warn_once(VARIABLE, "%s does nothing here: vLLM runs on %s, not on CPU", VARIABLE, current_platform.device_type)
        return
    kept = [what for what, alternatives in _KINDS.items() if _apply_first(what, alternatives)]
    warn_once(VARIABLE, "CPU weights are kept as loaded, which is slower: %s", ", ".join(kept) or "none")


def _apply_first(what: str, alternatives: list[list[Hook]]) -> bool:
    """Applies the first alternative that this vLLM has all hooks of, or none: half of one would be wrong."""
    if what in _applied:
        return True
    lacking: list[Hook] = []
    for hooks in alternatives:
        absent = [hook for hook in hooks if not _exists(hook)]
        if not absent:
            for hook in hooks:
                hook.apply()
            _applied.add(what)
            return True
        lacking += absent
    names = ", ".join(map(str, lacking))
    warn_once(f"no {what}", "%s stay packed, although %s=1: this vLLM does not have %s", what, VARIABLE, names)
    return False


def _exists(hook: Hook) -> bool:
    try:
        hook.owner()
    except (ImportError, AttributeError):
        return False
    return True


def _plain_linear(own: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(own)
    def dispatch(layer: Any, remove_weight: bool) -> None:
        if layer.weight.dim() != 2:  # a convolution or experts
            return own(layer, remove_weight)
        from torch.nn.functional import linear

        layer.cpu_linear = linear
        return None

    return dispatch


def _plain_convolution(own: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel told that its weight is not packed; it then packs a copy of that layer on every call."""
    signature = inspect.signature(own)
    (flag,) = {"is_weight_packed", "is_vnni"} & signature.parameters.keys()

    @functools.wraps(own)
    def convolve(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        weight = call.arguments["weight"]
        call.arguments |= {flag: False, "weight": weight.view(weight.shape[0], weight.shape[-1])}
        return own(*call.args, **call.kwargs)

    return convolve


def _always(answer: Any) -> Callable[[Any], Callable[..., Any]]:
    def replace(own: Callable[..., Any]) -> Callable[..., Any]:
        return functools.wraps(own)(lambda *args, **kwargs: answer)

    return replace


_OPS = "vllm._custom_ops"
_LAYERS = "vllm.model_executor.layers"
_KINDS: dict[str, list[list[Hook]]] = {
    "linear layers": [[Hook(f"{_LAYERS}.utils", "dispatch_cpu_unquantized_gemm", _plain_linear)]],
    "convolutions": [
        [
            Hook(_OPS, "causal_conv1d_fwd_cpu", _plain_convolution),
            Hook(_OPS, "causal_conv1d_update_cpu", _plain_convolution),
            Hook(_OPS, "causal_conv1d_weight_pack", None),
        ]
    ],
    "mixtures of experts": [
        [
            Hook(
                f"{_LAYERS}.fused_moe.experts.cpu_moe",
                "CPUUnquantizedExperts.process_weights_after_loading",
                _always(None),
            ),
            Hook(
                f"{_LAYERS}.fused_moe.experts.cpu_moe",
                "CPUUnquantizedExperts.apply",
                lambda own: functools.wraps(own)(forward_experts),
            ),
        ],
        # 0.27 has a path in torch of its own, for weights that no packing kernel takes.
        [
            Hook(f"{_LAYERS}.utils", "check_cpu_sgl_kernel", _always(False)),
            Hook(
                f"{_LAYERS}.fused_moe.cpu_fused_moe",
                "CPUFusedMOE._pad_moe_intermediate_for_grouped_gemm",
                _always(None),
            ),
            Hook(f"{_LAYERS}.fused_moe.cpu_fused_moe", "CPUFusedMOE.check_grouped_gemm", _always((False, "none"))),
            Hook(_OPS, "is_onednn_acl_supported", _always(False)),
        ],
    ],
}
