"""The files that the command reads and writes: baselines and plans."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .baselines import flat
from .errors import CheckError
from .plans import Document, parse


def read_baseline(path: Path) -> dict[str, str]:
    """The baseline in a file; every error names the file."""
    return _read(path, "baseline", flat)


def read_plan(path: Path) -> Document:
    """The plan in a file; every error names the file."""
    return _read(path, "plan", parse)


def _read(path: Path, what: str, parse_text: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    if not path.exists():
        raise CheckError(f"{path} is no {what}: there is no such file")
    if not (path.is_file() or path.is_fifo()):  # a device may have no end
        raise CheckError(f"{path} is no {what}: it is neither a file nor a pipe")
    try:
        return parse_text(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise CheckError(f"{path} is no {what}: it is no text in UTF-8 ({error})") from error
    except CheckError as error:
        raise CheckError(f"{path} is no {what}: {error}") from error


def require_place(path: Path, sources: Iterable[Path] = ()) -> None:
    """Raises before the check is made when its result could not be written to `path`, or would replace a source."""
    if path.exists() and any(path.samefile(source) for source in sources if source.exists()):
        raise CheckError(f"{path} is what the result is made from; save it under another name")
    if path.exists() and not path.is_file():
        raise CheckError(f"{path} is no regular file, so nothing can be saved there")
    folder = path.resolve().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise CheckError(f"{path} cannot be saved: {folder} is no folder that can be written to")


def write_whole(path: Path, text: str) -> None:
    """Writes a file that at no moment is there in part: beside its place first, then moved."""
    place = path.resolve()  # a link goes on pointing where it did
    unfinished = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
    try:
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, place)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
