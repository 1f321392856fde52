"""The command `weight-checker`: checksum, reset and compare over HTTP.

Exit status: 0 done or match, 1 mismatch, 2 could not check (bad usage and bad files too).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import secrets
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from ._native import ALGORITHMS, FILLS
from .baselines import flat
from .client import WeightChecker
from .errors import CheckError
from .report import Report
from .tables import checksum_table, compare_table, reset_table

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
    return DONE if report.get("match", True) else MISMATCH


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="weight-checker",
        description="Proves what model weights a vLLM engine holds, on every rank, over HTTP.",
        epilog="Exit status: 0 done or match, 1 mismatch, 2 could not check.",
    )
    parser.add_argument("--version", action=_Version)
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    checksum = _action(actions, "checksum", _checksum, "hash every parameter on every rank")
    checksum.add_argument(
        "--algorithm",
        choices=tuple(ALGORITHMS),
        default="sha256",
        help="of the digests (sha256)",
    )
    checksum.add_argument("-o", "--output", metavar="FILE", type=Path, help="save {key: digest} as a baseline")
    reset = _action(actions, "reset", _reset, "overwrite every parameter on every rank; this destroys the served model")
    reset.add_argument("--fill", choices=tuple(FILLS), default="zero", help="with what (zero)")
    reset.add_argument("--seed", type=_seed, default=0, metavar="N", help="of a random fill (0)")
    compare = _action(actions, "compare", _compare, "compare every parameter on every rank with a saved checksum")
    compare.add_argument("--baseline", metavar="FILE", type=Path, required=True, help="what checksum has saved")
    return parser


def _action(
    actions: Any, name: str, run: Callable[[argparse.Namespace], Outcome], text: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text.capitalize() + ".")
    parser.set_defaults(run=run)
    parser.add_argument(
        "--url", action="append", required=True, help="API server, as http://host:8000; again for every other one"
    )
    parser.add_argument("--json", action="store_true", help="print the full report as JSON")
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
    if options.output:
        _require_place(options.output)
    checker = _checker(options)
    with _Progress("checksum"):
        report = checker.checksum(detail=True, algorithm=options.algorithm)
    if options.output:
        _write_whole(options.output, json.dumps(report.checksums, indent=2) + "\n")
    return report, checksum_table(report, options.output and str(options.output))


def _reset(options: argparse.Namespace) -> Outcome:
    checker = _checker(options)
    with _Progress("reset"):
        report = checker.reset(options.fill, options.seed)
    return report, reset_table(report, options.fill)


def _compare(options: argparse.Namespace) -> Outcome:
    baseline = _read_baseline(options.baseline)
    checker = _checker(options)
    with _Progress("compare"):
        report = checker.compare(baseline)
    return report, compare_table(report, str(options.baseline))


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


def _read_baseline(path: Path) -> Mapping[str, str]:
    try:
        return flat(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise CheckError(f"{path} is no baseline: it is no text in UTF-8 ({error})") from error
    except CheckError as error:
        raise CheckError(f"{path} is no baseline: {error}") from error


def _require_place(path: Path) -> None:
    """Raises before the check is made when its result could not be written to `path`."""
    if path.exists() and not path.is_file():
        raise CheckError(f"{path} is no regular file, so no baseline can be saved there")
    folder = path.resolve().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise CheckError(f"{path} cannot be saved: {folder} is no folder that can be written to")


def _write_whole(path: Path, text: str) -> None:
    """Writes a file that at no moment is there in part: beside its place first, then moved."""
    place = path.resolve()  # a link goes on pointing where it did
    unfinished = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
    try:
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, place)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


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


class _Progress:
    """A line on a terminal's stderr that counts the seconds of the `with` block, and goes away at its end."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._count, daemon=True)

    def __enter__(self) -> None:
        if sys.stderr.isatty():
            self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def _count(self) -> None:
        start = time.monotonic()
        while True:
            print(f"\r{self._what}: {time.monotonic() - start:.0f} s", end="", file=sys.stderr, flush=True)
            if self._ended.wait(1):
                return


if __name__ == "__main__":
    sys.exit(main())
