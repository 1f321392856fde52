"""Everything that this package raises.

A `CheckError` means that nothing could be said about the weights; a `MismatchError` means that the
check was made and the weights differ. Neither is a kind of the other, so that catching one cannot
hide the other. All of them survive pickling, since an engine may carry them between processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any


class Status(IntEnum):
    """What a function of the library returned; the numbers of `WcStatus` in weight_checker.h."""

    OK = 0
    NULL_POINTER = 1
    BAD_STRUCT_SIZE = 2
    BAD_NAME = 3
    DUPLICATE_NAME = 4
    BAD_NDIM = 5
    NEGATIVE_SHAPE = 6
    SIZE_OVERFLOW = 7
    NEGATIVE_STRIDE = 8
    OUT_OF_ADDRESS_SPACE = 9
    UNSUPPORTED_DTYPE = 10
    UNSUPPORTED_DEVICE = 11
    UNSUPPORTED_LAYOUT = 12
    UNMAPPED_MEMORY = 13
    MEMORY_PROTECTED = 14
    BAD_OPTION = 15
    BAD_BASELINE = 16
    ALGORITHM_MISMATCH = 17
    NOTHING_COMPARED = 18
    CANCELLED = 19
    BUFFER_TOO_SMALL = 20
    SYSTEM = 21
    PANIC = 22
    BAD_PLAN = 23
    BAD_CHECKPOINT = 24
    MISSING_SOURCE = 25
    SOURCE_MISMATCH = 26
    CUDA_UNAVAILABLE = 27
    UNALLOCATED_DEVICE_MEMORY = 28
    WRONG_DEVICE = 29
    STREAM_CAPTURING = 30
    OUT_OF_DEVICE_MEMORY = 31
    CUDA = 32


class CheckError(Exception):
    """The check could not be made: nothing is known about the weights."""


class LibraryError(CheckError):
    """libweight_checker.so is absent, cannot be loaded, or speaks another ABI version."""


class TensorError(CheckError):
    """A tensor of the call cannot be read (or written) in place; the message names it."""


class NativeError(CheckError):
    """The library refused the call or failed.

    `status` is the library's `Status` (a plain int when this package does not know the number) and
    `message` its text, which names the tensor or the argument.
    """

    def __init__(self, status: Status | int, message: str) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message

    def __str__(self) -> str:
        return f"{self.message} [{getattr(self.status, 'name', self.status)}]"


class RankError(CheckError):
    """Ranks did not answer exactly once each, or one of them answered with an error."""


class MismatchError(Exception):
    """The weights are not those of the baseline or the checkpoint; `report` says which keys."""

    def __init__(self, report: Mapping[str, Any]) -> None:
        super().__init__(report)
        self.report = report

    def __str__(self) -> str:
        kinds = [kind for kind in ("differing", "missing", "unexpected", "unwritten") if kind in self.report]
        counts = ", ".join(f"{len(self.report[kind])} {kind}" for kind in kinds)
        keys = list(self.report["mismatches"])
        shown = ", ".join(keys[:5]) + (f" and {len(keys) - 5} more" if len(keys) > 5 else "")
        what = "checkpoint" if "audit" in self.report else "baseline"
        plan = "" if self.report.get("audited", True) else "; the audit of the plan found faults, which `audit` names"
        return f"the weights do not match the {what}: {counts}{': ' if keys else ''}{shown}{plan}"
