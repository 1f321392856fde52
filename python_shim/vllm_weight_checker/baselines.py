"""What may be given as a baseline, and its one form inside this package: a flat dict {key: digest}."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .errors import CheckError
from .strict_json import parsed

_FORM = re.compile("(?:([^:]+):)?[0-9a-f]{64}")

Baseline = Mapping[str, Any] | str


def flat(baseline: Baseline) -> dict[str, str]:
    """The flat {key: digest} of a baseline.

    Args:
        baseline: that map, the report of a detailed checksum (which holds it as "checksums"), or the
            JSON text of either.

    Raises:
        CheckError: it is neither, names a key twice, is empty, or mixes digests of two algorithms.
    """
    value: object = parsed(baseline, "the baseline") if isinstance(baseline, str) else baseline
    if isinstance(value, Mapping) and isinstance(value.get("checksums"), Mapping):
        value = value["checksums"]
    if not isinstance(value, Mapping):
        raise CheckError(f"a baseline is a map of key to digest, not {type(value).__name__}")
    for key, digest in value.items():
        if not isinstance(key, str) or not isinstance(digest, str):
            raise CheckError(f"the baseline's {key!r} has {digest!r} where a digest was expected")
    if not value:
        raise CheckError("the baseline is empty: nothing can be compared with it")
    algorithm_of(value)
    return dict(value)


def algorithm_of(baseline: Mapping[str, Any], asked: str | None = None) -> str:
    """The algorithm that made the digests of a baseline, which they tell by their form.

    Raises:
        CheckError: some are of one algorithm and some of another, or they are of another than `asked`. A
            string that is no digest tells nothing.
    """
    found = algorithms_in(baseline)
    if len(found) > 1:
        examples = ", ".join(f"{algorithm} ({key})" for algorithm, key in sorted(found.items()))
        raise CheckError(f"the baseline mixes digests of {examples}; take it by one algorithm")
    algorithm = next(iter(found), "sha256")
    if asked not in (None, algorithm):
        raise CheckError(
            f"the baseline's digests are {algorithm}, but {asked} was asked for; use one algorithm for both"
        )
    return algorithm


def algorithms_in(digests: Mapping[str, Any]) -> dict[str, str]:
    """Each algorithm that made some of the digests, with the first key that has one of it."""
    found: dict[str, str] = {}
    for key, digest in digests.items():
        if form := _FORM.fullmatch(digest) if isinstance(digest, str) else None:
            found.setdefault(form[1] or "sha256", key)
    return found
