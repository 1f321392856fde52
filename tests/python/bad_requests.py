"""Requests to /weight_checker that must be refused, with vLLM's own words."""

from __future__ import annotations

import json

INVALID = [
    {},
    [],
    7,
    None,
    "text",
    {"action": None},
    {"action": "check"},
    {"action": 1},
    {"action": ["checksum"]},
    {"action": "compare"},
    {"action": "compare", "baseline": None},
    {"action": "compare", "baseline": []},
    {"action": "compare", "baseline": "{}"},
    {"action": "compare", "baseline": {"a": 1}},
    {"action": "compare", "baseline": {"a": None, "b": True, "c": {}}},
    {"action": "no", "baseline": 3},
    {"baseline": {"a": "b"}},
]
BROKEN = [
    "",
    "{",
    '{"action": "checksum"',
    '{"action": "checksum",}',
    "{'action': 1}",
    '{"action": checksum}',
    '{"action" "checksum"}',
    '{"action": "checksum"} {}',
    '{"action": "check\nsum"}',
    '{"action": "\\ud8"}',
    '["action"',
    "nul",
    b"\xff\xfe\xfd",
    b"\xef\xbb\xbf{",
    "[" * 100_000,
]

BAD_REQUESTS = [
    *(json.dumps(body).encode() for body in INVALID),
    *(text if isinstance(text, bytes) else text.encode() for text in BROKEN),
]
