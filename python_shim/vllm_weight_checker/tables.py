"""Reports as text for people. Pure functions; long lists are cut, and say so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_SHOWN_RANKS = 4
_SHOWN_KEYS = 20
_WAY_OUT = "have no bytes here; VLLM_WEIGHT_CHECKER_KEEP_CPU_WEIGHTS=1 when the engine starts keeps them as loaded"

Row = tuple[str, int, str]


def checksum_table(report: Mapping[str, Any], saved_as: str | None) -> str:
    """What a checksum found; `saved_as` is the file that holds the digests."""
    kept = f"saved as {saved_as}" if saved_as else "not saved: -o FILE saves them, --json prints them"
    rows = [*_first_rows(report), ("hashed", report["hashed"], _size(report["bytes"])), *_hidden_row(report)]
    return _table(f"CHECKSUM: {len(report['checksums'])} digests, {kept}", rows, _lists(report, "hidden"))


def reset_table(report: Mapping[str, Any], fill: str) -> str:
    """What a reset wrote."""
    rows = [
        *_first_rows(report),
        ("written", report["written"], _size(report["bytes"])),
        ("shared", report["shared"], "in memory that was written for another parameter" if report["shared"] else ""),
        *_hidden_row(report),
    ]
    headline = f"RESET: every parameter is overwritten ({fill}); load the weights before serving"
    return _table(headline, rows, _lists(report, "hidden"))


def compare_table(report: Mapping[str, Any], baseline: str) -> str:
    """What a compare with the file `baseline` found."""
    if report["match"]:
        verdict = f"MATCH: the weights are those of {baseline}"
    else:
        verdict = f"MISMATCH: the weights are not those of {baseline}"
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in report["skipped"].items() if count)
    rows = [
        *_first_rows(report),
        ("compared", report["compared"], f"{report['equal']:,} equal, {len(report['differing']):,} differing"),
        ("skipped", sum(report["skipped"].values()), reasons),
        *_through_host_row(report),
        *_hidden_row(report),
        ("differing", len(report["differing"]), ""),
        ("missing", len(report["missing"]), "in the baseline only" if report["missing"] else ""),
        ("unexpected", len(report["unexpected"]), "not in the baseline" if report["unexpected"] else ""),
    ]
    return _table(verdict, rows, _lists(report, "hidden", "differing", "missing", "unexpected"))


def verify_table(report: Mapping[str, Any]) -> str:
    """What a verification found."""
    checkpoint = report["checkpoint"] or "the tensors in memory"
    if report["match"]:
        verdict = f"MATCH: the weights are those of {checkpoint}"
    elif report["mismatches"]:
        verdict = f"MISMATCH: the weights are not those of {checkpoint}"
    else:
        verdict = f"MISMATCH: the weights that were compared are those of {checkpoint}, but the loader misplaces some"
    findings, found = _findings_rows(report["audit"])
    excused = report["not_comparable"]
    rows = [
        *_first_rows(report),
        ("compared", report["compared"], f"{report['equal']:,} equal, {len(report['differing']):,} differing"),
        ("not comparable", len(excused), ""),
        ("differing", len(report["differing"]), ""),
        ("missing", len(report["missing"]), "planned, and not in the engine" if report["missing"] else ""),
        ("unexpected", len(report["unexpected"]), "not in the plan" if report["unexpected"] else ""),
        ("unwritten", len(report["unwritten"]), "not filled by any tensor" if report["unwritten"] else ""),
        *[(f"audit: {label}", count, note) for label, count, note in findings],
    ]
    named = {
        **_lists(report, "differing", "missing", "unexpected", "unwritten"),
        "not comparable": [f"{key}: {reason}" for key, reason in excused.items()],
        **{f"audit: {label}": lines for label, lines in found.items()},
    }
    return _table(verdict, rows, named)


def plan_table(plan: Mapping[str, Any], ranks: Sequence[str], parameters: int, saved_as: str | None) -> str:
    """What a plan is of; `saved_as` is the file that holds it."""
    kept = f"saved as {saved_as}" if saved_as else "not saved: -o FILE saves it, --json prints it"
    rows = [*_first_rows({"ranks": ranks, "parameters": parameters}), ("sources", len(plan["sources"]), "")]
    return _table(f"PLAN: {kept}", rows, {})


def expect_table(report: Mapping[str, Any], checkpoint: str, saved_as: str | None) -> str:
    """What digests a checkpoint makes; `saved_as` is the file that holds them."""
    kept = f"saved as {saved_as}" if saved_as else "not saved: -o FILE saves them, --json prints them"
    digests = len(report["checksums"])
    rows = [*_first_rows(report), ("undetermined", report["parameters"] - digests, "by the plan")]
    return _table(f"EXPECT: {digests} digests of {checkpoint}, {kept}", rows, {})


def audit_table(audit: Mapping[str, Any], plan: str) -> str:
    """What an audit of the file `plan` found."""
    verdict = "COMPLETE: every element has its place" if audit["complete"] else "INCOMPLETE: some are misplaced"
    findings, found = _findings_rows(audit)
    counts = [(name, audit[name], "") for name in ("ranks", "parameters", "pieces", "sources", "placed")]
    replicas = [f"{_some(one['ranks'])}: {one['parameters']:,} parameters" for one in audit["replicas"]]
    rows = [*counts, *findings, ("replicas", len(replicas), "groups of ranks that hold the same" if replicas else "")]
    return _table(f"{verdict} in {plan}", rows, {**found, "replicas": replicas})


def _first_rows(report: Mapping[str, Any]) -> list[Row]:
    return [("ranks", len(report["ranks"]), _some(report["ranks"])), ("parameters", report["parameters"], "")]


def _some(ranks: Sequence[str]) -> str:
    more = f" and {len(ranks) - _SHOWN_RANKS} more" if len(ranks) > _SHOWN_RANKS else ""
    return " ".join(ranks[:_SHOWN_RANKS]) + more


def _through_host_row(report: Mapping[str, Any]) -> list[Row]:
    count = report["through_host"]
    return [("through host", count, "copied by torch, since only it can read their device")] if count else []


def _hidden_row(report: Mapping[str, Any]) -> list[Row]:
    return [("hidden", len(report["hidden"]), _WAY_OUT)] if report["hidden"] else []


def _findings_rows(audit: Mapping[str, Any]) -> tuple[list[Row], dict[str, list[str]]]:
    """The rows of what an audit found, and the lines under each."""
    lines: dict[str, list[str]] = {}
    for kind, line in _FINDINGS.items():
        lines[kind.replace("_", " ")] = list(map(line, audit[kind]))
    explained = [one for one in audit["unplaced"] if one.get("explained") is not None]
    lines["unplaced"] = [_unplaced(one) for one in audit["unplaced"] if one.get("explained") is None]
    lines = {"unplaced": lines.pop("unplaced"), "unused": list(map(_unplaced, explained)), **lines}
    notes = {"unused": "placed on no rank, with a reason", "unplaced": "placed on no rank"}
    return [(label, len(found), notes.get(label, "")) for label, found in lines.items() if found], lines


def _unplaced(finding: Mapping[str, Any]) -> str:
    explained = finding.get("explained")
    return f"{finding.get('source')}" + (f": {explained}" if explained else "")


def _elements(finding: Mapping[str, Any]) -> str:
    name = finding.get("key") or finding.get("source")
    total = f" of {finding['of']:,}" if "of" in finding else ""
    between = f", from {' and '.join(map(str, finding['sources']))}" if "sources" in finding else ""
    return f"{name}: {finding.get('elements', 0):,}{total} elements, the first at {finding.get('first')}{between}"


def _past_the_end(finding: Mapping[str, Any]) -> str:
    of = f"element {finding.get('first_beyond')} of {finding.get('source')}"
    return f"{finding.get('key')}: {of}, which has {finding.get('of')}"


_FINDINGS = {
    "unplaced": _unplaced,
    "partly_placed": _elements,
    "unwritten": _elements,
    "overlapping": _elements,
    "past_the_end": _past_the_end,
}


def _table(headline: str, rows: Sequence[Row], named: Mapping[str, Sequence[str]]) -> str:
    """The rows under the headline, and under each row the lines that `named` has for it."""
    label_width = max(len(label) for label, _, _ in rows)
    count_width = max(len(f"{count:,}") for _, count, _ in rows)
    lines = [headline]
    for label, count, note in rows:
        lines.append(f"  {label:<{label_width}}  {count:>{count_width},}  {note}".rstrip())
        keys = named.get(label, ())
        lines += [f"      {key}" for key in keys[:_SHOWN_KEYS]]
        if len(keys) > _SHOWN_KEYS:
            lines.append(f"      and {len(keys) - _SHOWN_KEYS:,} more; --json names all")
    return "\n".join(lines)


def _lists(report: Mapping[str, Any], *names: str) -> dict[str, Sequence[str]]:
    return {name: report[name] for name in names}


def _size(count: int) -> str:
    size, unit = float(count), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{count} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
