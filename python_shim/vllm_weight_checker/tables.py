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
    return _table(f"CHECKSUM: {len(report['checksums'])} digests, {kept}", rows, report, ["hidden"])


def reset_table(report: Mapping[str, Any], fill: str) -> str:
    """What a reset wrote."""
    rows = [
        *_first_rows(report),
        ("written", report["written"], _size(report["bytes"])),
        ("shared", report["shared"], "in memory that was written for another parameter" if report["shared"] else ""),
        *_hidden_row(report),
    ]
    return _table(
        f"RESET: every parameter is overwritten ({fill}); load the weights before serving", rows, report, ["hidden"]
    )


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
        *_hidden_row(report),
        ("differing", len(report["differing"]), ""),
        ("missing", len(report["missing"]), "in the baseline only" if report["missing"] else ""),
        ("unexpected", len(report["unexpected"]), "not in the baseline" if report["unexpected"] else ""),
    ]
    return _table(verdict, rows, report, ["hidden", "differing", "missing", "unexpected"])


def _first_rows(report: Mapping[str, Any]) -> list[Row]:
    ranks = report["ranks"]
    more = f" and {len(ranks) - _SHOWN_RANKS} more" if len(ranks) > _SHOWN_RANKS else ""
    return [
        ("ranks", len(ranks), " ".join(ranks[:_SHOWN_RANKS]) + more),
        ("parameters", report["parameters"], ""),
    ]


def _hidden_row(report: Mapping[str, Any]) -> list[Row]:
    return [("hidden", len(report["hidden"]), _WAY_OUT)] if report["hidden"] else []


def _table(headline: str, rows: Sequence[Row], report: Mapping[str, Any], named: Sequence[str]) -> str:
    """The rows under the headline, and under each row that `named` lists the keys it counts."""
    label_width = max(len(label) for label, _, _ in rows)
    count_width = max(len(f"{count:,}") for _, count, _ in rows)
    lines = [headline]
    for label, count, note in rows:
        lines.append(f"  {label:<{label_width}}  {count:>{count_width},}  {note}".rstrip())
        if label in named:
            keys = report[label]
            lines += [f"      {key}" for key in keys[:_SHOWN_KEYS]]
            if len(keys) > _SHOWN_KEYS:
                lines.append(f"      and {len(keys) - _SHOWN_KEYS:,} more; --json names all")
    return "\n".join(lines)


def _size(count: int) -> str:
    size, unit = float(count), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{count} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
