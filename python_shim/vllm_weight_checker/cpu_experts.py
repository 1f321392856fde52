"""The forward pass of a mixture of experts from weights as loaded, for vLLM's CPU backend.

vLLM's own kernel reads a packed layout and gives wrong numbers, without any error, for weights that are
not packed. So who keeps the weights as loaded must compute with this in its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_SWIGLU_OAI_SLOPE, _SWIGLU_OAI_LIMIT = 1.702, 7.0


def forward_experts(
    experts: Any,
    output: torch.Tensor,
    hidden_states: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    activation: Any,
    global_num_experts: int,
    expert_map: torch.Tensor | None,
    a1q_scale: torch.Tensor | None,
    a2_scale: torch.Tensor | None,
    workspace13: torch.Tensor,
    workspace2: torch.Tensor,
    expert_tokens_meta: Any,
    apply_router_weight_on_input: bool,
) -> None:
    """Takes the place of `CPUUnquantizedExperts.apply`, whose parameters these are.

    Args:
        experts: vLLM's object, for its `w1_bias` [experts, 2 * inner] and `w2_bias` [experts, hidden] (or None).
        output: [tokens, hidden], written.
        hidden_states: [tokens, hidden].
        w1: [experts, 2 * inner, hidden]; w2: [experts, hidden, inner].
        topk_weights, topk_ids: [tokens, k].
        activation: a member of vLLM's MoEActivation: SILU, GELU, GELU_TANH or SWIGLUOAI.
        expert_map: global expert -> expert of this rank, or -1; None when this rank has all of them.
        apply_router_weight_on_input: `hidden_states` are already multiplied by the router's weights.
    """
    import torch
    from torch.nn.functional import linear

    local_ids = topk_ids.long() if expert_map is None else expert_map[topk_ids.long()]
    total = torch.zeros(output.shape, dtype=torch.float32, device=output.device)
    for expert in local_ids[local_ids >= 0].unique().tolist():
        tokens, choice = (local_ids == expert).nonzero(as_tuple=True)
        inner = linear(hidden_states[tokens], w1[expert], _row(experts.w1_bias, expert))
        result = linear(_activate(activation.value, inner), w2[expert], _row(experts.w2_bias, expert)).float()
        if not apply_router_weight_on_input:
            result *= topk_weights[tokens, choice, None]
        total.index_add_(0, tokens, result)
    output.copy_(total)


def _row(bias: torch.Tensor | None, expert: int) -> torch.Tensor | None:
    return None if bias is None else bias[expert]


def _activate(name: str, inner: torch.Tensor) -> torch.Tensor:
    """[tokens, 2 * inner] -> [tokens, inner]."""
    from torch.nn.functional import gelu, silu

    if name == "swigluoai":  # gate and up alternate
        gate = inner[..., ::2].clamp(max=_SWIGLU_OAI_LIMIT)
        up = inner[..., 1::2].clamp(-_SWIGLU_OAI_LIMIT, _SWIGLU_OAI_LIMIT)
        return gate * (_SWIGLU_OAI_SLOPE * gate).sigmoid() * (up + 1)
    gate, up = inner.chunk(2, dim=-1)
    if name == "silu":
        return silu(gate) * up
    if name in ("gelu", "gelu_tanh"):
        return gelu(gate, approximate="tanh" if name == "gelu_tanh" else "none") * up
    raise NotImplementedError(f"experts with the activation {name!r} cannot run from weights kept as loaded")
