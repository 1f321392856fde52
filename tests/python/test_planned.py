"""Expecting and auditing from Python: real checkpoint files in both formats, tensors in memory, and what is refused."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors.torch import save_file

from vllm_weight_checker import CheckError, NativeError, audit, expect
from vllm_weight_checker.errors import Status, TensorError
from vllm_weight_checker.pickled import open_pickled
from vllm_weight_checker.planned import sources_of
from vllm_weight_checker.plans import FORMAT

KEY = "dp0:pp0:pcp0:tp{}:{}"


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    embed = torch.randn(6, 4, generator=generator).to(torch.bfloat16)
    return {"embed": embed, "norm": torch.randn(4, generator=generator), "extra": torch.arange(3)}


def rows(name: str, first: int, count: int, columns: int, **more: Any) -> dict[str, Any]:
    place = {"shape": [count, columns], "offset": 0, "strides": [columns, 1]}
    return {"source": name, "source_offset": first * columns, "source_strides": [columns, 1], **place, **more}


def plan() -> dict[str, Any]:
    """Two ranks with half of the rows of "embed" each, and a whole "norm" in bfloat16; "extra" is named as unused."""

    def parameters(tp: int) -> dict[str, Any]:
        embed = {"dtype": "bfloat16", "shape": [3, 4], "pieces": [rows("embed", 3 * tp, 3, 4)]}
        norm = {"dtype": "bfloat16", "shape": [1, 4], "pieces": [rows("norm", 0, 1, 4)]}
        computed = {"computed": "add", "sources": ["norm"], "shape": [4], "offset": 0, "strides": [1]}
        opaque = {"dtype": "float32", "shape": [4], "pieces": [computed]}
        return {"embed.weight": embed, "norm.weight": norm, "opaque": opaque}

    ranks = [
        {
            "rank": {"dp": 0, "pp": 0, "pcp": 0, "tp": tp},
            "parameters": parameters(tp),
            "unused": {"extra": "a counter"},
        }
        for tp in range(2)
    ]
    sources = {
        "embed": {"dtype": "bfloat16", "shape": [6, 4]},
        "norm": {"dtype": "float32", "shape": [4]},
        "extra": {"dtype": "int64", "shape": [3]},
    }
    return {"format": FORMAT, "version": 1, "engine": {"name": "by hand"}, "sources": sources, "ranks": ranks}


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def truth() -> dict[str, str]:
    held = tensors()
    expected = {}
    for tp in range(2):
        expected[KEY.format(tp, "embed.weight")] = digest(held["embed"][3 * tp : 3 * tp + 3])
        expected[KEY.format(tp, "norm.weight")] = digest(held["norm"].to(torch.bfloat16))
    return expected


def save_shards(folder: Path) -> dict[str, str]:
    """Two files of torch's format, and their index."""
    held = tensors()
    places = {"embed": "pytorch_model-00001-of-00002.bin"}
    places |= dict.fromkeys(("norm", "extra"), "pytorch_model-00002-of-00002.bin")
    for file in set(places.values()):
        torch.save({name: held[name] for name in held if places[name] == file}, folder / file)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return places


def test_safetensors(tmp_path: Path) -> None:
    save_file(tensors(), tmp_path / "model.safetensors")
    for source in (tmp_path, str(tmp_path), tmp_path / "model.safetensors"):
        assert expect(plan(), source) == truth()
    assert expect(json.dumps(plan()), tmp_path, threads=1) == truth()
    assert list(expect(plan(), tmp_path)) == list(truth())


def test_torchs_own_files(tmp_path: Path) -> None:
    torch.save(tensors(), tmp_path / "pytorch_model.bin")
    assert expect(plan(), tmp_path) == truth()
    shards = tmp_path / "shards"
    shards.mkdir()
    save_shards(shards)
    assert expect(plan(), shards) == truth()


def test_safetensors_go_before_torchs_own_files(tmp_path: Path) -> None:
    save_file(tensors(), tmp_path / "model.safetensors")
    torch.save({name: torch.zeros_like(tensor) for name, tensor in tensors().items()}, tmp_path / "pytorch_model.bin")
    assert expect(plan(), tmp_path) == truth()


def test_tensors_in_memory() -> None:
    more = {"more": torch.ones(2), "elsewhere": torch.ones(2, device="meta"), "model._extra_state": None}
    held: dict[str, object] = {**tensors(), **more}
    assert expect(plan(), held) == truth()
    strided = torch.stack([tensors()["embed"]] * 2, dim=1)[:, 1]
    assert expect(plan(), {**held, "embed": strided, "norm": tensors()["norm"].numpy()}) == truth()


def test_the_tree_algorithm_names_itself(tmp_path: Path) -> None:
    save_file(tensors(), tmp_path / "model.safetensors")
    found = expect(plan(), tmp_path, algorithm="sha256-tree")
    held = tensors()["embed"][:3]
    leaf = hashlib.sha256(b"\0" + held.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
    assert found[KEY.format(0, "embed.weight")] == f"sha256-tree:{leaf}" and found.keys() == truth().keys()


def test_progress_ends_at_the_whole_and_an_exception_comes_out() -> None:
    told: list[tuple[int, int]] = []
    expect(plan(), tensors(), progress=lambda done, total: told.append((done, total)))
    assert told[-1][0] == told[-1][1] > 0

    def stop(done: int, total: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        expect(plan(), tensors(), progress=stop)


def test_tensors_of_torchs_own_files_are_the_files_pages(tmp_path: Path) -> None:
    save_shards(tmp_path)
    opened = open_pickled(tmp_path)
    mapped = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if str(tmp_path) in line]
    ranges = [tuple(int(end, 16) for end in line[0].split("-")) for line in mapped]
    assert opened.keys() == tensors().keys()
    for tensor in opened.values():
        assert any(first <= tensor.data_ptr() < last for first, last in ranges)


WRONG_FILES = {
    "legacy": "cannot be mapped .*convert the checkpoint to safetensors",
    "garbage": "cannot be mapped .*convert the checkpoint to safetensors",
    "code": "cannot be mapped .*convert the checkpoint to safetensors",
    "list": "holds a list, not names with tensors",
    "nested": "holds a dict as 'state_dict', not a tensor",
    "pipe": "no regular file",
}


class Code:
    def __reduce__(self) -> Any:
        return os.system, ("touch executed",)


@pytest.mark.parametrize("kind", WRONG_FILES)
def test_files_that_are_refused(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "pytorch_model.bin"
    if kind == "legacy":
        torch.save(tensors(), path, _use_new_zipfile_serialization=False)
    elif kind == "garbage":
        path.write_bytes(b"PK\x03\x04" + bytes(range(256)) * 9)
    elif kind == "code":
        torch.save({"embed": Code()}, path, pickle_module=pickle)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        torch.save([torch.ones(1)] if kind == "list" else {"state_dict": tensors()}, path)
    with pytest.raises(CheckError, match=WRONG_FILES[kind]) as caught:
        expect(plan(), tmp_path)
    assert str(path) in str(caught.value) and not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"norm": "../pytorch_model-00002-of-00002.bin"}, "'norm' is in '../pytorch"),
        ({"norm": "/etc/passwd"}, "'norm' is in '/etc/passwd', which is no file of its folder"),
        ({"norm": ".."}, "no file of its folder"),
        ({"norm": "a\0b"}, "no file of its folder"),
        ({"norm": ""}, "no file of its folder"),
        ({"norm": 7}, "'norm' is in 7"),
        ({"norm": "absent.bin"}, "absent.bin is absent"),
        ({"norm": "pytorch_model-00001-of-00002.bin"}, "'norm' is in pytorch_model-00001-of-00002.bin, which does not"),
        ({"other": "pytorch_model-00001-of-00002.bin"}, "'other' is in .*which does not hold it"),
    ],
)
def test_an_index_that_is_wrong(change: dict[str, Any], told: str, tmp_path: Path) -> None:
    places = save_shards(tmp_path)
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {**places, **change}}))
    with pytest.raises(CheckError, match=told):
        expect(plan(), tmp_path)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"weight_map": {}}', '{"weight_map": {"a": "b", "a": "c"}}', "\udcff"]
)
def test_an_index_that_is_none(text: str, tmp_path: Path) -> None:
    save_shards(tmp_path)
    (tmp_path / "pytorch_model.bin.index.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(CheckError, match=r"pytorch_model\.bin\.index\.json"):
        expect(plan(), tmp_path)


def test_a_tensor_that_two_files_hold(tmp_path: Path) -> None:
    places = save_shards(tmp_path)
    shutil.copy(tmp_path / places["norm"], tmp_path / "again.bin")
    index = {"weight_map": {**places, "extra": "again.bin"}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckError, match="is in again.bin and in pytorch_model-00002-of-00002.bin"):
        expect(plan(), tmp_path)


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ({"embed": tensors()["embed"]}, Status.MISSING_SOURCE),
        ({**tensors(), "norm": tensors()["norm"].double()}, Status.SOURCE_MISMATCH),
        ({**tensors(), "norm": torch.ones(5)}, Status.SOURCE_MISMATCH),
        ("/no/such/folder", Status.BAD_CHECKPOINT),
        ("", Status.BAD_CHECKPOINT),
        ("/a\0b", Status.BAD_CHECKPOINT),
    ],
)
def test_sources_that_do_not_fit(source: Any, status: Status) -> None:
    with pytest.raises(NativeError) as caught:
        expect(plan(), source)
    assert caught.value.status is status


@pytest.mark.parametrize("source", [None, 7, [1], torch.ones(2), b"/models"])
def test_what_is_no_source(source: Any) -> None:
    with pytest.raises(CheckError, match="pass a checkpoint's path, or a mapping of name to tensor"):
        expect(plan(), source)


@pytest.mark.parametrize(
    "wrong", [None, 7, [1], b"{}", "", "{}", "\0", "\udc80", {}, {"format": float("nan")}, {1: {2}}]
)
@pytest.mark.parametrize("verb", [lambda plan: expect(plan, tensors()), audit], ids=["expect", "audit"])
def test_what_is_no_plan(verb: Any, wrong: Any) -> None:
    with pytest.raises(NativeError) as caught:
        verb(wrong)
    assert caught.value.status is Status.BAD_PLAN


def test_an_audit_of_a_good_plan_and_of_one_that_skips() -> None:
    found = audit(plan())
    assert found.complete is True
    assert (found.ranks, found.parameters, found.pieces, found.sources, found.placed) == (2, 6, 6, 3, 2)
    assert found.unplaced == [{"source": "extra", "explained": "a counter"}]
    both_first = plan()
    both_first["ranks"][1]["parameters"]["embed.weight"]["pieces"] = [rows("embed", 0, 3, 4)]
    found = audit(json.dumps(both_first))
    assert found.complete is False
    assert found.partly_placed == [{"source": "embed", "elements": 12, "of": 24, "first": [3, 0]}]


def test_what_a_state_dict_is_called_in_a_plan() -> None:
    named = {"a": {"dtype": "float16", "shape": (2, numpy.int64(3))}, "meta": torch.empty(5, device="meta")}
    arrays = {"n": numpy.zeros((2, 0), numpy.uint8), "s": torch.tensor(1.0, dtype=torch.float8_e4m3fn)}
    assert sources_of({**tensors(), **named, **arrays}) == {
        **plan()["sources"],
        "a": {"dtype": "float16", "shape": [2, 3]},
        "meta": {"dtype": "float32", "shape": [5]},
        "n": {"dtype": "uint8", "shape": [2, 0]},
        "s": {"dtype": "float8_e4m3fn", "shape": []},
    }


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        {},
        [("a", torch.ones(1))],
        {"a": None},
        {"a": "text"},
        {1: torch.ones(1)},
        {"a": numpy.zeros(2, ">f4")},
        {"a": {"dtype": "float32"}},
        {"a": {"dtype": "float32", "shape": [-1]}},
        {"a": {"dtype": "float32", "shape": [1.5]}},
        {"a": {"dtype": "md5", "shape": [1]}},
    ],
)
def test_what_is_no_state_dict(wrong: Any) -> None:
    with pytest.raises(TensorError, match="state dict"):
        sources_of(wrong)
