"""The `vllm.general_plugins` entry point: gives every vLLM worker the methods of `worker`.

vLLM calls `register` in every process: API server, engine core, workers and model inspection. All of
these have imported `worker_base` or soon will; anything that costs time or touches kernels waits until
a worker is made. In a worker's process vLLM loads plugins before it looks up the worker class, so the
methods are there for whatever class that is. Whatever goes wrong here, vLLM must start as if this
package were not there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from . import accelerate, cpu_weights
from .notices import warn_once
from .worker import METHODS


def register() -> None:
    """Adds the methods to vLLM's `WorkerBase`; may be called any number of times."""
    try:
        from vllm.v1.worker.worker_base import WorkerBase

        _extend(WorkerBase)
    except Exception as error:
        message = "workers of this vLLM get no weight checker methods: %s: %s"
        warn_once("register", message, type(error).__name__, error)


def _extend(worker_base: type) -> None:
    taken = [name for name, method in METHODS.items() if getattr(worker_base, name, method) is not method]
    if taken:
        raise TypeError(f"{worker_base.__qualname__} already has other attributes of the names {', '.join(taken)}")
    prepare_first = _preparing(vars(worker_base)["__init__"])
    for name, method in METHODS.items():
        setattr(worker_base, name, method)
    worker_base.__init__ = prepare_first  # type: ignore[misc]


def _preparing(init: Callable[..., None]) -> Callable[..., None]:
    """`WorkerBase.__init__`, with `_prepare` before it: in the worker's process, before it has a model."""
    if hasattr(init, "_weight_checker_prepares"):
        return init

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        _prepare(type(self))
        init(self, *args, **kwargs)

    __init__._weight_checker_prepares = True  # type: ignore[attr-defined]
    return __init__


def _prepare(worker_class: type) -> None:
    steps: dict[str, Callable[[], None]] = {
        "weight checksum": lambda: accelerate.install(worker_class),
        "packing of CPU weights": cpu_weights.keep_if_asked,
    }
    for what, step in steps.items():
        try:
            step()
        except Exception as error:
            warn_once(what, "vLLM's own %s is left as it is: %s: %s", what, type(error).__name__, error)
