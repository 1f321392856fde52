"""What a check tells: a mapping whose keys are attributes too."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any


class Report(MutableMapping[str, Any]):
    """A report: `report.match` is `report["match"]`, and a report that has `match` is true only if it matches.

    No dict, because its truth would then be that of an empty one to code such as json's, which would write a
    mismatch as `{}`. For JSON: `json.dumps(dict(report))`.
    """

    def __init__(self, fields: MutableMapping[str, Any] | None = None) -> None:
        self._fields = dict(fields or {})

    def __getitem__(self, key: str) -> Any:
        return self._fields[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._fields[key] = value

    def __delitem__(self, key: str) -> None:
        del self._fields[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __getattr__(self, name: str) -> Any:
        # A copy or an unpickled report has no fields yet when it is asked for its methods.
        fields = self.__dict__.get("_fields", {})
        if name not in fields:
            raise AttributeError(f"this report has no {name!r}; it has {', '.join(fields)}")
        return fields[name]

    def __bool__(self) -> bool:
        return bool(self._fields.get("match", True))

    def __repr__(self) -> str:
        return f"Report({self._fields!r})"
