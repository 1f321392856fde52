"""What a process says once, however often it happens: a warning on every check would drown the log."""

from __future__ import annotations

import logging

log = logging.getLogger("vllm_weight_checker")
_said: set[str] = set()


def warn_once(about: str, message: str, *arguments: object, exc_info: bool = False) -> None:
    """Logs a warning, unless this process has already logged one `about` the same thing."""
    if about not in _said:
        _said.add(about)
        log.warning(message, *arguments, exc_info=exc_info)
