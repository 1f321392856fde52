"""Tiny checkpoints with random weights, made on this machine: no download, 1 to 5 MB each.

`tiny_llama()` and `tiny_mixtral()` return a folder that transformers and vLLM load, with a tokenizer; it lies
under target/ and is made once. From a shell: `python tiny_models.py llama` prints the folder. `kind(name)` does
the same for every entry of `model_kinds`, without a tokenizer.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal

from model_kinds import KINDS

HOME = Path(__file__).resolve().parents[2] / "target" / "tiny-models"
VOCABULARY = 512

_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    # Wide enough that the most likely token is seldom a close call.
    "initializer_range": 0.1,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def tiny_llama() -> Path:
    """LlamaForCausalLM in bfloat16, two layers, eight heads over two groups of keys and values."""
    return _folder("llama")


def tiny_mixtral() -> Path:
    """MixtralForCausalLM in float32, two layers of four experts, two of them per token."""
    return _folder("mixtral")


def kind(
    name: str,
    *,
    stored: str = "bfloat16",
    sharded: bool = False,
    pickled: bool = False,
    head: Literal["same", "other"] | None = None,
) -> Path:
    """The folder of a kind of model, whose weights are all random and whose configuration says bfloat16.

    Made in this process, which must not be one that engines fork from: torch starts threads for it.

    Args:
        name: a key of `model_kinds.KINDS`.
        stored: the dtype of the tensors in its files.
        sharded: in several files of at most 200 kB with an index.
        pickled: in pytorch_model.bin in the place of safetensors.
        head: a tied model's files hold a head all the same: the embedding once more, or something else.
    """
    words = [name, stored, *(["sharded"] * sharded), *(["pickled"] * pickled), *([f"{head}-head"] if head else [])]
    folder = HOME / f"{'-'.join(words)}-{_recipe(repr(KINDS[name]))}"
    if not folder.is_dir():
        with _put_at(folder) as unfinished:
            _make_kind(name, unfinished, stored, sharded)
            if pickled or head:
                _store_again(unfinished, pickled, head)
    return folder


def _make_kind(name: str, folder: Path, stored: str, sharded: bool) -> None:
    import torch
    import transformers

    model_type, settings = KINDS[name]
    config = transformers.AutoConfig.for_model(model_type, **settings)
    model = transformers.AutoModelForCausalLM.from_config(config)
    numbers = torch.Generator().manual_seed(20)
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            tensor.normal_(0, 0.1, generator=numbers)
    model.to(getattr(torch, stored)).save_pretrained(folder, max_shard_size="200KB" if sharded else "1GB")
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "dtype": "bfloat16"}))


def _store_again(folder: Path, pickled: bool, head: str | None) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    weights = load_file(file)
    if head:
        embedding = weights["model.embed_tokens.weight"]
        weights["lm_head.weight"] = embedding.clone() if head == "same" else embedding.flip(0)
    if pickled:
        torch.save(weights, folder / "pytorch_model.bin")
        file.unlink()
    else:
        save_file(weights, file, {"format": "pt"})


@contextmanager
def _put_at(folder: Path) -> Iterator[Path]:
    """A folder to be filled, which is moved to its place whole."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        yield unfinished
        if not folder.is_dir():  # another process may have been faster
            unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _recipe(settings: str = "") -> str:
    """A part of a folder's name, so that a change of how it is made makes a new one."""
    return hashlib.sha256(Path(__file__).read_bytes() + settings.encode()).hexdigest()[:12]


@cache
def _folder(name: str) -> Path:
    folder = HOME / f"{name}-{_recipe()}"
    if not folder.is_dir():
        # In a process of its own: transformers need not be imported where tests run.
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        subprocess.run([sys.executable, __file__, name, str(folder)], check=True, env=environment)
    return folder


def _make(name: str, folder: Path) -> None:
    import torch
    import transformers

    torch.manual_seed(20)
    if name == "llama":
        config = transformers.LlamaConfig(**_SIZES)
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    else:
        config = transformers.MixtralConfig(**_SIZES, num_local_experts=4, num_experts_per_tok=2)
        model = transformers.MixtralForCausalLM(config).to(torch.float32)
    with _put_at(folder) as unfinished:
        model.save_pretrained(unfinished)
        _tokenizer().save_pretrained(unfinished)


def _tokenizer() -> Any:
    """One token per byte, after the special ones."""
    import tokenizers
    import transformers

    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate(["<s>", "</s>", *letters])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        _make(sys.argv[1], Path(sys.argv[2]))
    else:
        print(_folder(sys.argv[1]))
