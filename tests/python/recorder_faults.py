"""What goes wrong while a recording is made: planted in a worker by `llm.collective_rpc(function)`, and mended.

They are planted when the engine has its model, on the second of two ranks where there are two.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

_undo: list[Callable[[], None]] = []

CONSTRUCTOR = "this model can be built once only"
LOADER = "this loader wants something else"


def constructor_raises(worker: Any) -> None:
    def fail(own: Any, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError(CONSTRUCTOR)

    _replace(worker, "__init__", fail)


def loader_raises(worker: Any) -> None:
    """After it has taken some tensors."""

    def fail(own: Any, model: Any, weights: Iterable[tuple[str, Any]]) -> None:
        own(model, [each for each, _ in zip(weights, range(5), strict=False)])
        raise LookupError(LOADER)

    _replace(worker, "load_weights", fail)


def loader_looks_at_values(worker: Any) -> None:
    """As loaders do that decide by what a tensor holds; here by two large ones, on every rank."""

    def look(own: Any, model: Any, weights: Iterable[tuple[str, Any]]) -> Any:
        def wanted(name: str, tensor: Any) -> bool:
            return not name.endswith("o_proj.weight") or tensor.abs().max().item() > 0

        return own(model, (each for each in weights if wanted(*each)))

    _replace(worker, "load_weights", look, everywhere=True)


def mend(worker: Any) -> None:
    while _undo:
        _undo.pop()()


def load_file(worker: Any, file: str) -> None:
    """Gives the served model the tensors of a file, as a trainer pushes them."""
    from safetensors.torch import load_file

    worker.model_runner.get_model().load_weights(load_file(file).items())


def _replace(worker: Any, name: str, function: Callable[..., Any], everywhere: bool = False) -> None:
    """Has `function` called for a method of the model's class, with the method itself first."""
    if not everywhere and worker.parallel_config.world_size > 1 and not worker.rank:
        return
    kind = type(worker.model_runner.get_model())
    own = getattr(kind, name)

    @functools.wraps(own)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return function(own, *args, **kwargs)

    setattr(kind, name, replaced)
    _undo.append(lambda: setattr(kind, name, own))
