"""Tensors that only torch can read go through the host in bounded pieces: the same digests, reports and bytes."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import other_device
import pytest
import torch
from other_device import NAME, OtherTensor, behind, to_other
from truth import LAYOUTS, PACKED, PREFIX, QUANTISED, SHAPE, TORCH_DTYPES, painted, sha256, twins

from vllm_weight_checker import CheckError, NativeError, Rank, checksum, compare, elsewhere, expect, notices, reset
from vllm_weight_checker import worker as worker_methods
from vllm_weight_checker.errors import Status, TensorError
from vllm_weight_checker.tables import compare_table

ALGORITHMS = ["sha256", "sha256-tree"]
MIB = 1 << 20
PLAIN_DTYPES = [dtype for dtype in TORCH_DTYPES if dtype not in QUANTISED]


@pytest.fixture(autouse=True)
def copied() -> Iterator[list[int]]:
    """The bytes of each copy from or to the device."""
    other_device.forget()
    yield other_device.copied


def bytes_of(count: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(painted(count, seed))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", PLAIN_DTYPES, ids=str)
def test_every_dtype_in_every_layout(dtype: torch.dtype, algorithm: str) -> None:
    views = {name: view(twins(dtype, SHAPE)[0]) for name, (view, _) in LAYOUTS.items()}
    others = {name: to_other(view) for name, view in views.items()}
    assert checksum(others, algorithm=algorithm) == checksum(views, algorithm=algorithm)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    "size", [MIB // 2 - 1, MIB // 2, MIB // 2 + 1, MIB, MIB + 8192, 3 * MIB // 2, 5 * MIB // 2 + 8193, 4 * MIB]
)
def test_a_large_tensor_goes_in_pieces(copied: list[int], size: int, algorithm: str) -> None:
    tensor = bytes_of(size)
    found = checksum({"w": to_other(tensor)}, algorithm=algorithm, max_host_bytes=MIB)
    assert found == checksum({"w": tensor}, algorithm=algorithm)
    assert sum(copied) == size and max(copied) <= MIB // 2


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.view(3, 1000, 1000).transpose(0, 2),
        lambda t: t.view(1500, 2000)[:, ::2],
        lambda t: t.view(2, 1_500_000).t(),
        lambda t: t.view(1, 2, 1_500_000)[..., 1:],
        lambda t: t[:1000].expand(2000, 1000),
        lambda t: t.view(torch.float32)[3:],
    ],
)
def test_a_large_strided_tensor_goes_in_pieces(copied: list[int], view: Any, algorithm: str) -> None:
    tensor = view(bytes_of(3_000_000))
    found = checksum({"w": to_other(tensor)}, algorithm=algorithm, max_host_bytes=MIB)
    assert found == checksum({"w": tensor}, algorithm=algorithm)
    assert sum(copied) == tensor.nbytes and max(copied) <= MIB // 2


def test_small_tensors_go_together_within_the_bound(copied: list[int]) -> None:
    tensors = {f"w{index}": bytes_of(200_000 + index, index) for index in range(9)}
    others = {name: to_other(tensor) for name, tensor in tensors.items()}
    assert checksum(others, max_host_bytes=MIB) == checksum(tensors)
    assert len(copied) == 9


def test_tied_tensors_are_copied_once(copied: list[int]) -> None:
    tensor = bytes_of(600)
    tied = {"embed": tensor, "head": tensor[:], "part": tensor[:300], "rows": tensor.view(20, 30)}
    digests = checksum({name: to_other(view) for name, view in tied.items()})
    assert digests == checksum(tied)
    assert sum(copied) == 900


def test_tensors_without_an_address(monkeypatch: pytest.MonkeyPatch, copied: list[int]) -> None:
    def none(_tensor: OtherTensor) -> int:
        raise RuntimeError("it has no storage")

    tensors = {"a": bytes_of(100), "b": bytes_of(100, 1)}
    for address in (lambda _: 0, none):
        monkeypatch.setattr(OtherTensor, "data_ptr", address)
        assert checksum({name: to_other(tensor) for name, tensor in tensors.items()}) == checksum(tensors)


def test_host_and_other_tensors_in_one_call_keep_their_order() -> None:
    tensors = {"b": bytes_of(100), "a": bytes_of(200, 1), "c": bytes_of(0)}
    mixed = {"b": to_other(tensors["b"]), "a": tensors["a"].numpy(), "c": to_other(tensors["c"])}
    rank = Rank(tp=3)
    assert list(checksum(mixed, rank).items()) == list(checksum(tensors, rank).items())


def model() -> tuple[dict[str, torch.Tensor], dict[str, object]]:
    tensors = {f"w{index}": bytes_of(1000, index) for index in range(5)}
    return tensors, {name: to_other(tensor) if name != "w2" else tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_compare_says_what_it_says_of_the_host(algorithm: str) -> None:
    tensors, mixed = model()
    baseline = checksum(tensors, algorithm=algorithm)
    for tensor in (tensors["w1"], tensors["w2"]):
        tensor[7] ^= 1
    del baseline[PREFIX + "w3"]
    baseline[PREFIX + "gone"] = baseline[PREFIX + "w0"]
    for known in (checksum(tensors, algorithm=algorithm), baseline):
        report = compare(mixed, known)
        assert report == {**compare(tensors, known), "through_host": 4}
    assert report.differing == [PREFIX + "w1", PREFIX + "w2"] and report.unexpected == [PREFIX + "w3"]


def test_nothing_compared_is_still_an_error() -> None:
    _, mixed = model()
    with pytest.raises(NativeError) as caught:
        compare(mixed, {PREFIX + "stranger": "0" * 64})
    assert caught.value.status is Status.NOTHING_COMPARED


def test_a_text_that_is_no_digest_differs() -> None:
    tensors, mixed = model()
    baseline = {**checksum(tensors), PREFIX + "w1": "none", PREFIX + "w2": hashlib.sha256(b"").hexdigest()}
    assert compare(mixed, baseline).differing == [PREFIX + "w1", PREFIX + "w2"]
    empty = {**checksum(tensors), PREFIX + "w1": sha256(b"")}
    assert compare(mixed, empty).differing == [PREFIX + "w1"]


@pytest.mark.parametrize("fill", ["zero", "random", "poison"])
@pytest.mark.parametrize("dtype", PLAIN_DTYPES, ids=str)
def test_reset_writes_what_it_writes_on_the_host(dtype: torch.dtype, fill: str) -> None:
    for layout, (view, _) in LAYOUTS.items():
        if layout == "overlapping windows":
            continue  # whose order of writing is torch's
        (ours, our_bytes), (theirs, their_bytes) = twins(dtype, SHAPE), twins(dtype, SHAPE)
        report = reset({"w": to_other(view(ours))}, fill, seed=5)
        assert report == reset({"w": view(theirs)}, fill, seed=5)
        assert our_bytes.tobytes() == their_bytes.tobytes(), layout


def test_reset_of_a_large_tensor_keeps_to_its_bound(monkeypatch: pytest.MonkeyPatch, copied: list[int]) -> None:
    monkeypatch.setattr(elsewhere, "_DEFAULT_HOST_BYTES", MIB)
    tensor = bytes_of(3 * MIB)
    reset({"w": to_other(tensor.view(3, MIB).t())}, "poison")
    assert set(tensor.numpy()[::4097]) == {0xFF} and max(copied) <= MIB // 2


def test_reset_counts_tied_and_other_tensors() -> None:
    ours, theirs = bytes_of(300), bytes_of(300)
    tied = lambda t: {"embed": t, "head": t[:], "here": torch.ones(3)}  # noqa: E731
    wrapped = {name: to_other(view) if name != "here" else view for name, view in tied(ours).items()}
    assert (
        reset(wrapped, "random")
        == reset(tied(theirs), "random")
        == {"tensors": 3, "written": 2, "shared": 1, "bytes": 312}
    )
    assert torch.equal(ours, theirs)


def test_parameters_and_inference_tensors_can_be_reset() -> None:
    with torch.inference_mode():
        inference = to_other(torch.ones(4))
    grown = to_other(torch.ones(4)).requires_grad_()
    reset({"inference": inference, "parameter": grown})
    assert not behind(inference).any() and not behind(grown).any()


def test_a_copy_that_fails_is_an_error_that_names_the_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("the device is gone")

    tensor = to_other(torch.ones(4))
    monkeypatch.setattr(other_device, "_bare", fail)
    with pytest.raises(TensorError, match="'w' cannot be copied to the host.*the device is gone"):
        checksum({"w": tensor})
    with pytest.raises(TensorError, match="'w' cannot be written.*the device is gone"):
        reset({"w": tensor})


def test_progress_is_that_of_one_call() -> None:
    tensors, mixed = model()
    for verb in (
        lambda **options: checksum(mixed, **options),
        lambda **options: compare(mixed, checksum(tensors), **options),
        lambda **options: reset(mixed, **options),
    ):
        heard: list[tuple[int, int]] = []
        verb(progress=lambda done, total: heard.append((done, total)))
        assert heard == sorted(heard) and heard[0] == (0, 5000) and heard[-1] == (5000, 5000)
        assert {total for _, total in heard} == {5000}


def test_progress_can_cancel_and_raise() -> None:
    _, mixed = model()
    with pytest.raises(NativeError) as caught:
        checksum(mixed, progress=lambda done, _: done == 5000)
    assert caught.value.status is Status.CANCELLED
    with pytest.raises(ZeroDivisionError):
        reset(mixed, progress=lambda done, _: 1 // (5000 - done))


def test_bad_arguments_are_refused_before_anything_is_copied(copied: list[int]) -> None:
    _, mixed = model()
    for call in (
        lambda: checksum(mixed, algorithm="md5"),
        lambda: checksum(mixed, max_host_bytes=-1),
        lambda: checksum(mixed, max_host_bytes=1 << 64),
        lambda: reset(mixed, "ones"),
        lambda: compare(mixed, "{"),
    ):
        with pytest.raises(NativeError):
            call()
    with pytest.raises(CheckError, match="'meta'.*meta device"):
        checksum({**mixed, "meta": torch.empty(3, device="meta")})
    assert copied == []


@pytest.mark.parametrize("dtype", sorted(PACKED, key=str), ids=str)
def test_elements_that_share_bytes_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(TensorError, match=r"'w' is on the device otherdevice.*\.cpu\(\)"):
        checksum({"w": to_other(twins(dtype, (3, 5))[0])})


def test_the_sources_of_a_plan_must_be_within_reach() -> None:
    plan = {
        "format": "weight-checker-plan",
        "version": 1,
        "engine": {"name": "by hand", "version": "1"},
        "sources": {"w": {"dtype": "float32", "shape": [2]}},
        "ranks": [{"rank": {"dp": 0, "pp": 0, "pcp": 0, "tp": 0}, "parameters": {}}],
    }
    with pytest.raises(TensorError, match=r"'w' is on the device otherdevice.*\.cpu\(\)"):
        expect(plan, {"w": to_other(torch.ones(2))})


def test_the_log_says_it_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(notices, "_said", set())
    with caplog.at_level(logging.WARNING, "vllm_weight_checker"):
        for _ in range(3):
            checksum({"w": to_other(torch.ones(2))})
    assert [NAME in record.message for record in caplog.records] == [True]


def test_rocm_calls_its_devices_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their addresses mean nothing to the CUDA driver, so the library must not get them."""
    monkeypatch.setattr(OtherTensor, "device", property(lambda _: torch.device("cuda", 0)), raising=False)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    tensor = bytes_of(1000)
    assert compare({"w": to_other(tensor)}, checksum({"w": tensor})).through_host == 1
    monkeypatch.setattr(OtherTensor, "data_ptr", lambda _: 0)
    with pytest.raises(TensorError, match="'w' has elements but no memory"):
        checksum({"w": to_other(tensor)})


def test_a_worker_tells_it_in_its_report(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.ones(8)
    module = torch.nn.Module()
    module.register_parameter("weight", torch.nn.Parameter(tensor))
    weights = SimpleNamespace(tensors={"weight": to_other(tensor)}, hidden=(), visible={"weight": to_other(tensor)})
    monkeypatch.setattr(worker_methods, "weights_of", lambda _: weights)
    baseline = worker_methods.checksum(None, Rank())["checksums"]
    assert baseline == {PREFIX + "weight": sha256(np.ones(8, np.float32))}
    found = worker_methods.compare(None, Rank(), baseline=baseline)
    assert found["through_host"] == 1
    told = compare_table({**found, "ranks": [str(Rank())]}, "baseline.json")
    assert "through host  1  copied by torch" in told
