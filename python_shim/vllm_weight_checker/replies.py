"""Decides whether the answers to one call are this call's, one from every rank, and merges them.

vLLM hands out what it finds in its workers' queues. Once a worker method has raised in an engine with
several workers, the answers of the other ranks are those of earlier calls for the rest of the engine's
life, and look valid. So each call sends a fresh nonce, every reply echoes it beside its rank, and what
is not exactly that is an error here, never a digest. Pure functions on plain data.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from .errors import RankError
from .merging import Part, combine
from .rank import Rank
from .report import Report

PROTOCOL = 1
_SHOWN_ERRORS = 4

OUT_OF_STEP = (
    "Some worker method raised or timed out in this engine before, and since then vLLM hands out this rank's replies "
    "to earlier calls. They stay out of step for good: restart the engine, and trust none of its answers until then"
)


@dataclass(frozen=True)
class Layout:
    """The ranks that must answer, from an engine's parallel configuration.

    `dp` are the data-parallel engines that the caller reaches, out of `data_parallel_size` in the
    deployment. With `single` each engine answers for one rank of its grid only (vLLM's external launcher).
    """

    dp: tuple[int, ...]
    pp: int
    pcp: int
    tp: int
    data_parallel_size: int
    single: bool = False

    def ranks(self, dp: int) -> list[Rank]:
        """The ranks of one engine, in the order of its workers."""
        return [Rank(dp, *indices) for indices in product(range(self.pp), range(self.pcp), range(self.tp))]

    def __str__(self) -> str:
        engines = ", ".join(f"dp{dp}" for dp in self.dp)
        return f"{engines} with pipeline x prefill-context x tensor = {self.pp} x {self.pcp} x {self.tp}"


def new_nonce() -> str:
    """What makes one call different from every other."""
    return secrets.token_hex(16)


def merge(
    action: str,
    nonce: str,
    answers: Mapping[int, Sequence[object]],
    layout: Layout,
    baseline: Mapping[str, str] | None = None,
) -> Report:
    """The report of one call over all ranks.

    Args:
        action: "checksum", "reset", "compare", "plan", or "verify": of that what `verification.judge` takes.
        nonce: what the call sent.
        answers: the replies of each data-parallel engine, by its index, in the order of its workers.
        layout: who must have answered.
        baseline: what a compare was given.

    Raises:
        RankError: a reply is foreign, stale, an error, or unsound, or a rank answered not exactly once.
        CheckError: no rank has a parameter.
    """
    parts: list[Part] = []
    failures: list[str] = []
    for place, reply in _places(answers, layout):
        fields = _ours(action, nonce, place, reply)
        rank = _rank_of(fields)
        if fields.get("error") is not None:
            failures.append(f"rank {rank or place}: {_error_text(fields['error'])}")
        elif rank is None:
            raise RankError(f"the reply at {place} names no rank: {fields.get('rank')!r}")
        else:
            parts.append(Part(f"rank {rank}", (rank,), _result(rank, fields)))
    if failures:
        raise RankError(_joined(failures))
    _require_every_rank_once([part.ranks[0] for part in parts], layout)
    return combine(action, parts, layout.data_parallel_size, baseline)


def _places(answers: Mapping[int, Sequence[object]], layout: Layout) -> Iterator[tuple[str, object]]:
    """Every reply, with words for where it came from."""
    for dp, replies in answers.items():
        if not isinstance(replies, (list, tuple)):
            raise RankError(f"data-parallel engine dp{dp} answered {_brief(replies)}, not one reply per worker")
        ranks = layout.ranks(dp)
        for position, reply in enumerate(replies):
            known = position < len(ranks) and not layout.single
            yield f"position {position} of engine dp{dp}" + (f" ({ranks[position]})" if known else ""), reply


def _ours(action: str, nonce: str, place: str, reply: object) -> dict[str, Any]:
    """The reply, once it has proved to be an answer to this very call."""
    if not isinstance(reply, dict) or "weight_checker" not in reply:
        raise RankError(f"the reply at {place} is none of weight-checker's but {_brief(reply)}. {OUT_OF_STEP}")
    if reply["weight_checker"] != PROTOCOL:
        raise RankError(
            f"the reply at {place} speaks protocol {reply['weight_checker']!r} where {PROTOCOL} was expected: "
            "install one version of weight-checker everywhere"
        )
    if reply.get("nonce") != nonce or reply.get("action") != action:
        raise RankError(f"the reply at {place} is stale: it answers an earlier {reply.get('action')!r}. {OUT_OF_STEP}")
    return reply


def _rank_of(fields: Mapping[str, Any]) -> Rank | None:
    rank = fields.get("rank")
    # Strict where a plan is not: a reply that names another axis comes from another version.
    return Rank.of_indices(rank) if isinstance(rank, dict) and len(rank) == 4 else None


def _result(rank: Rank, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    result = fields.get("result")
    if not isinstance(result, dict):
        raise RankError(f"rank {rank} answered neither a result nor an error: {_brief(result)}")
    return result


def _require_every_rank_once(answered: Sequence[Rank], layout: Layout) -> None:
    grid = [rank for dp in layout.dp for rank in layout.ranks(dp)]

    def seat(rank: Rank) -> str:
        return f"one rank of dp{rank.dp}" if layout.single else str(rank)

    seats = Counter(map(seat, answered))
    wrong = {
        "no answer from": [name for name in dict.fromkeys(map(seat, grid)) if name not in seats],
        "more than one answer from": [name for name, count in seats.items() if count > 1],
        "unknown": [str(rank) for rank in sorted(set(answered) - set(grid))],
    }
    if any(wrong.values()):
        texts = [f"{what} {', '.join(names)}" for what, names in wrong.items() if names]
        raise RankError(f"not every rank answered exactly once: {'; '.join(texts)}. Expected were {layout}")


def _error_text(error: object) -> str:
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return error["message"] or str(error.get("type"))
    return _brief(error)


def _joined(failures: Sequence[str]) -> str:
    more = len(failures) - _SHOWN_ERRORS
    return "; ".join(failures[:_SHOWN_ERRORS]) + (f"; and {more} more ranks failed" if more > 0 else "")


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
