"""A module in the place of the package's recorder, for workers whose model is a plain torch module.

It says that each parameter is the whole of the checkpoint tensor of its name, and names the sources that it
is told, or those of the safetensors file in the checkpoint's folder, by the safetensors package.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from safetensors import safe_open


class FakeRecorder(ModuleType):
    """`asked` are the arguments of every call, `served` is the folder that the engine has loaded."""

    def __init__(self, served: Path) -> None:
        super().__init__("vllm_weight_checker.recorder")
        self.served = served
        self.asked: list[dict[str, Any]] = []

    def served_checkpoint(self, worker: Any) -> Path:
        return self.served

    def record(self, worker: Any, rank: Any, checkpoint: Any = None, sources: Any = None) -> dict[str, Any]:
        self.asked.append({"checkpoint": checkpoint, "sources": sources})
        parameters = {
            name: {"dtype": _name(tensor.dtype), "shape": list(tensor.shape), "pieces": [_whole(name, tensor)]}
            for name, tensor in worker.model_runner.get_model().named_parameters()
        }
        return {
            "format": "weight-checker-plan",
            "version": 1,
            "engine": {"name": "fake", "version": "1"},
            "sources": sources or _sources(Path(checkpoint or self.served)),
            "ranks": [{"rank": asdict(rank), "parameters": parameters}],
        }


def install(monkeypatch: pytest.MonkeyPatch, served: Path) -> FakeRecorder:
    recorder = FakeRecorder(served)
    monkeypatch.setitem(sys.modules, recorder.__name__, recorder)
    return recorder


def _sources(folder: Path) -> dict[str, Any]:
    with safe_open(folder / "model.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return {name: {"dtype": _name(tensor.dtype), "shape": list(tensor.shape)} for name, tensor in tensors.items()}


def _whole(name: str, tensor: Any) -> dict[str, Any]:
    strides = [1] * tensor.dim()
    for dim in range(tensor.dim() - 2, -1, -1):
        strides[dim] = strides[dim + 1] * tensor.shape[dim + 1]
    place = {"shape": list(tensor.shape), "offset": 0, "strides": strides}
    return {"source": name, "source_offset": 0, "source_strides": strides, **place}


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
