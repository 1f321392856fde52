"""Which checkpoints a remote client may let this server read: VLLM_WEIGHT_CHECKER_CHECKPOINT_ROOTS.

The served model's own is always permitted. Any other must be a folder at or under one of those that the
variable lists, and so must every file in it be, once all symbolic links are followed. Whatever is not
permitted is refused in the same words, so that a refusal tells nothing about the file system.
"""

from __future__ import annotations

import os
from pathlib import Path

from .errors import CheckError

VARIABLE = "VLLM_WEIGHT_CHECKER_CHECKPOINT_ROOTS"
REFUSAL = (
    f"this checkpoint is not one that clients may name: leave it out to take the served model's, or start the server "
    f"with {VARIABLE} listing a folder that holds it, and no links to files elsewhere"
)


class CheckpointRefused(CheckError):
    """A remote client has named a checkpoint that it may not let the server read."""

    def __init__(self) -> None:
        super().__init__(REFUSAL)


def permitted(checkpoint: str | None, served: object) -> str | None:
    """The path that workers may read for a client who asked for `checkpoint`; None for the served model's.

    Looks at the file system, so it may take a while.

    Args:
        served: how the engine calls its model: a name on a hub, or a path.

    Raises:
        CheckpointRefused: the client may not.
    """
    if checkpoint is None or checkpoint == served:
        return None
    try:
        asked = _resolved_folder(checkpoint)
        if isinstance(served, str) and os.path.isabs(served) and asked == Path(served).resolve():
            return None
        roots = [Path(os.path.realpath(root)) for root in _listed() if os.path.isabs(root)]
        if _is_under(asked, roots) and all(_is_under(entry.resolve(), roots) for entry in asked.iterdir()):
            return str(asked)
    except (OSError, ValueError, RuntimeError):  # absent, closed to us, a NUL, too long, a circle of links
        pass
    raise CheckpointRefused


def _resolved_folder(checkpoint: str) -> Path:
    if not os.path.isabs(checkpoint):
        raise ValueError("is relative to who knows what")
    folder = Path(checkpoint).resolve(strict=True)
    if not folder.is_dir():
        raise ValueError("is no folder")
    return folder


def _listed() -> list[str]:
    return os.environ.get(VARIABLE, "").split(os.pathsep)


def _is_under(path: Path, roots: list[Path]) -> bool:
    """Whether a resolved path is one of the roots or in one, by whole names of folders."""
    return any(path.is_relative_to(root) for root in roots)
