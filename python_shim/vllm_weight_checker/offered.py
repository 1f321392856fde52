"""The checkpoint tensors that an engine's loader is offered: names, shapes and dtypes, and values where a loader asks.

Which files these are, in which order they come and how their tensors are named is vLLM's own rule, so its
own loader is asked for it; only the reading of tensors is replaced.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .errors import CheckError

_HF_FORMATS = ("auto", "hf", "safetensors", "fastsafetensors", "instanttensor", "mistral", "pt", "npcache")
SAFETENSORS_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
"""The names of safetensors' format, and torch's dtypes."""


@dataclass(frozen=True)
class Offered:
    """One checkpoint tensor."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    read: Callable[[], torch.Tensor] | None
    """Gives its values, mapped from the file and not copied; None when nobody has them here."""

    def bare(self) -> torch.Tensor:
        """A tensor like it on the meta device."""
        return torch.empty(self.shape, dtype=self.dtype, device="meta")


def described(sources: Mapping[str, Mapping[str, Any]]) -> list[Offered]:
    """The tensors that a caller names, as {name: {"dtype", "shape"}}.

    Raises:
        CheckError: something else than a name, torch's name of a dtype, and a shape.
    """
    offered = []
    for name, source in sources.items():
        try:
            dtype, shape = getattr(torch, str(source["dtype"]).removeprefix("torch.")), tuple(source["shape"])
            if not isinstance(dtype, torch.dtype) or not all(type(extent) is int and extent >= 0 for extent in shape):
                raise ValueError(f"no dtype and shape of a tensor: {dtype!r}, {shape!r}")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CheckError(f'source {name!r} must be {{"dtype": "bfloat16", "shape": [2, 3]}}: {error}') from error
        offered.append(Offered(name, dtype, shape, None))
    return offered


def folder_of(vllm_config: Any, checkpoint: str | None = None) -> str:
    """The folder of the files of `checkpoint`, or of what the engine serves: a local one, also of a model on a hub.

    Raises:
        CheckError: there are no such files.
    """
    try:
        loader, model_config = _loader(vllm_config, checkpoint)
        return str(loader._prepare_weights(model_config.model, None, model_config.revision, True, None)[0])
    except Exception as error:
        raise _unreadable(vllm_config, checkpoint, error) from error


def in_checkpoint(vllm_config: Any, model: torch.nn.Module, checkpoint: str | None) -> list[Offered]:
    """The tensors that vLLM's loader reads for `model`, from the folder `checkpoint` or what the engine serves.

    Raises:
        CheckError: the engine's load format is not one of Hugging Face's files, or they cannot be read.
    """
    try:
        return list(_read_offers(vllm_config, model, checkpoint))
    except CheckError:
        raise
    except Exception as error:
        raise _unreadable(vllm_config, checkpoint, error) from error


def _unreadable(vllm_config: Any, checkpoint: str | None, error: Exception) -> CheckError:
    where = checkpoint or vllm_config.model_config.model
    return CheckError(f"the checkpoint {where} cannot be read: {type(error).__name__}: {error}")


def _loader(vllm_config: Any, checkpoint: str | None) -> tuple[Any, Any]:
    """vLLM's loader of files as Hugging Face has them, and the configuration that names these files."""
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    load_config = copy.copy(vllm_config.load_config)
    if load_config.load_format not in _HF_FORMATS:
        # Such as "dummy": the files are there all the same, and weights are pushed later.
        load_config.load_format = "auto"
        load_config.model_loader_extra_config = {}
    model_config = vllm_config.model_config
    if checkpoint is not None:
        if not os.path.isdir(checkpoint):
            # vLLM would look for a model of that name on a hub.
            raise NotADirectoryError("there is no such folder on this machine")
        model_config = copy.copy(model_config)
        model_config.model, model_config.revision = checkpoint, None
    return DefaultModelLoader(load_config), model_config


def _read_offers(vllm_config: Any, model: torch.nn.Module, checkpoint: str | None) -> Iterator[Offered]:
    loader, model_config = _loader(vllm_config, checkpoint)
    read = _reader(loader)
    loader._get_weights_iterator = read
    for name, (dtype, shape, values) in loader.get_all_weights(model_config, model):
        yield Offered(name, dtype, shape, values)


def _reader(loader: Any) -> Callable[[Any], Iterator[tuple[str, Any]]]:
    """The loader's `_get_weights_iterator`, with what is known of a tensor in its place."""
    from vllm.model_executor.model_loader import weight_utils

    def read(source: Any) -> Iterator[tuple[str, Any]]:
        _, files, safetensors, *_ = loader._prepare_weights(
            source.model_or_path,
            source.subfolder,
            source.revision,
            source.fall_back_to_pt,
            source.allow_patterns_overrides,
        )
        if safetensors:
            for file in sorted(files, key=weight_utils._natural_sort_key):
                for name, known in _in_safetensors(file):
                    yield source.prefix + name, known
        else:
            for file in files:
                for name, known in _in_pickle(file):
                    yield source.prefix + name, known

    return read


def _in_safetensors(file: str) -> Iterator[tuple[str, Any]]:
    from safetensors import safe_open

    def reader(name: str) -> Callable[[], torch.Tensor]:
        return lambda: opened.get_tensor(name)

    # It stays open as long as somebody may read from it.
    opened = safe_open(file, framework="pt")
    for name in opened.keys():
        header = opened.get_slice(name)
        dtype = SAFETENSORS_DTYPES.get(header.get_dtype())
        if dtype is None:
            raise CheckError(
                f"'{name}' in {os.path.basename(file)} has the dtype {header.get_dtype()}, which torch has not"
            )
        yield name, (dtype, tuple(header.get_shape()), reader(name))


def _in_pickle(file: str) -> Iterator[tuple[str, Any]]:
    """The tensors of a pytorch_model.bin, mapped and not read."""
    state = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    for name, tensor in state.items():
        yield name, (tensor.dtype, tuple(tensor.shape), lambda tensor=tensor: tensor)
