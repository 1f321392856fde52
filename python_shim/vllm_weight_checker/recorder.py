"""The plan of one rank: where every element of every parameter comes from, found by watching the engine's loader.

A twin of the model is built without weights, the loader is run on it under a `Recording`, and then what
vLLM does to each layer after loading. The serving model is only asked for the names, shapes and dtypes
of its parameters.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from typing import Any

import torch
import vllm

from .errors import CheckError
from .finishing import finish
from .model import weights_of, weights_of_model
from .offered import Offered, described, folder_of, in_checkpoint
from .plans import FORMAT, VERSION
from .provenance import Block, Provenance, dtype_name, piece
from .rank import Rank
from .recording import SMALL, NeedsNumbers, NeedsValues, NumbersHaveValues, Recording
from .regions import Region
from .twin import build_twin, untouched
from .unused import explain

_MOST_RECORDINGS = 16
_MOST_BYTES = 1 << 30
"""Of checkpoint tensors that have values while a loader is recorded."""


def served_checkpoint(worker: Any) -> str:
    """The folder with the files of the checkpoint that the engine serves."""
    return folder_of(worker.vllm_config)


def record(
    worker: Any, rank: Rank, checkpoint: str | None = None, sources: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """The plan document of this worker's rank.

    Args:
        worker: a vLLM worker with a model; to be called in its process, while it runs nothing else.
        checkpoint: a folder of files as Hugging Face has them; default: what the engine serves.
        sources: {name: {"dtype", "shape"}} in the place of a checkpoint's, in the order in which they are loaded.

    Raises:
        CheckError: no plan can be made: the model cannot be built again, its loader fails (with its own
            message), or the checkpoint cannot be read.
    """
    config = worker.vllm_config
    live = weights_of(worker).tensors
    with untouched(config) as config:
        kinds: set[str] = set()
        numbers = False
        for _ in range(_MOST_RECORDINGS):
            attempt = _Attempt(config, checkpoint, sources, kinds, numbers)
            try:
                attempt.load()
                attempt.finish(live)
                return attempt.plan(rank, live)
            except NeedsNumbers:
                numbers = True
            except NeedsValues as needs:
                if sources is not None:
                    lacking = "only dtypes and shapes were given; record from the checkpoint's files"
                    raise CheckError(f"{needs}, and {lacking}") from needs
                asked = set(map(_kind, needs.names))
                if asked <= kinds:
                    raise CheckError(str(needs)) from needs
                kinds |= asked
    raise CheckError(f"the loader asks for the values of ever more tensors: {', '.join(sorted(kinds))}")


class _Attempt:
    """One recording, with the values of small checkpoint tensors and of those of `kinds`."""

    def __init__(
        self,
        config: Any,
        checkpoint: str | None,
        sources: Mapping[str, Any] | None,
        kinds: Collection[str],
        numbers: bool,
    ) -> None:
        self._config = config
        self.twin = build_twin(config)
        offers = described(sources) if sources is not None else in_checkpoint(config, self.twin, checkpoint)
        self.offered = {offer.name: offer for offer in offers}
        self._kinds = kinds
        self._bytes = 0
        self._taken = ""
        self.provenance = Provenance()
        small = SMALL if sources is None else 0
        self._recording = Recording(self.provenance, self._values, small, numbers)
        self._numbers = NumbersHaveValues() if numbers else nullcontext()
        self.reasons: dict[str, str] = {}

    def load(self) -> None:
        """Runs the model's own loader."""
        tensors = [(name, self._tensor(offer)) for name, offer in self.offered.items()]
        for name, tensor in tensors:
            self.provenance.add_source(name, tensor)
        try:
            with self._as_loading():
                self.twin.load_weights(self._handing_out(tensors))
        except (NeedsValues, NeedsNumbers, CheckError):
            raise
        except Exception as error:
            last = f" at '{self._taken}', the last tensor that it took" if self._taken else ""
            raise CheckError(f"the loader of this model fails{last}: {type(error).__name__}: {error}") from error

    def _handing_out(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in tensors:
            self._taken = name
            yield name, tensor

    def finish(self, live: Mapping[str, torch.Tensor]) -> None:
        """Runs what vLLM does after loading.

        It ties a head again that equals the embedding. Where only shapes are known, whether they are equal
        is seen from the serving model, which then has one parameter less.
        """
        own, served = weights_of_model(self.twin).tensors, map(_twin_name, live)
        self._recording.equal_if_unknown = bool(own.keys() - set(served))
        with self._as_loading():
            self.reasons = finish(self.twin, self._config.model_config)

    def plan(self, rank: Rank, live: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """The document, under the names of the live parameters."""
        live_names = {_twin_name(name): name for name in live}
        own = weights_of_model(self.twin).tensors
        blocks = {name: self.provenance.blocks(parameter) for name, parameter in own.items()}
        parameters = {
            live_names.get(name, name): self._parameter(
                name, own[name], blocks[name], live.get(live_names.get(name, ""))
            )
            for name in own
            if name in live_names or self._failed(name) is None
        }
        parameters.update(
            {
                name: _unknown(live[name], why)
                for name in live
                if name not in parameters and (why := self._failed(_twin_name(name)))
            }
        )
        return {
            "format": FORMAT,
            "version": VERSION,
            "engine": {"name": "vllm", "version": vllm.__version__},
            "sources": {
                name: {"dtype": dtype_name(offer.dtype), "shape": list(offer.shape)}
                for name, offer in self.offered.items()
            },
            "ranks": [
                {
                    "rank": asdict(rank),
                    "parameters": parameters,
                    "unused": self._unused(parameters, blocks),
                    "only_live": [name for name in live if name not in parameters],
                    "only_twin": [name for name in parameters if name not in live],
                }
            ],
        }

    def _parameter(
        self, name: str, parameter: torch.Tensor, blocks: list[Block], live: torch.Tensor | None
    ) -> dict[str, Any]:
        entry = {
            "dtype": dtype_name(parameter.dtype),
            "shape": list(parameter.shape),
            "pieces": [piece(block) for block in blocks],
        }
        reason = self._failed(name)
        if live is not None and (live.shape, live.dtype) != (parameter.shape, parameter.dtype):
            reason = reason or (
                f"loading makes it {dtype_name(parameter.dtype)} {list(parameter.shape)}, "
                f"and the engine has {dtype_name(live.dtype)} {list(live.shape)}"
            )
        if reason is not None:
            entry["rewritten"] = reason
        return entry

    def _unused(self, parameters: Mapping[str, Any], blocks: Mapping[str, list[Block]]) -> dict[str, str]:
        """Why checkpoint tensors that no parameter of the plan takes an element of are left out."""
        placed = {source for entry in parameters.values() for each in entry["pieces"] for source in _sources(each)}
        reasons = {
            source: f"loaded into '{name}', which is a buffer and no parameter"
            for name, buffer in self.twin.named_buffers()
            for source in self.provenance.sources([buffer])
        }
        for name, written in blocks.items():
            if (why := self._failed(name)) is not None:
                reasons.update({source: f"in '{name}': {why}" for block in written for source in block.origin.sources})
        unplaced = [name for name in self.offered if name not in placed]
        others = [name for name in unplaced if name not in reasons]
        reasons.update(explain(others, self.offered, self._embeddings(blocks), self._config.model_config))
        return {name: reasons[name] for name in unplaced if name in reasons}

    def _embeddings(self, blocks: Mapping[str, list[Block]]) -> frozenset[str]:
        """The checkpoint tensors that are placed in embeddings of tokens."""
        from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

        layers = [name for name, layer in self.twin.named_modules() if isinstance(layer, VocabParallelEmbedding)]
        written = [block for name in layers for block in blocks.get(f"{name}.weight", ())]
        return frozenset(source for block in written for source in block.origin.sources)

    def _failed(self, name: str) -> str | None:
        """Why the bytes of a parameter cannot be known, if the step after loading failed in its layer."""
        return self.reasons.get(name.rpartition(".")[0])

    @contextmanager
    def _as_loading(self) -> Iterator[None]:
        """The surroundings that vLLM gives its loaders, under the recording."""
        from vllm.config import set_current_vllm_config
        from vllm.utils.torch_utils import set_default_torch_dtype

        dtype = self._config.model_config.dtype
        with set_current_vllm_config(self._config), set_default_torch_dtype(dtype), self._numbers, self._recording:
            yield

    def _tensor(self, offer: Offered) -> torch.Tensor:
        bare = offer.bare()
        asked = bare.numel() <= SMALL or (self._kinds and _kind(offer.name) in self._kinds)
        if not asked or offer.read is None:
            return bare
        self._bytes += bare.nbytes
        if self._bytes > _MOST_BYTES:
            raise CheckError(
                f"the loader computes with the values of '{offer.name}' and others like it, which are more than "
                f"{_MOST_BYTES >> 20} MiB; no plan can be recorded"
            )
        # A copy: a loader may write to it, and the file is mapped.
        return offer.read().clone().contiguous()

    def _values(self, name: str) -> torch.Tensor | None:
        offer = self.offered[name]
        return None if offer.read is None else offer.read()


def _kind(name: str) -> str:
    """A checkpoint tensor's name without numbers: what a loader does with it, it does in every layer."""
    return re.sub(r"\d+", "*", name)


def _twin_name(name: str) -> str:
    """The name that a parameter had when it was loaded: vLLM wraps layers for LoRA afterwards."""
    return name.replace(".base_layer.", ".")


def _unknown(live: torch.Tensor, reason: str) -> dict[str, Any]:
    """The entry of a parameter that the engine has made after loading, of which nothing is known."""
    whole = Region.contiguous(live.shape)
    computed = {
        "computed": reason,
        "sources": [],
        "shape": list(whole.shape),
        "offset": 0,
        "strides": list(whole.strides),
    }
    return {"dtype": dtype_name(live.dtype), "shape": list(live.shape), "pieces": [computed]}


def _sources(piece: Mapping[str, Any]) -> Iterable[str]:
    return [piece["source"]] if "source" in piece else piece.get("sources", ())
