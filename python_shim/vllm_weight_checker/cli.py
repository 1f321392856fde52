"""The command `weight-checker`: checks over HTTP, and what is done with plans without an engine.

Exit status: 0 done or match, 1 mismatch (of a plan: incomplete), 2 could not check (bad usage and bad files too).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ._native import ALGORITHMS, FILLS
from .client import WeightChecker
from .errors import CheckError
from .files import read_baseline, read_plan, require_place, write_whole
from .planned import audit, expect
from .plans import parameters_of, ranks_of
from .report import Report
from .tables import (
    audit_table,
    checksum_table,
    compare_table,
    expect_table,
    plan_table,
    reset_table,
    verify_table,
)
from .waiting import Progress

DONE, MISMATCH, COULD_NOT_CHECK = 0, 1, 2

Outcome = tuple[Report, str]  # and the same as a table


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command with `arguments` (default: of the process) and returns its exit status.

    Raises:
        SystemExit: from argparse: 0 after --help and --version, 2 on bad usage.
    """
    options = _parser().parse_args(arguments)
    try:
        report, table = options.run(options)
        # A report is no dict, and json writes dicts.
        _print(json.dumps(dict(report), indent=2) if options.json else table)
    except KeyboardInterrupt:
        return _complain("interrupted")
    except (CheckError, ValueError, OSError) as error:
        return _complain(str(error))
    except Exception:
        traceback.print_exc()  # Python's own status for this would be 1, and read as a mismatch.
        return COULD_NOT_CHECK
    return DONE if report.get("match", report.get("complete", True)) else MISMATCH


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="weight-checker",
        description="Proves what model weights a vLLM engine holds, on every rank, over HTTP.",
        epilog="Exit status: 0 done or match, 1 mismatch or an incomplete plan, 2 could not check.",
    )
    parser.add_argument("--version", action=_Version)
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    checksum = _asking(actions, "checksum", _checksum, "hash every parameter on every rank")
    _add_algorithm(checksum)
    _add_output(checksum, "save {key: digest} as a baseline")
    reset = _asking(actions, "reset", _reset, "overwrite every parameter on every rank; this destroys the served model")
    reset.add_argument("--fill", choices=tuple(FILLS), default="zero", help="with what (zero)")
    reset.add_argument("--seed", type=_seed, default=0, metavar="N", help="of a random fill (0)")
    compare = _asking(actions, "compare", _compare, "compare every parameter on every rank with a saved checksum")
    compare.add_argument("--baseline", metavar="FILE", type=Path, required=True, help="what checksum has saved")
    verify = _asking(actions, "verify", _verify, "compare every parameter on every rank with a checkpoint")
    _add_served_checkpoint(verify)
    _add_algorithm(verify)
    plan = _asking(actions, "plan", _plan, "record where every parameter on every rank comes from")
    _add_served_checkpoint(plan)
    _add_output(plan, "save the plan")
    _add_offline(actions)
    return parser


def _add_offline(actions: Any) -> None:
    """The actions that need no server."""
    expecting = _action(actions, "expect", _expect, "hash what every rank of a plan must hold of a checkpoint")
    auditing = _action(actions, "audit", _audit, "look for what a plan of all ranks places wrongly")
    for parser in (expecting, auditing):
        parser.add_argument("--plan", metavar="FILE", type=Path, required=True, help="what plan has saved")
    expecting.add_argument("--checkpoint", metavar="PATH", required=True, help="of the weights, on this machine")
    _add_algorithm(expecting)
    _add_output(expecting, "save {key: digest} as a baseline")


def _add_algorithm(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--algorithm", choices=tuple(ALGORITHMS), default="sha256", help="of the digests (sha256)")


def _add_output(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help=text)


def _add_served_checkpoint(parser: argparse.ArgumentParser) -> None:
    text = "on the server's machine, where it permits; the one that it has loaded if left out"
    parser.add_argument("--checkpoint", metavar="PATH", help=text)


def _action(
    actions: Any, name: str, run: Callable[[argparse.Namespace], Outcome], text: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text.capitalize() + ".")
    parser.set_defaults(run=run)
    parser.add_argument("--json", action="store_true", help="print the full report as JSON")
    return parser


def _asking(
    actions: Any, name: str, run: Callable[[argparse.Namespace], Outcome], text: str
) -> argparse.ArgumentParser:
    """The parser of an action that asks servers."""
    parser = _action(actions, name, run, text)
    parser.add_argument(
        "--url", action="append", required=True, help="API server, as http://host:8000; again for every other one"
    )
    parser.add_argument(
        "--timeout", type=_seconds, default=600.0, metavar="SECONDS", help="how long a server may be silent (600)"
    )
    return parser


class _Version(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print the version")

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from . import __version__

        print(f"weight-checker {__version__}")
        parser.exit(DONE)


def _checksum(options: argparse.Namespace) -> Outcome:
    _require_output(options)
    checker = _checker(options)
    with Progress("checksum"):
        report = checker.checksum(detail=True, algorithm=options.algorithm)
    return report, checksum_table(report, _save(options, report.checksums))


def _reset(options: argparse.Namespace) -> Outcome:
    checker = _checker(options)
    with Progress("reset"):
        report = checker.reset(options.fill, options.seed)
    return report, reset_table(report, options.fill)


def _compare(options: argparse.Namespace) -> Outcome:
    baseline = read_baseline(options.baseline)
    checker = _checker(options)
    with Progress("compare"):
        report = checker.compare(baseline)
    return report, compare_table(report, str(options.baseline))


def _verify(options: argparse.Namespace) -> Outcome:
    checker = _checker(options)
    with Progress("verify"):
        report = checker.verify(options.checkpoint, algorithm=options.algorithm)
    return report, verify_table(report)


def _plan(options: argparse.Namespace) -> Outcome:
    _require_output(options)
    checker = _checker(options)
    with Progress("plan"):
        plan = checker.plan(checkpoint=options.checkpoint)
    parameters = sum(1 for _ in parameters_of(plan))
    return Report(plan), plan_table(plan, list(map(str, ranks_of(plan))), parameters, _save(options, plan))


def _expect(options: argparse.Namespace) -> Outcome:
    _require_output(options)
    plan = read_plan(options.plan)
    with Progress("expect"):
        digests = expect(plan, options.checkpoint, algorithm=options.algorithm)
    parameters = sum(1 for _ in parameters_of(plan))
    report = Report({"checksums": digests, "ranks": list(map(str, ranks_of(plan))), "parameters": parameters})
    return report, expect_table(report, options.checkpoint, _save(options, digests))


def _audit(options: argparse.Namespace) -> Outcome:
    plan = read_plan(options.plan)
    with Progress("audit"):
        report = audit(plan)
    return report, audit_table(report, str(options.plan))


def _require_output(options: argparse.Namespace) -> None:
    if options.output:
        named = (getattr(options, source, None) for source in ("plan", "baseline"))
        require_place(options.output, [path for path in named if path is not None])


def _save(options: argparse.Namespace, value: Any) -> str | None:
    """The file that now holds the value, if one was asked for."""
    if not options.output:
        return None
    write_whole(options.output, json.dumps(value, indent=2) + "\n")
    return str(options.output)


def _checker(options: argparse.Namespace) -> WeightChecker:
    return WeightChecker(*options.url, timeout=options.timeout)


def _print(text: str) -> None:
    try:
        print(text, flush=True)
    except OSError as error:
        # Without this Python would try once more at its exit, and fail with a status of its own.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise CheckError(f"the report cannot be printed: {error}") from error


def _complain(text: str) -> int:
    print(f"weight-checker: {text}", file=sys.stderr)
    return COULD_NOT_CHECK


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")


def _seed(text: str) -> int:
    with contextlib.suppress(ValueError):
        if 0 <= int(text) < 2**64:
            return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 0 to 2**64 - 1")


if __name__ == "__main__":
    sys.exit(main())
