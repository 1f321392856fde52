"""Ctrl-C during a call of the library, which runs no Python and so would neither stop nor pass it on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def held_back() -> Iterator[Callable[[], bool] | None]:
    """Gives a function that says whether Ctrl-C came meanwhile; if it did, KeyboardInterrupt is raised at the end.

    Python runs its handler at the next moment at which it gets to run, which would be inside a callback of the
    library. An exception that is raised there is lost, so for the time of the call the handler only takes a
    note. Where Python does not handle Ctrl-C itself (other threads, handlers of others) it gives None.
    """
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield None
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    try:
        yield lambda: bool(came)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if came:
            raise KeyboardInterrupt
