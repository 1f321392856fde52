"""Lets vLLM's own weight checksum and reset (0.32 and later) use the library: same answers, faster.

vLLM's worker hashes with `compute_tensor_digests(model)` and zeroes with `zero_weights(model)`. They are
replaced in the modules whose workers call them, and vLLM's own functions stay behind: they answer
whenever anything here fails, after one warning.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import verbs
from .model import weights_of_model
from .notices import log, warn_once
from .rank import Rank

VARIABLE = "VLLM_WEIGHT_CHECKER_ACCELERATE"


def install(worker_class: type) -> None:
    """Replaces vLLM's two functions where `worker_class` and its bases use them. A second call changes nothing.

    Does nothing in versions without them, or when VLLM_WEIGHT_CHECKER_ACCELERATE=0.
    """
    if os.environ.get(VARIABLE) == "0":
        return
    modules = dict.fromkeys(sys.modules.get(base.__module__) for base in worker_class.__mro__)
    found = [(module, name) for module in modules for name in _REPLACEMENTS if hasattr(module, name)]
    if not found and hasattr(worker_class, "compute_weight_checksums"):
        warn_once(
            "no function to accelerate",
            "vLLM's own weight checksum is left as it is: %s does not call the functions that are known for it",
            worker_class.__qualname__,
        )
    for module, name in found:
        _replace(module, name)


def _replace(module: ModuleType, name: str) -> None:
    own = getattr(module, name)
    if hasattr(own, "_weight_checker_replaces"):
        return
    if list(inspect.signature(own).parameters) != ["model"]:
        warn_once(
            f"signature of {name}",
            "vLLM's own %s%s is left as it is: this version of it takes other arguments than (model)",
            name, inspect.signature(own),
        )  # fmt: skip
        return
    setattr(module, name, _with_fallback(_REPLACEMENTS[name], own))
    log.info("vLLM's %s uses the weight checker library", name)


def _with_fallback(replacement: Callable[[Any], Any], own: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(own)
    def accelerated(model: Any) -> Any:
        try:
            return replacement(model)
        except Exception as error:
            warn_once(
                f"failure of {own.__name__}",
                "vLLM's own %s is used, since the weight checker library cannot: %s: %s",
                own.__name__, type(error).__name__, error,
            )  # fmt: skip
        return own(model)

    accelerated._weight_checker_replaces = own  # type: ignore[attr-defined]
    return accelerated


def _compute_tensor_digests(model: Any) -> dict[str, str]:
    rank = Rank()
    digests = verbs.checksum(weights_of_model(model).tensors, rank)
    return {key.removeprefix(rank.prefix): digest for key, digest in digests.items()}


def _zero_weights(model: Any) -> None:
    verbs.reset(weights_of_model(model).tensors)


_REPLACEMENTS: dict[str, Callable[[Any], Any]] = {
    "compute_tensor_digests": _compute_tensor_digests,
    "zero_weights": _zero_weights,
}
