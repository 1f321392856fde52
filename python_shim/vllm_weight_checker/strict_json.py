"""JSON whose objects name nothing twice, of which two readers could take different values."""

from __future__ import annotations

import json
from typing import Any

from .errors import CheckError


def parsed(text: str, what: str) -> Any:
    """The value of a JSON text.

    The function that is called for every object also lets other threads run, which `json.loads` by itself
    would not do from beginning to end.

    Args:
        text: the text.
        what: what it is, for the error, such as "the baseline".

    Raises:
        CheckError: it is no JSON, or one of its objects has a name twice.
    """

    def without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        named = dict(pairs)
        if len(named) < len(pairs):
            names = [name for name, _ in pairs]
            raise CheckError(f"{what} names {next(name for name in names if names.count(name) > 1)!r} twice")
        return named

    try:
        return json.loads(text, object_pairs_hook=without_repetition)
    except (ValueError, RecursionError) as error:
        raise CheckError(f"{what} is no JSON: {error}") from error
