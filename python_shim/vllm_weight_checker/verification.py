"""What a verification says: the weights that ranks hold, against the digests that a plan makes of a checkpoint.

Pure functions on plain data. The verdict is made where all ranks of a plan are known (`judge`), which is in
an engine's client. Several API servers each judge their own ranks; what is true of all of them together is
`combine_verified`'s, with an audit of the plans of all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .baselines import algorithms_in
from .errors import CheckError
from .merging import Part, check_keys, check_texts, is_count, one_checkpoint, union, unsound
from .plans import parameters_of
from .report import Report

WRONG = ("differing", "missing", "unexpected", "unwritten")
COUNTS = ("parameters", "compared", "equal", "bytes")
FAULTS = ("unplaced", "partly_placed", "unwritten", "overlapping", "past_the_end")
HIDDEN = "hidden: the parameter has no bytes, since the engine keeps these weights in a form of its kernels"

UNMADE = "its bytes cannot be told: it has a cast or a constant of a dtype that is only copied, or too many pieces"


def judge(found: Mapping[str, Any], audit: Mapping[str, Any]) -> Report:
    """The report of a verification.

    Args:
        found: `plan` (a document of all ranks), `expected` and `checksums` ({key: digest} that the ranks must
            hold, and that they hold), `hidden` (keys whose weights are kept elsewhere), `bytes`, `ranks`,
            `checkpoint` and `data_parallel_size`.
        audit: of that plan.

    Returns:
        `match`: nothing is wrong and the audit is complete. `mismatches` = `differing` + `missing` (planned,
        not live) + `unexpected` (live, not planned) + `unwritten` (nothing writes some of its elements).
        `not_comparable` {key: reason}. `audit`, and `audited`, whether it is complete. `parameters` =
        `compared` + len(`not_comparable`) + len(`unwritten`) + len(`unexpected`), `compared` = `equal` +
        len(`differing`), `bytes`, `ranks`, `algorithm`, `checkpoint`, `data_parallel_size`.

    Raises:
        CheckError: the digests are of two algorithms, or nothing could be compared.
    """
    live, expected = found["checksums"], found["expected"]
    algorithm = _one_algorithm(expected, live)
    planned = dict(parameters_of(found["plan"]))
    hidden = frozenset(found["hidden"])
    unwritten = {finding["key"] for finding in audit["unwritten"]}
    keys: dict[str, list[str]] = {kind: [] for kind in WRONG}
    not_comparable: dict[str, str] = {}
    equal = 0
    for key, digest in live.items():
        if key not in planned:
            keys["unexpected"].append(key)
        elif (reason := _reason(key, digest, expected, planned[key], key in hidden)) is not None:
            not_comparable[key] = reason
        elif key in unwritten:
            keys["unwritten"].append(key)
        elif key not in expected:
            not_comparable[key] = UNMADE
        elif digest != expected[key]:
            keys["differing"].append(key)
        else:
            equal += 1
    keys["missing"] = [key for key in planned if key not in live]
    report = _with_verdict(keys, not_comparable, audit)
    report.update(parameters=len(live), compared=equal + len(keys["differing"]), equal=equal, bytes=found["bytes"])
    if report["compared"] == 0:
        raise CheckError(_nothing_compared(report))
    report["algorithm"] = algorithm
    report.update({name: found.get(name) for name in ("ranks", "checkpoint", "data_parallel_size")})
    return report


def combine_verified(parts: Sequence[Part], data_parallel_size: int, audit: Mapping[str, Any] | None = None) -> Report:
    """One report of the verifications of several servers, whose ranks the caller has found to be the right ones.

    Args:
        audit: of the plan of all ranks. Without one there must be one part, which has it.

    Raises:
        RankError: a part contradicts itself.
        CheckError: the digests are of two algorithms.
    """
    for part in parts:
        _check(part)
    if audit is None:
        (audit,) = [part.result["audit"] for part in parts]
    algorithms = {part.result["algorithm"]: part.source for part in parts}
    if len(algorithms) > 1:
        raise CheckError(f"the servers' digests are of two algorithms: {_shown(algorithms)}; use one for all")
    not_comparable = {key: reason for part in parts for key, reason in part.result["not_comparable"].items()}
    report = _with_verdict({kind: union(parts, kind) for kind in WRONG}, not_comparable, audit)
    report.update({name: sum(part.result[name] for part in parts) for name in COUNTS})
    report["algorithm"] = next(iter(algorithms))
    report["ranks"] = [str(rank) for rank in sorted(rank for part in parts for rank in part.ranks)]
    report["checkpoint"] = one_checkpoint(parts)
    report["data_parallel_size"] = data_parallel_size
    return report


def _reason(
    key: str, digest: str, expected: Mapping[str, str], parameter: Mapping[str, Any], is_hidden: bool
) -> str | None:
    """Why a live parameter cannot be compared, if it cannot. Equal is equal, whatever the plan says of it."""
    if is_hidden:
        return HIDDEN
    if key not in expected:
        computed = (piece["computed"] for piece in parameter["pieces"] if "computed" in piece)
        return next((f"computed: {reason}" for reason in computed), None)
    rewritten: str | None = parameter.get("rewritten")
    return rewritten if digest != expected[key] else None


def _with_verdict(
    keys: Mapping[str, Sequence[str]], not_comparable: Mapping[str, str], audit: Mapping[str, Any]
) -> Report:
    """The first part of a report: what the lists and the audit come to."""
    mismatches = sorted(key for kind in WRONG for key in keys[kind])
    audited = audit["complete"] is True
    verdict = {"match": audited and not mismatches, "mismatches": mismatches}
    lists = {kind: sorted(keys[kind]) for kind in WRONG}
    return Report(
        {**verdict, **lists, "not_comparable": dict(not_comparable), "audited": audited, "audit": dict(audit)}
    )


def _one_algorithm(expected: Mapping[str, str], live: Mapping[str, str]) -> str:
    found = {**algorithms_in(live), **algorithms_in(expected)}
    if len(found) > 1:
        raise CheckError(f"the digests are of two algorithms: {_shown(found)}; use one for both")
    return next(iter(found), "sha256")


def _nothing_compared(report: Mapping[str, Any]) -> str:
    reasons = list(dict.fromkeys(report["not_comparable"].values()))
    counts = ", ".join(f"{len(report[kind])} {kind}" for kind in ("not_comparable", *WRONG) if report[kind])
    return (
        f"nothing compared: of {report['parameters']} live parameters none has a digest to be compared with "
        f"({counts.replace('_', ' ') or 'none is planned'}){''.join(f'; {reason}' for reason in reasons[:4])}"
    )


def _shown(algorithms: Mapping[str, str]) -> str:
    return ", ".join(f"{algorithm} ({where})" for algorithm, where in sorted(algorithms.items()))


def _check(part: Part) -> None:
    """Raises `RankError` unless the part is a verification that is sound in itself."""
    result = part.result
    for name in COUNTS:
        if not is_count(result.get(name)):
            raise unsound(part, f"{name!r} is {result.get(name)!r} where a count was expected")
    for kind in WRONG:
        check_keys(part, kind, result.get(kind), list)
    check_texts(part, "not_comparable", result.get("not_comparable"))
    audit = result.get("audit")
    if not _is_audit(audit):
        raise unsound(part, f"'audit' is {str(audit)[:80]} where an audit was expected")
    if not isinstance(result.get("algorithm"), str):
        raise unsound(part, f"'algorithm' is {result.get('algorithm')!r} where a name was expected")
    keys = [key for kind in (*WRONG, "not_comparable") for key in result[kind]]
    if len(set(keys)) < len(keys):
        raise unsound(part, "it names a key for two reasons")
    others = sum(len(result[kind]) for kind in ("not_comparable", "unwritten", "unexpected"))
    differing = len(result["differing"])
    if (result["parameters"], result["compared"]) != (result["compared"] + others, result["equal"] + differing):
        raise unsound(part, "its counts do not add up")
    if not result["compared"]:
        raise unsound(part, "it compared nothing")
    said = {name: result.get(name) for name in ("match", "mismatches", "audited")}
    due = _with_verdict({kind: result[kind] for kind in WRONG}, {}, result["audit"])
    if any(said[name] != due[name] or type(said[name]) is not type(due[name]) for name in said):
        raise unsound(part, "its 'match', 'mismatches' and 'audited' are not what its lists and its audit say")


def _is_audit(audit: Any) -> bool:
    """Whether it is an audit, and names no fault of a plan that it calls complete."""
    if not isinstance(audit, dict) or not isinstance(audit.get("complete"), bool):
        return False
    faults: list[Any] = []
    for kind in FAULTS:
        found = audit.get(kind)
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            return False
        faults += [one for one in found if one.get("explained") is None]
    return not (audit["complete"] and faults)
