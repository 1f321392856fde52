"""Why a checkpoint tensor is not placed in any parameter: what is known to be left out on purpose."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from .offered import Offered

_DERIVED = (
    (r"rotary_emb\.(inv_freq|cos_cached|sin_cached)$|(^|\.)rope\.freqs$", "rotary frequencies, which are computed"),
    (r"(^|\.)(attn|attention)\.masked_bias$", "the value of a causal mask, which the engine has in its kernels"),
    (r"(^|\.)position_ids$", "position numbers, which are computed"),
    (r"(^|\.)num_batches_tracked$", "a counter of the training"),
)
_MASK = re.compile(r"(^|\.)(attn|attention)\.bias$")
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_COMPARED_AT_ONCE = 1 << 24
"""Elements of two large tensors that are compared in one step."""


def explain(
    unplaced: Iterable[str], offered: Mapping[str, Offered], embeddings: Iterable[str], model_config: Any
) -> dict[str, str]:
    """The tensors of `unplaced` that are left out on purpose, with the reason.

    Args:
        unplaced: names of checkpoint tensors that no parameter takes an element of.
        offered: all checkpoint tensors.
        embeddings: those that are placed in input embeddings, which a model may use as its head too.
        model_config: vLLM's configuration of the model.
    """
    reasons = {name: _reason(offered[name], offered, list(embeddings), model_config) for name in unplaced}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def _reason(offer: Offered, offered: Mapping[str, Offered], embeddings: list[str], model_config: Any) -> str | None:
    for pattern, reason in _DERIVED:
        if re.search(pattern, offer.name):
            return reason
    if _MASK.search(offer.name) and len(offer.shape) == 4 and offer.shape[2] == offer.shape[3]:
        return "a causal mask, which the engine has in its kernels"
    for name in embeddings:
        if _is_copy(offer, offered[name], model_config):
            return f"tied to '{name}', which the engine uses in its place"
    return _of_a_draft(offer.name, model_config.hf_text_config)


def _is_copy(offer: Offered, embedding: Offered, model_config: Any) -> bool:
    """Whether it holds the same as an embedding; without values, whether the configuration says so."""
    if (offer.shape, offer.dtype) != (embedding.shape, embedding.dtype):
        return False
    if offer.read is None or embedding.read is None:
        # vLLM unties a model whose file has a head, and ties it again afterwards if it could.
        untied = getattr(model_config, "word_embeddings_untied_by_checkpoint", False)
        return bool(untied or getattr(model_config.hf_text_config, "tie_word_embeddings", False))
    return _equal(offer.read, embedding.read)


def _equal(read: Callable[[], torch.Tensor], read_other: Callable[[], torch.Tensor]) -> bool:
    """Compares mapped tensors of one shape and dtype bit by bit, part by part."""
    parts = [each().reshape(-1).view(torch.uint8).split(_COMPARED_AT_ONCE) for each in (read, read_other)]
    return all(torch.equal(*pair) for pair in zip(*parts, strict=True))


def _of_a_draft(name: str, config: Any) -> str | None:
    """The layers that follow the model's own and predict further tokens."""
    layer = _LAYER.search(name)
    layers, drafting = (getattr(config, key, None) for key in ("num_hidden_layers", "num_nextn_predict_layers"))
    if layer and layers and drafting and layers <= int(layer[1]) < layers + drafting:
        return f"of a layer that drafts further tokens: the model itself has {layers} layers"
    return None
