"""Which paths a remote client may name: every trick with names and links, on a real file system."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vllm_weight_checker.checkpoint_roots import REFUSAL, VARIABLE, CheckpointRefused, permitted

FILE = "model.safetensors"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """models/good is under the one root; elsewhere/secret, models-evil/good and served are not."""
    for folder in ("models/good", "models/hub/snapshots/1", "models/hub/blobs", "elsewhere/secret", "models-evil/good"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / FILE).write_bytes(b"weights")
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / FILE).symlink_to(tmp_path / "elsewhere" / "secret" / FILE)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "models"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(checkpoint: str, served: object = "organisation/model") -> bool:
    """Whether the path is refused; a refusal must say the same of every path."""
    try:
        permitted(checkpoint, served)
    except CheckpointRefused as refusal:
        assert str(refusal) == REFUSAL
        return True
    return False


def test_the_served_model_needs_no_permission(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)
    served = tree / "served"
    assert permitted(None, str(served)) is permitted(None, None) is None
    assert permitted(str(served), str(served)) is permitted("organisation/model", "organisation/model") is None
    assert permitted(f"{tree}/models/../served/", str(served)) is None
    (tree / "link").symlink_to(served)
    assert permitted(str(tree / "link"), str(served)) is permitted(str(served), str(tree / "link")) is None
    assert refused(str(tree / "models" / "good"), str(served)) and refused(str(served))


def test_a_folder_under_a_root_is_permitted(tree: Path) -> None:
    good = tree / "models" / "good"
    for path in (
        f"{good}",
        f"{good}/",
        f"{good}/.",
        f"{tree}/elsewhere/../models//good",
        f"{tree}/models-evil/../models/good",
    ):
        assert permitted(path, "m") == str(good)
    assert permitted(str(tree / "models"), "m") == str(tree / "models")


def test_links_are_followed_before_anything_is_decided(tree: Path) -> None:
    (tree / "way-in").symlink_to(tree / "models")
    assert permitted(str(tree / "way-in" / "good"), "m") == str(tree / "models" / "good")
    (tree / "models" / "way-out").symlink_to(tree / "elsewhere")
    assert refused(str(tree / "models" / "way-out" / "secret"))
    assert refused(str(tree / "models" / "way-out" / ".." / "elsewhere" / "secret"))
    (tree / "models" / "circle").symlink_to(tree / "models" / "circle")
    assert refused(str(tree / "models" / "circle"))


def test_a_file_of_the_folder_must_not_lead_outside(tree: Path) -> None:
    snapshot = tree / "models" / "hub" / "snapshots" / "1"
    (snapshot / "blob.safetensors").symlink_to(Path("..", "..", "blobs", FILE))  # as in a hub's cache
    assert permitted(str(snapshot), "m") == str(snapshot)
    for target in (tree / "elsewhere" / "secret" / FILE, Path("/dev/zero"), tree / "elsewhere" / "absent"):
        link = snapshot / "other.safetensors"
        link.symlink_to(target)
        assert refused(str(snapshot))
        link.unlink()
    assert not refused(str(snapshot))


def test_whole_names_are_compared(tree: Path) -> None:
    for path in ("models-evil/good", "models-evil", "elsewhere/secret", ".", "model"):
        assert refused(str(tree / path))
    assert refused(f"{tree}/models/good/../../elsewhere/secret")
    assert refused(f"{tree}/models/../models-evil/good")


@pytest.mark.parametrize(
    "path",
    [
        "",
        ".",
        "/",
        "models/good",
        "./models/good",
        "~",
        "~root",
        "file:///models",
        "organisation/other",
        "/models/good\0",
        "\0",
        "/" + "x" * 300,
        "/" + "x/" * 100_000,
        "\ud800",
        "/proc/self/root",
        "/dev/stdin",
    ],
)
def test_other_forms_are_refused(tree: Path, path: str) -> None:
    assert refused(path)


@pytest.mark.parametrize(
    "form", ["{}/models/good\0", "{}/models/good/\udc80", "~/models/good", "{}/models/good/" + FILE]
)
def test_forms_of_a_good_path_that_are_none(tree: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tree))
    assert refused(form.format(tree))


def test_what_is_absent_and_what_is_forbidden_are_refused_alike(tree: Path) -> None:
    assert refused(str(tree / "models" / "absent")) and refused(str(tree / "elsewhere" / "absent"))
    os.mkfifo(tree / "models" / "pipe")
    assert refused(str(tree / "models" / "pipe"))


@pytest.mark.parametrize("roots", ["", ":", ".", "models", "./models:", "{}/absent:{}/models/good/" + FILE, "~"])
def test_roots_that_are_none_permit_nothing(tree: Path, roots: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, roots.format(tree, tree))
    assert refused(str(tree / "models" / "good"))


def test_several_roots_and_links_to_roots(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "link").symlink_to(tree / "elsewhere")
    monkeypatch.setenv(VARIABLE, os.pathsep.join([str(tree / "models"), str(tree / "absent"), str(tree / "link")]))
    assert permitted(str(tree / "elsewhere" / "secret"), "m") == str(tree / "elsewhere" / "secret")
    (tree / "models" / "good" / "more").symlink_to(tree / "elsewhere" / "secret" / FILE)
    assert permitted(str(tree / "models" / "good"), "m") == str(tree / "models" / "good")
