"""Checkpoints like the tiny ones, with other tensors or sizes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any


def changed(model: Path, folder: Path, change: Callable[[dict[str, Any]], object], **config: Any) -> Path:
    """A copy of `model` in `folder`, whose tensors {name: tensor} `change` has changed in place.

    Args:
        config: what config.json then says instead.
    """
    from safetensors.torch import load_file, save_file

    shutil.copytree(model, folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**said, **config}))
    return folder


def without(*names: str) -> Callable[[dict[str, Any]], None]:
    """A change that leaves out these tensors."""

    def drop(tensors: dict[str, Any]) -> None:
        for name in names:
            del tensors[name]

    return drop


def with_qkv_in_one(tensors: dict[str, Any]) -> None:
    """Joins the attention's three projections, as some checkpoints have them; vLLM's Llama loads that too."""
    import torch

    for name in [name for name in tensors if name.endswith(".q_proj.weight")]:
        parts = [tensors.pop(name.replace("q_proj", f"{part}_proj")) for part in "qkv"]
        tensors[name.replace("q_proj", "qkv_proj")] = torch.cat(parts)


def with_odd_sizes(tensors: dict[str, Any]) -> None:
    """509 tokens, and 510 rows in the MLP's projections, so 255 on each of two ranks."""
    for name, tensor in tensors.items():
        if name.endswith(("embed_tokens.weight", "lm_head.weight")):
            tensors[name] = tensor[:509]
        elif name.endswith(("gate_proj.weight", "up_proj.weight")):
            tensors[name] = tensor[:510]
        elif name.endswith("down_proj.weight"):
            tensors[name] = tensor[:, :510]


ODD_SIZES = {"vocab_size": 509, "intermediate_size": 510}
"""What the configuration says of `with_odd_sizes`."""
