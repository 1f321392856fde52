"""Proves what model weights an inference engine holds, on every rank.

Importing this package loads neither the Rust library nor torch, numpy or vLLM: the names below are
fetched from their modules on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client import AsyncWeightChecker as AsyncWeightChecker
    from .client import WeightChecker as WeightChecker
    from .errors import CheckError as CheckError
    from .errors import MismatchError as MismatchError
    from .errors import NativeError as NativeError
    from .planned import audit as audit
    from .planned import expect as expect
    from .rank import Rank as Rank
    from .report import Report as Report
    from .verbs import backend as backend
    from .verbs import checksum as checksum
    from .verbs import compare as compare
    from .verbs import reset as reset
    from .worker import WorkerExtension as WorkerExtension

_HOME = {
    "AsyncWeightChecker": "client",
    "CheckError": "errors",
    "MismatchError": "errors",
    "NativeError": "errors",
    "Rank": "rank",
    "Report": "report",
    "WeightChecker": "client",
    "WorkerExtension": "worker",
    "audit": "planned",
    "backend": "verbs",
    "checksum": "verbs",
    "compare": "verbs",
    "expect": "planned",
    "reset": "verbs",
}
__all__ = [*_HOME, "__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("vllm-weight-checker")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
