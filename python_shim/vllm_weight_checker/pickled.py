"""Checkpoints in torch's own format: a folder of pytorch_model.bin files, opened without reading their weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import CheckError
from .strict_json import parsed

if TYPE_CHECKING:
    import torch

SINGLE = "pytorch_model.bin"
INDEX = f"{SINGLE}.index.json"
_REMEDY = "convert the checkpoint to safetensors"


def is_pickled(path: Path) -> bool:
    """Whether `path` is a folder with such files and none of safetensors, which go before them."""
    if not path.is_dir() or any(path.glob("*.safetensors")) or any(path.glob("*.safetensors.index.json")):
        return False
    return (path / SINGLE).exists() or (path / INDEX).exists()


def open_pickled(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of all files in `folder`, each a view of its file's pages: name -> tensor.

    Nothing in the files is executed (torch's `weights_only`), and nobody may change them while the tensors
    are in use.

    Raises:
        CheckError: a file is absent, is none that torch can map, or holds something else than tensors; or
            the files are not those of their index.
    """
    try:
        import torch
    except ImportError as error:
        raise CheckError(f"{folder} holds {SINGLE}, which needs torch to be read: {error}; or {_REMEDY}") from error
    place_of = _index(folder / INDEX) if (folder / INDEX).exists() else {}
    tensors: dict[str, torch.Tensor] = {}
    home: dict[str, str] = {}
    for file in sorted(set(place_of.values())) or [SINGLE]:
        for name, tensor in _load(folder / file, torch).items():
            if name in home:
                raise CheckError(f"{folder}: tensor {name!r} is in {home[name]} and in {file}")
            home[name] = file
            tensors[name] = tensor
    for name, file in place_of.items():
        if home.get(name) != file:
            raise CheckError(f"{folder / INDEX} says that tensor {name!r} is in {file}, which does not hold it")
    return tensors


def _index(path: Path) -> dict[str, str]:
    """Which file of the folder holds each tensor."""
    try:
        index = parsed(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise CheckError(f"{path} cannot be read: {error}") from error
    places = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(places, dict) or not places:
        raise CheckError(f"{path} has no 'weight_map' of tensors to files")
    for name, file in places.items():
        if not isinstance(file, str) or file in ("", "..") or Path(file).name != file or "\0" in file:
            raise CheckError(f"{path} says that tensor {name!r} is in {file!r}, which is no file of its folder")
    return places


def _load(path: Path, torch_module: Any) -> Mapping[str, torch.Tensor]:
    if not path.is_file():  # opening a pipe would wait for whoever writes to it
        raise CheckError(f"{path} is absent or no regular file")
    try:
        loaded = torch_module.load(path, map_location="cpu", mmap=True, weights_only=True)
    except Exception as error:  # of many kinds, for a file that may hold anything
        raise CheckError(
            f"{path} cannot be mapped into memory: {_first_line(error)}; a file of before torch 1.6, or one that is "
            f"more than tensors, never can: {_REMEDY}"
        ) from error
    if not isinstance(loaded, dict):
        raise CheckError(f"{path} holds a {type(loaded).__name__}, not names with tensors; {_REMEDY}")
    for name, tensor in loaded.items():
        if not isinstance(name, str) or not isinstance(tensor, torch_module.Tensor):
            raise CheckError(f"{path} holds a {type(tensor).__name__} as {name!r}, not a tensor; {_REMEDY}")
    return loaded


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
