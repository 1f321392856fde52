"""Many kinds of models, each as small as its architecture allows, for `tiny_models.kind`."""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]
Kind = tuple[str, Config]
"""transformers' model type, and its configuration."""

_TOKENS: Config = {"vocab_size": 512, "bos_token_id": 0, "eos_token_id": 1}
_SIZES: Config = {
    **_TOKENS,
    "pad_token_id": 0,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
_GPT: Config = {**_TOKENS, "n_embd": 128, "n_layer": 2, "n_head": 8, "n_positions": 256}
_OPT: Config = {
    **_TOKENS,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "max_position_embeddings": 256,
}
_FALCON: Config = {**_OPT, "multi_query": False, "alibi": False, "parallel_attn": True, "bias": False}
_MAMBA: Config = {**_TOKENS, "pad_token_id": 0, "hidden_size": 128, "state_size": 16, "num_hidden_layers": 2}

# Groups of settings that several architectures have under the same names.
_EXPERTS: Config = {"num_experts": 4, "num_experts_per_tok": 2}
_LOCAL_EXPERTS: Config = {"num_local_experts": 4, "num_experts_per_tok": 2}
_NARROW_EXPERTS: Config = {**_EXPERTS, "moe_intermediate_size": 64}
_GROUPS: Config = {"n_group": 1, "topk_group": 1}
_ROUTED_EXPERTS: Config = {
    **_GROUPS,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
}
_LATENT_ATTENTION: Config = {
    "num_key_value_heads": 8,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "head_dim": 16,
}
_DEEPSEEK: Config = {**_ROUTED_EXPERTS, **_LATENT_ATTENTION, "first_k_dense_replace": 1}
_LINEAR_ATTENTION: Config = {
    "head_dim": 32,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_value_heads": 8,
    "linear_num_key_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
_SLIDING_AND_FULL = ["sliding_attention", "full_attention"]


def _sized(*groups: Config, **differences: Any) -> Config:
    config = dict(_SIZES)
    for group in groups:
        config.update(group)
    return {**config, **differences}


KINDS: dict[str, Kind] = {
    # Llama and what is built as it is
    "llama_gqa": ("llama", _sized()),
    "llama_tied": ("llama", _sized(tie_word_embeddings=True)),
    "llama_509": ("llama", _sized(vocab_size=509)),
    "llama_1kv": ("llama", _sized(num_key_value_heads=1)),
    "llama_bias": ("llama", _sized(attention_bias=True, mlp_bias=True)),
    "mistral": ("mistral", _sized()),
    "qwen2": ("qwen2", _sized(tie_word_embeddings=True)),
    "qwen3": ("qwen3", _sized(head_dim=32)),
    "phi3": ("phi3", _sized(original_max_position_embeddings=256)),
    "gemma": ("gemma", _sized(head_dim=16, tie_word_embeddings=True)),
    "gemma2": ("gemma2", _sized(head_dim=16, tie_word_embeddings=True, query_pre_attn_scalar=16)),
    "gemma3_text": ("gemma3_text", _sized(head_dim=16, tie_word_embeddings=True, query_pre_attn_scalar=16)),
    "gemma3n_text": (
        "gemma3n_text",
        _sized(
            tie_word_embeddings=True,
            head_dim=16,
            num_hidden_layers=5,
            intermediate_size=[256] * 5,
            num_kv_shared_layers=2,
            layer_types=["sliding_attention", *_SLIDING_AND_FULL, *_SLIDING_AND_FULL],
            vocab_size_per_layer_input=512,
            hidden_size_per_layer_input=16,
            laurel_rank=8,
            activation_sparsity_pattern=[0.0] * 5,
            altup_num_inputs=2,
        ),
    ),
    "vaultgemma": ("vaultgemma", _sized(head_dim=16)),
    "cohere": ("cohere", _sized(tie_word_embeddings=True)),
    "cohere2": ("cohere2", _sized(tie_word_embeddings=True)),
    "olmo": ("olmo", _sized()),
    "olmo2": ("olmo2", _sized()),
    "olmo3": ("olmo3", _sized(layer_types=_SLIDING_AND_FULL, sliding_window=64)),
    "granite": ("granite", _sized()),
    "glm": ("glm", _sized(head_dim=16)),
    "glm4": ("glm4", _sized(head_dim=16)),
    "exaone4": ("exaone4", _sized(head_dim=16, sliding_window=64, sliding_window_pattern=2)),
    "ernie4_5": ("ernie4_5", _sized(head_dim=16)),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", _sized(head_dim=16)),
    "seed_oss": ("seed_oss", _sized(head_dim=16)),
    "smollm3": ("smollm3", _sized()),
    "arcee": ("arcee", _sized()),
    "apertus": ("apertus", _sized()),
    "helium": ("helium", _sized(head_dim=16)),
    "jais2": ("jais2", _sized()),
    "nanochat": ("nanochat", _sized()),
    "nemotron": ("nemotron", _sized(head_dim=16)),
    "youtu": ("youtu", _sized(_LATENT_ATTENTION)),
    # GPT and other older ones
    "gpt2": ("gpt2", _GPT),
    "gpt_bigcode": ("gpt_bigcode", {**_GPT, "multi_query": True}),
    "gptj": ("gptj", {**_GPT, "rotary_dim": 16}),
    "gpt_neox": ("gpt_neox", _sized()),
    "opt": ("opt", {**_OPT, "ffn_dim": 256, "word_embed_proj_dim": 128}),
    "bloom": ("bloom", {**_TOKENS, "hidden_size": 128, "n_layer": 2, "n_head": 8}),
    "falcon": ("falcon", {**_FALCON, "multi_query": True, "new_decoder_architecture": False}),
    "falcon40": ("falcon", {**_FALCON, "num_kv_heads": 2, "new_decoder_architecture": True}),
    "falcon_rw": (
        "falcon",
        {**_FALCON, "alibi": True, "parallel_attn": False, "bias": True, "new_decoder_architecture": False},
    ),
    "starcoder2": ("starcoder2", _sized()),
    "stablelm": ("stablelm", _sized(use_qkv_bias=True)),
    "phi": ("phi", _sized(num_key_value_heads=8)),
    "persimmon": ("persimmon", _sized(num_key_value_heads=8)),
    # Mixtures of experts
    "mixtral": ("mixtral", _sized(_LOCAL_EXPERTS)),
    "phimoe": ("phimoe", _sized(_LOCAL_EXPERTS)),
    "qwen2_moe": ("qwen2_moe", _sized(_NARROW_EXPERTS, shared_expert_intermediate_size=128)),
    "qwen3_moe": ("qwen3_moe", _sized(_NARROW_EXPERTS, head_dim=32)),
    "deepseek_v2": ("deepseek_v2", _sized(_DEEPSEEK)),
    "deepseek_v2_lite": ("deepseek_v2", _sized(_DEEPSEEK, q_lora_rank=None)),
    "deepseek_v3": ("deepseek_v3", _sized(_DEEPSEEK, topk_method="noaux_tc")),
    "dots1": ("dots1", _sized(_ROUTED_EXPERTS, num_key_value_heads=8, head_dim=16, first_k_dense_replace=1)),
    "glm4_moe": ("glm4_moe", _sized(_ROUTED_EXPERTS, head_dim=16, first_k_dense_replace=1)),
    "solar_open": ("solar_open", _sized(_ROUTED_EXPERTS, head_dim=16)),
    "olmoe": ("olmoe", _sized(_EXPERTS)),
    "flex_olmo": ("flex_olmo", _sized(_EXPERTS)),
    "granitemoe": ("granitemoe", _sized(_LOCAL_EXPERTS)),
    "granitemoeshared": ("granitemoeshared", _sized(_LOCAL_EXPERTS, shared_intermediate_size=64)),
    "gpt_oss": ("gpt_oss", _sized(_LOCAL_EXPERTS, head_dim=16, layer_types=_SLIDING_AND_FULL)),
    "llama4_text": (
        "llama4_text",
        _sized(
            num_local_experts=4,
            num_experts_per_tok=1,
            head_dim=16,
            intermediate_size_mlp=256,
            interleave_moe_layer_step=1,
            attention_chunk_size=64,
        ),
    ),
    "ernie4_5_moe": (
        "ernie4_5_moe",
        _sized(
            head_dim=16,
            moe_num_experts=4,
            moe_k=2,
            moe_intermediate_size=64,
            moe_num_shared_experts=1,
            moe_layer_start_index=1,
        ),
    ),
    "exaone_moe": (
        "exaone_moe",
        _sized(
            _NARROW_EXPERTS,
            _GROUPS,
            head_dim=16,
            num_shared_experts=1,
            first_k_dense_replace=1,
            layer_types=_SLIDING_AND_FULL,
            sliding_window=64,
            is_moe_layer=[False, True],
        ),
    ),
    "hunyuan_v1_moe": ("hunyuan_v1_moe", _sized(head_dim=16, num_experts=4, moe_topk=2)),
    "minimax_m2": (
        "minimax_m2",
        _sized(_LOCAL_EXPERTS, head_dim=16, rotary_dim=16, scoring_func="sigmoid", use_routing_bias=True),
    ),
    # State spaces and other layers in the place of attention. vLLM ties Zamba-2 and LFM2 whatever a configuration says.
    "mamba": ("mamba", _MAMBA),
    "mamba2": ("mamba2", {**_MAMBA, "num_heads": 8, "head_dim": 32, "n_groups": 1}),
    "falcon_mamba": ("falcon_mamba", _MAMBA),
    "falcon_h1": (
        "falcon_h1",
        _sized(mamba_d_ssm=128, mamba_n_heads=8, mamba_d_head=16, mamba_d_state=16, mamba_n_groups=1),
    ),
    "jamba": (
        "jamba",
        _sized(
            _EXPERTS,
            attn_layer_period=2,
            attn_layer_offset=1,
            expert_layer_period=2,
            expert_layer_offset=1,
            mamba_d_state=8,
            use_mamba_kernels=False,
        ),
    ),
    "granitemoehybrid": (
        "granitemoehybrid",
        _sized(
            _LOCAL_EXPERTS,
            shared_intermediate_size=64,
            layer_types=["mamba", "attention"],
            mamba_n_heads=8,
            mamba_d_head=32,
            mamba_d_state=16,
            mamba_n_groups=1,
        ),
    ),
    "zamba2": (
        "zamba2",
        _sized(
            tie_word_embeddings=True,
            num_key_value_heads=8,
            layers_block_type=["mamba", "hybrid"],
            mamba_d_state=16,
            mamba_ngroups=1,
            n_mamba_heads=8,
            num_mem_blocks=1,
            attention_head_dim=32,
            attention_hidden_size=256,
            mamba_headdim=32,
            use_mem_rope=True,
        ),
    ),
    "lfm2_moe": (
        "lfm2_moe",
        _sized(_NARROW_EXPERTS, tie_word_embeddings=True, layer_types=["conv", "full_attention"], num_dense_layers=1),
    ),
    "qwen3_next": ("qwen3_next", _sized(_NARROW_EXPERTS, _LINEAR_ATTENTION, shared_expert_intermediate_size=64)),
    "qwen3_5_text": ("qwen3_5_text", _sized(_LINEAR_ATTENTION)),
}
