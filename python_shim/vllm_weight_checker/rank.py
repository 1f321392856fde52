"""The identity of one worker in a distributed engine, and its place in the keys of a report."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

_NUMBER = "(0|[1-9][0-9]*)"
_KEY = re.compile(f"dp{_NUMBER}:pp{_NUMBER}:pcp{_NUMBER}:tp{_NUMBER}:")


@dataclass(frozen=True, order=True)
class Rank:
    """Indices of a worker: data, pipeline, prefill-context and tensor parallel. All count from 0."""

    dp: int = 0
    pp: int = 0
    pcp: int = 0
    tp: int = 0

    @property
    def prefix(self) -> str:
        """What every key of this rank begins with; the tensor's name follows the last colon."""
        return f"{self}:"

    def __str__(self) -> str:
        return f"dp{self.dp}:pp{self.pp}:pcp{self.pcp}:tp{self.tp}"

    @classmethod
    def of_indices(cls, indices: object) -> Rank | None:
        """The rank of {"dp", "pp", "pcp", "tp"}, or None when that is not what `indices` is; more names are ignored."""
        if not isinstance(indices, Mapping):
            return None
        found: list[Any] = [indices.get(axis.name) for axis in fields(cls)]
        return cls(*found) if all(type(index) is int and index >= 0 for index in found) else None

    @classmethod
    def of_key(cls, key: str) -> Rank | None:
        """The rank that `key` belongs to, or None when the key has no rank prefix."""
        found = _KEY.match(key)
        return cls(*map(int, found.groups())) if found else None
