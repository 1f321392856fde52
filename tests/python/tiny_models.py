"""Tiny checkpoints with random weights and a tokenizer, made on this machine: no download, 2 to 5 MB each.

`tiny_llama()` and `tiny_mixtral()` return a folder that transformers and vLLM load; it lies under target/ and
is made once. From a shell: `python tiny_models.py llama` prints the folder.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

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


@cache
def _folder(name: str) -> Path:
    # The recipe is part of the folder's name, so that a change of it makes a new one.
    recipe = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    folder = HOME / f"{name}-{recipe}"
    if not folder.is_dir():
        # In a process of its own: transformers need not be imported where tests run.
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        subprocess.run([sys.executable, __file__, name, str(folder)], check=True, env=environment)
    return folder


def _make(name: str, folder: Path) -> None:
    """Makes the checkpoint beside its place and moves it there whole."""
    import torch
    import transformers

    torch.manual_seed(20)
    if name == "llama":
        config = transformers.LlamaConfig(**_SIZES)
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    else:
        config = transformers.MixtralConfig(**_SIZES, num_local_experts=4, num_experts_per_tok=2)
        model = transformers.MixtralForCausalLM(config).to(torch.float32)
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=folder.parent))
    model.save_pretrained(unfinished)
    _tokenizer().save_pretrained(unfinished)
    try:
        unfinished.rename(folder)
    except OSError:  # another process was faster
        shutil.rmtree(unfinished)


def _tokenizer() -> object:
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
