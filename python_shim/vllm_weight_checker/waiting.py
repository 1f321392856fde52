"""What a terminal shows while the command waits."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType


class Progress:
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
