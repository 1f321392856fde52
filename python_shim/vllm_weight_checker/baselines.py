"""What may be given as a baseline, and its one form inside this package: a flat dict {key: digest}."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .errors import CheckError

Baseline = Mapping[str, Any] | str


def flat(baseline: Baseline) -> dict[str, str]:
    """The flat {key: digest} of a baseline.

    Args:
        baseline: that map, the report of a detailed checksum (which holds it as "checksums"), or the
            JSON text of either.

    Raises:
        CheckError: it is neither, names a key twice, or is empty.
    """
    value: object = _parsed(baseline) if isinstance(baseline, str) else baseline
    if isinstance(value, Mapping) and isinstance(value.get("checksums"), Mapping):
        value = value["checksums"]
    if not isinstance(value, Mapping):
        raise CheckError(f"a baseline is a map of key to digest, not {type(value).__name__}")
    for key, digest in value.items():
        if not isinstance(key, str) or not isinstance(digest, str):
            raise CheckError(f"the baseline's {key!r} has {digest!r} where a digest was expected")
    if not value:
        raise CheckError("the baseline is empty: nothing can be compared with it")
    return dict(value)


def _parsed(text: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_without_repetition)
    except (ValueError, RecursionError) as error:
        raise CheckError(f"the baseline is no JSON: {error}") from error


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names: dict[str, Any] = {}
    for name, value in pairs:
        if name in names:
            raise CheckError(f"the baseline names {name!r} twice")
        names[name] = value
    return names
