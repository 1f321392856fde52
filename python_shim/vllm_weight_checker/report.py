"""The answer of a check: a dictionary whose keys can also be read as attributes."""

from __future__ import annotations

from typing import Any


class Report(dict[str, Any]):
    """A plain dict (so `json.dumps` and pickling work) with `report.match` for `report["match"]`.

    The truth of a report that has a `match` is that match, so that `if report:` cannot pass on a
    mismatch; without one, a report is true unless it is empty, like any dict.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"this report has no {name!r}; it has {', '.join(self)}") from None

    def __bool__(self) -> bool:
        return bool(self["match"]) if "match" in self else len(self) > 0
