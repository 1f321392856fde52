"""Puts what several ranks (or several servers) found into one report, and checks it on the way.

Pure functions on plain data. A part that contradicts itself is an error: its counts must add up, and
every key in it must belong to a rank that it speaks for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import CheckError, RankError
from .plans import Document, PlanReader, merge_plans, parameters_of, ranks_of
from .rank import Rank
from .report import Report

COUNTS = {
    "checksum": ("parameters", "hashed", "bytes"),
    "reset": ("parameters", "written", "shared", "bytes"),
    "compare": ("parameters", "compared", "equal", "bytes", "through_host"),
    "plan": ("parameters",),
    "verify": ("parameters", "hashed", "bytes"),
}
KEY_LISTS = {
    "checksum": ("hidden",),
    "reset": ("hidden",),
    "compare": ("differing", "missing", "unexpected", "hidden"),
    "plan": (),
    "verify": ("hidden",),
}
DIGESTS = {"checksum": ("checksums",), "verify": ("checksums", "expected")}
PLANNED = ("plan", "verify")


@dataclass(frozen=True)
class Part:
    """One answer: `source` names who gave it (a rank or a URL), `ranks` are those it speaks for."""

    source: str
    ranks: tuple[Rank, ...]
    result: Mapping[str, Any]


def combine(
    action: str, parts: Sequence[Part], data_parallel_size: int, baseline: Mapping[str, str] | None = None
) -> Report:
    """One report of all parts, whose ranks the caller has found to be the right ones.

    Args:
        action: "checksum", "reset", "compare", "plan", or "verify": of that the ranks' findings, for `verification`.
        data_parallel_size: of the whole deployment; put into the report.
        baseline: the whole baseline of a "compare"; its keys of ranks that no part speaks for are missing.

    Raises:
        RankError: a part contradicts itself.
        CheckError: the parts hold no parameter at all, so that nothing was checked.
    """
    for part in parts:
        _check(action, part)
        if action == "compare":
            _check_against(baseline or {}, part)
    report = Report()
    for name in DIGESTS.get(action, ()):
        report[name] = {key: digest for part in parts for key, digest in part.result[name].items()}
    if action in PLANNED:
        reader = PlanReader()
        report["plan"] = merge_plans([_plan_of(action, part, reader) for part in parts])
        report["checkpoint"] = one_checkpoint(parts)
    elif action == "reset":
        report["status"] = "reset"
    elif action == "compare":
        report.update(_compared(parts, baseline or {}))
    report["ranks"] = [str(rank) for rank in sorted(rank for part in parts for rank in part.ranks)]
    report.update({name: sum(part.result[name] for part in parts) for name in COUNTS[action]})
    if "hidden" in KEY_LISTS[action]:
        report["hidden"] = union(parts, "hidden")
    report["data_parallel_size"] = data_parallel_size
    if report["parameters"] == 0:
        raise CheckError(
            f"nothing was checked: no rank ({', '.join(report['ranks']) or 'none'}) has a parameter; is a model loaded?"
        )
    return report


def require_compared(report: Report, baseline: Mapping[str, str]) -> Report:
    """The report of a compare, unless it compared nothing: that says nothing about the weights."""
    if report["compared"] > 0:
        return report
    skipped = ", ".join(f"{count} {reason}" for reason, count in report["skipped"].items() if count)
    ranks = sorted({str(rank) for rank in map(Rank.of_key, baseline) if rank})
    raise CheckError(
        f"nothing compared: the engine has {report['parameters']} parameters on {_some(report['ranks'])} ({skipped}); "
        f"the baseline has {len(baseline)} keys, of {_some(ranks) if ranks else 'no rank'}. "
        "Take the baseline from this model at this parallel layout"
    )


def _compared(parts: Sequence[Part], baseline: Mapping[str, str]) -> dict[str, Any]:
    """The part of a compare's report that is more than a sum."""
    answering = {rank for part in parts for rank in part.ranks}
    missing = {key for part in parts for key in part.result["missing"] if Rank.of_key(key) in part.ranks}
    missing.update(key for key in baseline if Rank.of_key(key) not in answering)
    found = {
        "differing": union(parts, "differing"),
        "missing": sorted(missing),
        "unexpected": union(parts, "unexpected"),
    }
    mismatches = sorted(key for keys in found.values() for key in keys)
    skipped: dict[str, int] = {}
    for part in parts:
        for reason, count in part.result["skipped"].items():
            skipped[reason] = skipped.get(reason, 0) + count
    return {"match": not mismatches, "mismatches": mismatches, **found, "skipped": skipped}


def one_checkpoint(parts: Sequence[Part]) -> str | None:
    """The checkpoint that all parts name, or the different names that it has on several machines."""
    names = []
    for part in parts:
        name = part.result.get("checkpoint")
        if name is not None and not isinstance(name, str):
            raise unsound(part, f"'checkpoint' is {name!r} where a path was expected")
        names.append(name or "")
    return ", ".join(sorted(set(names))) or None


def _plan_of(action: str, part: Part, reader: PlanReader) -> Document:
    """The plan of a part, which must be of exactly the part's ranks, and of what else the part says."""
    plan = part.result.get("plan")
    try:
        document = reader.parse(plan if isinstance(plan, str) else dict(plan or {}))
    except (CheckError, TypeError, ValueError) as error:
        raise unsound(part, f"its plan cannot be read: {error}") from error
    if sorted(ranks_of(document)) != sorted(part.ranks):
        ranks = ", ".join(map(str, ranks_of(document)))
        raise unsound(part, f"its plan is of {ranks}, not of {', '.join(map(str, part.ranks))}")
    keys = {key for key, _ in parameters_of(document)}
    if action == "plan" and part.result["parameters"] != len(keys):
        raise unsound(part, f"its plan has {len(keys)} parameters, not {part.result['parameters']}")
    for key in part.result.get("expected", {}):
        if key not in keys:
            raise unsound(part, f"'expected' holds {key!r}, which is not in its plan")
    return document


def union(parts: Sequence[Part], name: str) -> list[str]:
    """The keys that any part lists as `name`."""
    return sorted(key for part in parts for key in part.result[name])


def _some(names: Sequence[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _check(action: str, part: Part) -> None:
    """Raises `RankError` unless the part has every field that its action needs and is sound in itself."""
    result = part.result
    for name in COUNTS[action]:
        if not is_count(result.get(name)):
            raise unsound(part, f"{name!r} is {result.get(name)!r} where a count was expected")
    for name in KEY_LISTS[action]:
        # A server names the missing keys of a whole baseline, those of other servers' ranks too.
        check_keys(part, name, result.get(name), list, foreign=name == "missing")
    for name in DIGESTS.get(action, ()):
        check_texts(part, name, result.get(name))
    if action == "compare":
        skipped = result.get("skipped")
        if not isinstance(skipped, dict) or not all(map(is_count, skipped.values())):
            raise unsound(part, f"'skipped' is {skipped!r} where counts by reason were expected")
    for total, terms in _sums(action, result):
        if total != sum(terms):
            raise unsound(part, f"its counts do not add up: {total} is not {' + '.join(map(str, terms))}")


def _check_against(baseline: Mapping[str, str], part: Part) -> None:
    """Raises `RankError` when the part cannot be an answer to this baseline."""
    for name, belongs in (("differing", True), ("missing", True), ("unexpected", False)):
        for key in part.result[name]:
            if (key in baseline) is not belongs:
                raise unsound(part, f"{name!r} holds {key!r}, which is {'not ' if belongs else ''}in the baseline")
    if part.result["compared"] > len(baseline):
        raise unsound(part, f"it compared {part.result['compared']} of {len(baseline)} keys")
    mismatches = sorted(key for name in ("differing", "missing", "unexpected") for key in part.result[name])
    # A rank that could compare nothing says no match, though nothing differs either.
    verdicts = {not mismatches, not mismatches and part.result["compared"] > 0}
    if part.result.get("mismatches") != mismatches or part.result.get("match") not in verdicts:
        raise unsound(part, "its 'match' and 'mismatches' are not what its lists say")


def _sums(action: str, result: Mapping[str, Any]) -> Iterable[tuple[int, tuple[int, ...]]]:
    """(total, terms) for everything that must add up."""
    hidden = len(result.get("hidden", ()))
    if action in DIGESTS:
        yield result["parameters"], (result["hashed"], hidden)
        yield len(result["checksums"]), (result["hashed"], hidden)
    elif action == "reset":
        yield result["parameters"], (result["written"], result["shared"], hidden)
    elif action == "compare":
        yield result["parameters"], (result["compared"], *result["skipped"].values())
        yield result["compared"], (result["equal"], len(result["differing"]))


def check_keys(part: Part, name: str, keys: Any, kind: type[Any], foreign: bool = False) -> None:
    """Raises `RankError` unless `keys` are a list or dict of keys of the part's ranks, each once."""
    if not isinstance(keys, kind):
        raise unsound(part, f"{name!r} is {type(keys).__name__}, not {kind.__name__}")
    for key in keys:
        if not isinstance(key, str):
            raise unsound(part, f"{name!r} holds {key!r}, which is no key")
        if not foreign and Rank.of_key(key) not in part.ranks:
            raise unsound(part, f"{name!r} holds {key!r}, a key of another rank")
    if len(set(keys)) != len(keys):
        raise unsound(part, f"{name!r} names a key twice")


def check_texts(part: Part, name: str, texts: Any) -> None:
    """Raises `RankError` unless `texts` are a dict of keys of the part's ranks to text."""
    check_keys(part, name, texts, dict)
    if not all(isinstance(text, str) for text in texts.values()):
        raise unsound(part, f"{name!r} holds something that is no text")


def is_count(value: object) -> bool:
    """Whether it is a whole number of at least 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def unsound(part: Part, what: str) -> RankError:
    """The error of a part that cannot be believed, and why."""
    return RankError(
        f"the answer of {part.source} is unsound: {what}. Install one version of weight-checker everywhere"
    )
