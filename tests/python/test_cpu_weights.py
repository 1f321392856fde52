"""CPU weights kept as loaded: the replaced kernels against torch and against vLLM's own on packed weights."""

from __future__ import annotations

import logging
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import conv1d, linear, silu
from vllm import _custom_ops as ops
from vllm.model_executor.layers import utils
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.experts import cpu_moe
from vllm.platforms import current_platform

from vllm_weight_checker import cpu_weights, notices
from vllm_weight_checker.cpu_experts import forward_experts

VARIABLE = "VLLM_WEIGHT_CHECKER_KEEP_CPU_WEIGHTS"


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has kept nothing yet; what a test replaces in vLLM is put back."""
    monkeypatch.setattr(notices, "_said", set())
    monkeypatch.setattr(cpu_weights, "_applied", set())
    for owner, name in (
        (utils, "dispatch_cpu_unquantized_gemm"),
        (ops, "causal_conv1d_fwd_cpu"),
        (ops, "causal_conv1d_update_cpu"),
        (ops, "causal_conv1d_weight_pack"),
        (cpu_moe.CPUUnquantizedExperts, "process_weights_after_loading"),
        (cpu_moe.CPUUnquantizedExperts, "apply"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    current_platform.import_kernels()


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    cpu_weights.keep_if_asked()


def linear_layer() -> torch.nn.Module:
    torch.manual_seed(5)
    layer = torch.nn.Module()
    layer.weight = torch.nn.Parameter(torch.randn(64, 32, dtype=torch.bfloat16), requires_grad=False)
    return layer


def test_nothing_is_kept_unless_asked(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    own = utils.dispatch_cpu_unquantized_gemm, cpu_moe.CPUUnquantizedExperts.apply, ops.causal_conv1d_fwd_cpu
    cpu_weights.keep_if_asked()
    after = utils.dispatch_cpu_unquantized_gemm, cpu_moe.CPUUnquantizedExperts.apply, ops.causal_conv1d_fwd_cpu
    assert after == own
    layer = linear_layer()
    utils.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
    assert layer.weight.numel() == 0  # what this package lifts; without it the variable has no use
    assert caplog.records == []


def test_a_linear_layer_keeps_its_weight_and_computes_with_it(kept: None) -> None:
    layer = linear_layer()
    weight = layer.weight
    before = weight.clone()
    utils.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
    assert layer.weight is weight
    assert torch.equal(weight, before)
    x = torch.randn(3, 32, dtype=torch.bfloat16)
    assert torch.equal(layer.cpu_linear(x, layer.weight, None), linear(x, before))
    weight.zero_()
    assert not layer.cpu_linear(x, layer.weight, None).any()


def test_it_is_logged_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    cpu_weights.keep_if_asked()
    once = utils.dispatch_cpu_unquantized_gemm
    cpu_weights.keep_if_asked()
    assert utils.dispatch_cpu_unquantized_gemm is once
    (record,) = caplog.records
    assert record.getMessage().endswith("linear layers, convolutions, mixtures of experts")


def test_other_platforms_say_that_it_does_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    import vllm.platforms

    monkeypatch.setattr(
        vllm.platforms, "current_platform", SimpleNamespace(is_cpu=lambda: False, device_type="cuda"), raising=False
    )
    own = utils.dispatch_cpu_unquantized_gemm
    cpu_weights.keep_if_asked()
    assert utils.dispatch_cpu_unquantized_gemm is own
    (record,) = caplog.records
    assert "cuda" in record.getMessage()


def test_a_hook_that_this_vllm_lacks_is_named_and_its_kind_left_whole(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    monkeypatch.delattr(cpu_moe, "CPUUnquantizedExperts")
    monkeypatch.delattr(ops, "causal_conv1d_update_cpu")
    own = ops.causal_conv1d_fwd_cpu, utils.check_cpu_sgl_kernel
    cpu_weights.keep_if_asked()
    assert (ops.causal_conv1d_fwd_cpu, utils.check_cpu_sgl_kernel) == own
    assert hasattr(ops, "causal_conv1d_weight_pack")
    texts = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(texts) == 3
    assert "vllm._custom_ops.causal_conv1d_update_cpu" in texts[0]
    # Also the hooks of older versions, which are not there either.
    assert "CPUUnquantizedExperts.apply" in texts[1]
    assert "CPUFusedMOE.check_grouped_gemm" in texts[1]
    assert texts[2].endswith("linear layers")


def test_the_experts_of_older_versions_take_their_path_in_torch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As 0.27 has them: in another module, with a choice between packing kernels and torch."""

    class CPUFusedMOE:
        def _pad_moe_intermediate_for_grouped_gemm(self, layer: object) -> str:
            return "padded"

        def check_grouped_gemm(self, layer: object) -> tuple[bool, str]:
            return True, "vec"

    older = ModuleType("vllm.model_executor.layers.fused_moe.cpu_fused_moe")
    older.CPUFusedMOE = CPUFusedMOE
    monkeypatch.setitem(sys.modules, older.__name__, older)
    monkeypatch.delattr(cpu_moe, "CPUUnquantizedExperts")
    monkeypatch.setattr(utils, "check_cpu_sgl_kernel", lambda n, k, dtype: True)
    monkeypatch.setattr(ops, "is_onednn_acl_supported", lambda: True)
    monkeypatch.setenv(VARIABLE, "1")
    cpu_weights.keep_if_asked()
    assert CPUFusedMOE().check_grouped_gemm("layer") == (False, "none")
    assert CPUFusedMOE()._pad_moe_intermediate_for_grouped_gemm("layer") is None
    assert utils.check_cpu_sgl_kernel(32, 32, torch.bfloat16) is False
    assert ops.is_onednn_acl_supported() is False
    assert len(caplog.records) == 1


def experts_case(dtype: torch.dtype, biased: bool) -> dict[str, Any]:
    torch.manual_seed(11)
    experts, inner, hidden, tokens, k = 4, 64, 128, 9, 2

    def random(*shape: int) -> torch.Tensor:
        return (torch.randn(shape) * 0.2).to(dtype)

    return {
        "hidden_states": random(tokens, hidden) * 5,
        "w1": random(experts, 2 * inner, hidden),
        "w2": random(experts, hidden, inner),
        "w1_bias": random(experts, 2 * inner) if biased else None,
        "w2_bias": random(experts, hidden) if biased else None,
        "topk_weights": torch.rand(tokens, k),
        "topk_ids": torch.stack([torch.randperm(experts)[:k] for _ in range(tokens)]).to(torch.int32),
    }


def forward(
    case: dict[str, Any], activation: MoEActivation, expert_map: torch.Tensor | None = None, on_input: bool = False
) -> torch.Tensor:
    output = torch.full_like(case["hidden_states"], torch.nan)
    biases = SimpleNamespace(w1_bias=case["w1_bias"], w2_bias=case["w2_bias"])
    tensors = [case[name] for name in ("hidden_states", "w1", "w2", "topk_weights", "topk_ids")]
    empty = torch.empty(0)
    forward_experts(biases, output, *tensors, activation, 4, expert_map, None, None, empty, empty, None, on_input)
    return output


def vllms_kernel(case: dict[str, Any], activation: MoEActivation, on_input: bool = False) -> torch.Tensor:
    output = torch.empty_like(case["hidden_states"])
    w1, w2 = (ops.cpu_prepack_moe_weight(case[name], "vec") for name in ("w1", "w2"))
    arguments = [case[name] for name in ("w1_bias", "w2_bias", "topk_weights", "topk_ids")]
    ops.cpu_fused_moe(output, case["hidden_states"], w1, w2, *arguments, activation.value, "vec", on_input)
    return output


@pytest.mark.parametrize("activation", ["SILU", "GELU", "GELU_TANH", "SWIGLUOAI"])
@pytest.mark.parametrize("biased", [False, True])
def test_experts_from_weights_as_loaded_are_vllms_kernel_on_packed_ones(activation: str, biased: bool) -> None:
    case = experts_case(torch.float32, biased)
    ours = forward(case, MoEActivation[activation])
    truth = vllms_kernel(case, MoEActivation[activation])
    assert truth.abs().max() > 0.5
    torch.testing.assert_close(ours, truth, rtol=1e-3, atol=1e-3)


def test_experts_in_bfloat16_and_with_the_routers_weights_on_the_input() -> None:
    case = experts_case(torch.bfloat16, biased=True)
    ours, truth = (function(case, MoEActivation.SILU).float() for function in (forward, vllms_kernel))
    assert (ours - truth).norm() < 0.02 * truth.norm()
    one = experts_case(torch.float32, biased=False)
    one = {**one, "topk_ids": one["topk_ids"][:, :1].contiguous(), "topk_weights": one["topk_weights"][:, :1].clone()}
    ours, truth = (function(one, MoEActivation.SILU, on_input=True) for function in (forward, vllms_kernel))
    torch.testing.assert_close(ours, truth, rtol=1e-3, atol=1e-3)


def test_experts_of_other_ranks_are_left_to_them() -> None:
    case = experts_case(torch.float32, biased=False)
    whole = forward(case, MoEActivation.SILU)
    total = torch.zeros_like(whole)
    for here in ([0, 2], [1, 3]):
        expert_map = torch.full((4,), -1, dtype=torch.int32)
        expert_map[here] = torch.arange(2, dtype=torch.int32)
        share = {**case, "w1": case["w1"][here], "w2": case["w2"][here]}
        total += forward(share, MoEActivation.SILU, expert_map)
    torch.testing.assert_close(total, whole)


def test_an_activation_that_vllms_kernel_does_not_have_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="relu2"):
        forward(experts_case(torch.float32, biased=False), MoEActivation.RELU2)


def test_a_convolution_keeps_its_weight_and_gives_the_same(kept: None) -> None:
    """vLLM's kernel takes a packed weight; the replacement is given the weight as loaded, [channels, 1, 4]."""
    torch.manual_seed(13)
    channels, tokens, width = 64, 10, 4
    layer = torch.nn.Module()
    weight = torch.randn(channels, 1, width, dtype=torch.bfloat16)
    layer.weight = torch.nn.Parameter(weight.clone(), requires_grad=False)
    utils.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
    assert torch.equal(layer.weight, weight)
    x = torch.randn(tokens, channels, dtype=torch.bfloat16)
    states = torch.zeros(2, width - 1, channels, dtype=torch.bfloat16).transpose(1, 2)
    out = ops.causal_conv1d_fwd_cpu(
        x=x.transpose(0, 1),
        weight=layer.weight,
        bias=None,
        conv_states=states,
        query_start_loc=torch.tensor([0, tokens], dtype=torch.int32),
        cache_indices=torch.tensor([1], dtype=torch.int32),
        has_initial_state=torch.tensor([False]),
        silu_activation=True,
        is_weight_packed=True,
    ).transpose(0, 1)
    padded = torch.nn.functional.pad(x.t().float(), (width - 1, 0))
    truth = silu(conv1d(padded, weight.float(), groups=channels)).t()
    torch.testing.assert_close(out.float(), truth, rtol=0.03, atol=0.03)
    step = torch.randn(1, channels, dtype=torch.bfloat16)
    out = ops.causal_conv1d_update_cpu(
        x=step,
        conv_states=states,
        weight=layer.weight,
        bias=None,
        silu_activation=True,
        conv_state_indices=torch.tensor([1], dtype=torch.int32),
        is_weight_packed=True,
    )
    window = torch.cat([x[-(width - 1) :], step]).float()
    truth = silu((window * weight[:, 0].t().float()).sum(0, keepdim=True))
    torch.testing.assert_close(out.float(), truth, rtol=0.03, atol=0.03)
