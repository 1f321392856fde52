"""compare says match, or exactly which keys differ, are missing or are unexpected; else it is an error."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vllm_weight_checker import MismatchError, NativeError, Rank, Report, checksum, compare
from vllm_weight_checker.errors import Status

RANK = Rank(dp=0, pp=1, pcp=0, tp=1)
OTHER = Rank(dp=0, pp=1, pcp=0, tp=0)


def model() -> dict[str, torch.Tensor]:
    return {f"layers.{n}.weight": torch.full((4, n), float(n)) for n in range(6)}


def test_a_match_has_counts_that_add_up() -> None:
    tensors = model()
    report = compare(tensors, checksum(tensors, RANK), RANK)
    size = sum(tensor.nbytes for tensor in tensors.values())
    lists = {"mismatches": [], "differing": [], "missing": [], "unexpected": []}
    assert report == {"match": True, **lists, "tensors": 6, "compared": 6, "equal": 6, "bytes": size, "through_host": 0}
    assert report and report.match and isinstance(report, Report)


def test_one_flipped_bit_is_that_key_and_no_other() -> None:
    tensors = model()
    baseline = checksum(tensors, RANK)
    tensors["layers.4.weight"].view(torch.uint8)[3, 15] ^= 1
    report = compare(tensors, baseline, RANK)
    assert report.differing == report.mismatches == ["dp0:pp1:pcp0:tp1:layers.4.weight"]
    assert (report.match, bool(report), report.equal, report.compared) == (False, False, 5, 6)


def test_missing_and_unexpected_keys() -> None:
    tensors = model()
    baseline = checksum(tensors, RANK)
    gone = f"{RANK.prefix}a.gone"
    extra = f"{RANK.prefix}layers.2.weight"
    del baseline[extra]
    report = compare(tensors, {**baseline, gone: "0" * 64}, RANK)
    assert (report.missing, report.unexpected, report.differing) == ([gone], [extra], [])
    assert report.mismatches == [gone, extra] and not report
    assert (report.tensors, report.compared, report.equal) == (6, 5, 5)


@pytest.mark.parametrize("wrap", [dict, MappingProxyType, json.dumps], ids=["dict", "mapping", "text"])
def test_every_form_of_a_baseline(wrap: Any) -> None:
    tensors = model()
    assert compare(tensors, wrap(checksum(tensors, RANK)), RANK).match


def test_keys_of_other_ranks_are_ignored() -> None:
    tensors = model()
    baseline = {**checksum(tensors, RANK), f"{OTHER.prefix}layers.9.weight": "0" * 64, "no rank": "0" * 64}
    assert compare(tensors, baseline, RANK).match


@pytest.mark.parametrize("digest", ["", "0" * 63, "0" * 65, "G" * 64, "none", "é" * 64])
def test_a_text_that_is_no_digest_differs(digest: str) -> None:
    tensors = model()
    baseline = {**checksum(tensors), Rank().prefix + "layers.1.weight": digest}
    assert compare(tensors, baseline).differing == [Rank().prefix + "layers.1.weight"]


def test_upper_case_is_another_text() -> None:
    tensors = model()
    baseline = {key: digest.upper() for key, digest in checksum(tensors).items()}
    assert len(compare(tensors, baseline).differing) == len(tensors)


@pytest.mark.parametrize("tensors", [{}, {"stranger": torch.ones(2)}], ids=["no tensors", "no common key"])
def test_nothing_compared_is_an_error(tensors: dict[str, torch.Tensor]) -> None:
    for baseline in ({}, checksum(model()), checksum(model(), OTHER)):
        with pytest.raises(NativeError) as caught:
            compare(tensors, baseline)
        assert caught.value.status is Status.NOTHING_COMPARED


def test_digests_of_another_algorithm_are_never_compared() -> None:
    tensors = model()
    baseline = {**checksum(tensors), Rank().prefix + "layers.3.weight": "sha256-tree:" + "0" * 64}
    with pytest.raises(NativeError, match=r"layers\.3\.weight") as caught:
        compare(tensors, baseline)
    assert caught.value.status is Status.ALGORITHM_MISMATCH


@pytest.mark.parametrize(
    "baseline",
    ["", "{", "[]", "null", '"text"', '{"a": 1}', '{"a": null}', '{"a": "b"}\0', '{"a": "b"} {}', '{"\\ud800": "b"}',
     {"a": 1}, {"a": b"b"}, {("a",): "b"}, {"\ud800": "b"}, 7, None, ["ab"]],
    ids=repr,
)  # fmt: skip
def test_what_is_no_baseline_is_an_error(baseline: Any) -> None:
    with pytest.raises(NativeError, match="baseline") as caught:
        compare(model(), baseline)
    assert caught.value.status is Status.BAD_BASELINE


def test_a_key_given_twice_is_no_baseline() -> None:
    (key, digest), *_ = checksum(model()).items()
    with pytest.raises(NativeError, match="layers.0.weight") as caught:
        compare(model(), f'{{"{key}": "{digest}", "{key}": "{"0" * 64}"}}')
    assert caught.value.status is Status.BAD_BASELINE


def test_the_exception_for_a_mismatch_names_keys_and_counts() -> None:
    tensors = {f"w{n}": torch.full((2,), n) for n in range(9)}
    report = compare(tensors, {**dict.fromkeys(checksum(tensors), "0" * 64), Rank().prefix + "x": ""})
    text = str(MismatchError(report))
    assert "9 differing, 1 missing, 0 unexpected" in text and f"{Rank().prefix}w4 and 5 more" in text


@given(st.lists(st.sampled_from(["same", "differing", "missing", "unexpected"]), max_size=12))
def test_every_key_is_in_the_list_that_it_belongs_to(kinds: list[str]) -> None:
    tensors: dict[str, torch.Tensor] = {"always": torch.zeros(1)}
    baseline = checksum(tensors)
    expected: dict[str, list[str]] = {"same": [], "differing": [], "missing": [], "unexpected": []}
    for number, kind in enumerate(kinds):
        name, key = f"n{number}", f"{Rank().prefix}n{number}"
        expected[kind].append(key)
        if kind != "missing":
            tensors[name] = torch.tensor([number])
        if kind != "unexpected":
            truth = {"same": number, "differing": number + 1, "missing": 0}[kind]
            baseline |= checksum({name: torch.tensor([truth])})
    report = compare(tensors, baseline)
    for kind in ("differing", "missing", "unexpected"):
        assert report[kind] == sorted(expected[kind])
    assert report.mismatches == sorted(report.differing + report.missing + report.unexpected)
    assert report.match == (not report.mismatches)
    assert report.compared == report.equal + len(report.differing) == report.tensors - len(report.unexpected)
