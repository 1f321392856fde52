"""A report is a mapping that is true only if it matches, and never loses anything on the way to JSON or a copy."""

from __future__ import annotations

import copy
import json
import pickle

import pytest

from vllm_weight_checker import Report

MISMATCH = {"match": False, "mismatches": ["a"]}


def test_truth_is_the_match() -> None:
    assert not Report(MISMATCH)
    assert Report({"match": True}) and Report({"written": 3})


def test_keys_are_attributes() -> None:
    report = Report(MISMATCH)
    assert report.mismatches == report["mismatches"] == ["a"] and report == MISMATCH and list(report) == list(MISMATCH)
    with pytest.raises(AttributeError, match="no 'equal'; it has match, mismatches"):
        _ = report.equal


def test_nothing_is_lost() -> None:
    report = Report(MISMATCH)
    assert json.loads(json.dumps(dict(report), indent=2)) == MISMATCH
    assert copy.deepcopy(report) == pickle.loads(pickle.dumps(report)) == report
    with pytest.raises(TypeError):
        json.dumps(report, indent=2)  # rather than {}
