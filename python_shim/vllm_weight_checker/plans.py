"""The plan document: where every element of every parameter comes from. Its outer form, and how several become one.

The README says what a document holds. What is inside of a parameter is the library's to read and to judge
(`planned`); here is only what Python needs: whose ranks and which parameters a document speaks of. It
comes from workers and servers, so nothing in it is believed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .errors import CheckError, RankError
from .rank import Rank
from .strict_json import parsed

FORMAT, VERSION = "weight-checker-plan", 1
_RANKS = ', "ranks": ['  # as json writes it

Plan = Mapping[str, Any] | str
Document = dict[str, Any]


def parse(plan: Plan) -> Document:
    """The document of a plan, which may be its JSON text; one whose outer form is right.

    Raises:
        CheckError: it is no plan, is of another version, or names a rank twice.
    """
    return _checked(parsed(plan, "the plan") if isinstance(plan, str) else plan)


class PlanReader:
    """`parse` of one plan after the other; what texts have in common before their ranks is read once.

    The ranks of an engine name the same checkpoint tensors, which is most of the text of each.
    """

    def __init__(self) -> None:
        self._beginning: str | None = None
        self._head: Document = {}

    def parse(self, plan: Plan) -> Document:
        """As `parse`. Documents that begin alike share the objects that they begin with."""
        if not isinstance(plan, str):
            return parse(plan)
        beginning, found, ranks = plan.partition(_RANKS)
        if not found or not self._begins_with(beginning):
            return parse(plan)
        rest = parsed(f"{{{found[1:]}{ranks}", "the plan")
        if repeated := self._head.keys() & rest.keys():
            raise CheckError(f"the plan names {min(repeated)!r} twice")
        return _checked({**self._head, **rest})

    def _begins_with(self, beginning: str) -> bool:
        """Whether `beginning`, with a brace, is an object: then what follows stands beside what it names."""
        if beginning != self._beginning:
            try:
                head = parsed(f"{beginning}}}", "the plan")
            except CheckError:
                return False
            if not isinstance(head, dict):
                return False
            self._beginning, self._head = beginning, head
        return True


def _checked(document: Any) -> Document:
    if not isinstance(document, Mapping) or document.get("format") != FORMAT:
        raise CheckError(f'this is no plan: it is no object whose "format" is "{FORMAT}"')
    if type(document.get("version")) is not int or document["version"] != VERSION:
        raise CheckError(
            f"the plan is of version {document.get('version')!r}, and this package reads version {VERSION}: "
            "record it with this release"
        )
    for name, kind in (("sources", Mapping), ("ranks", list)):
        if not isinstance(document.get(name), kind):
            raise CheckError(f"the plan's {name!r} is {_kind(document.get(name))}, not {_NAMES[kind]}")
    if not document["ranks"]:
        raise CheckError("the plan has no rank, so it says nothing")
    ranks = list(map(_checked_rank, document["ranks"]))
    _require_once(ranks)
    return dict(document)


def ranks_of(document: Mapping[str, Any]) -> list[Rank]:
    """The ranks that a parsed document speaks of, in its order."""
    return [rank for entry in document["ranks"] if (rank := Rank.of_indices(entry["rank"]))]


def parameters_of(document: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every (key, parameter) of a parsed document."""
    for rank, entry in zip(ranks_of(document), document["ranks"], strict=True):
        for name, parameter in entry["parameters"].items():
            yield rank.prefix + name, parameter


def merge_plans(documents: Sequence[Plan]) -> Document:
    """One document with the ranks of all, which are plans of one model from one list of checkpoint tensors.

    Raises:
        CheckError: one is no plan, or there is none.
        RankError: they are of different engines or sources, or a rank is in more than one.
    """
    parts = list(map(parse, documents))
    if not parts:
        raise CheckError("there is no plan to merge")
    first = parts[0]
    for part in parts[1:]:
        _require_same_origin(first, part)
    merged: Document = {name: first[name] for name in ("format", "version", "engine", "sources") if name in first}
    merged["ranks"] = [entry for part in parts for entry in part["ranks"]]
    _require_once(ranks_of(merged))
    return merged


def text_of(plan: Plan) -> str:
    """The JSON text of a plan, which may be that text already.

    Raises:
        CheckError: it holds something that JSON cannot.
    """
    if isinstance(plan, str):
        return plan
    try:
        # The iterating encoder lets other threads run.
        return "".join(json.JSONEncoder(allow_nan=False, default=_plain).iterencode(dict(plan)))
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckError(f"the plan has no JSON form: {error}") from error


def _checked_rank(entry: object) -> Rank:
    """The rank of one of a document's ranks, whose parameters are objects."""
    fields = entry if isinstance(entry, Mapping) else {}
    rank = Rank.of_indices(fields.get("rank"))
    if rank is None:
        raise CheckError(f'a rank of the plan is {fields.get("rank")!r}, not an object of "dp", "pp", "pcp" and "tp"')
    parameters = fields.get("parameters")
    if not isinstance(parameters, Mapping):
        raise CheckError(f"the plan's 'parameters' of rank {rank} is {_kind(parameters)}, not an object")
    for name, parameter in parameters.items():
        if not isinstance(parameter, Mapping) or not isinstance(parameter.get("pieces"), list):
            raise CheckError(f"the plan's parameter {rank.prefix}{name} has no list of pieces")
        for piece in parameter["pieces"]:
            if not isinstance(piece, Mapping) or not isinstance(piece.get("computed", ""), str):
                raise CheckError(
                    f"the plan's parameter {rank.prefix}{name} has a piece that is none: {str(piece)[:80]}"
                )
        if not isinstance(parameter.get("rewritten", ""), str):
            raise CheckError(f"the plan's parameter {rank.prefix}{name} is rewritten without a reason")
    return rank


def _require_once(ranks: Sequence[Rank]) -> None:
    twice = next((rank for rank in ranks if ranks.count(rank) > 1), None) if len(set(ranks)) < len(ranks) else None
    if twice:
        raise RankError(f"the plan has rank {twice} twice; give the plan of each rank once")


def _require_same_origin(one: Document, other: Document) -> None:
    """Raises `RankError` unless both are plans by one engine from one list of tensors."""
    of_one, of_other = ranks_of(one)[0], ranks_of(other)[0]
    engines = one.get("engine"), other.get("engine")
    if engines[0] != engines[1]:
        raise RankError(
            f"the plans are of different engines: {engines[0]} on rank {of_one} and {engines[1]} on rank {of_other}"
        )
    if one["sources"] == other["sources"]:
        return
    names = one["sources"].keys() | other["sources"].keys()
    name = min(name for name in names if one["sources"].get(name) != other["sources"].get(name))
    raise RankError(
        f"the plans are of different checkpoints: {name!r} is {_source(one, name)} on rank {of_one} "
        f"and {_source(other, name)} on rank {of_other}"
    )


def _source(document: Document, name: str) -> str:
    source = document["sources"].get(name)
    return "absent" if source is None else json.dumps(source, default=_plain)[:200]


def _plain(value: object) -> object:
    """Mappings that are no dict, as a report is none, for json."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} {value!r} is neither object, list, text nor number")


def _kind(value: object) -> str:
    return "absent" if value is None else f"a {type(value).__name__}"


_NAMES = {Mapping: "an object", list: "a list"}
