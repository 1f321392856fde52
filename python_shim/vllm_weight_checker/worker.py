"""What a vLLM worker answers to `collective_rpc`: the methods `weight_checker_*`, and the extension class.

No method raises. With more than one worker, an exception in one of them would put the engine's replies
out of step for the rest of its life: digests of an earlier call would pass for those of a later one. So
a failure is an error object in the reply, every reply echoes the caller's nonce and names its rank, and
the caller raises (`replies`).
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from types import MethodType
from typing import Any

from . import planned, verbs
from .baselines import algorithm_of
from .errors import CheckError
from .model import Weights, rank_of, weights_of
from .notices import log, warn_once
from .plans import parameters_of, text_of
from .rank import Rank
from .replies import PROTOCOL

_LAST_REPLY = "_weight_checker_last_reply"

Result = dict[str, Any]
Reply = dict[str, Any]


def checksum(worker: Any, rank: Rank, nonce: Any = None, algorithm: str = "sha256") -> Result:
    """{"checksums": {key: digest}} of every weight of this rank; a hidden one has the digest of no bytes."""
    weights = weights_of(worker)
    digests = verbs.checksum(weights.tensors, rank, algorithm=algorithm)
    hidden = _hidden_keys(weights, rank)
    return {
        "checksums": digests,
        "parameters": len(weights.tensors),
        "hashed": len(digests) - len(hidden),
        "hidden": hidden,
        "bytes": sum(tensor.nbytes for tensor in weights.tensors.values()),
    }


def reset(worker: Any, rank: Rank, nonce: Any = None, fill: str = "zero", seed: int | str = 0) -> Result:
    """Overwrites every weight of this rank; `seed` may be text, as /collective_rpc passes it."""
    weights = weights_of(worker)
    try:
        number = int(seed)
    except (TypeError, ValueError):
        raise CheckError(f"seed {seed!r} is no whole number; pass one of 0 to 2**64 - 1") from None
    report = verbs.reset(weights.visible, fill, number)
    return {
        "parameters": len(weights.tensors),
        "written": report.written,
        "shared": report.shared,
        "hidden": _hidden_keys(weights, rank),
        "bytes": report.bytes,
    }


def compare(worker: Any, rank: Rank, nonce: Any = None, baseline: Any = None, algorithm: str | None = None) -> Result:
    """Compares the weights of this rank with the baseline's keys of this rank.

    The algorithm is that of the baseline's digests; it is an error when `algorithm` names another. A
    hidden weight that equals the baseline is skipped, since it says nothing. No key in common is no error
    here: whether anything was compared is the caller's to say, who sees all ranks.
    """
    baseline = _mapping(baseline, "baseline")
    # Of all ranks' digests: this rank's part may be empty, or tell less.
    algorithm = algorithm_of(baseline, algorithm)
    own = {key: digest for key, digest in baseline.items() if key.startswith(rank.prefix)}
    weights = weights_of(worker)
    empty = verbs.checksum({name: weights.tensors[name] for name in weights.hidden}, rank, algorithm=algorithm)
    silent = {key for key, digest in empty.items() if own.get(key) == digest}
    keys = {rank.prefix + name: name for name in weights.tensors if rank.prefix + name not in silent}
    for key in silent:
        del own[key]
    result = _compare_keys(weights, keys, own, rank, algorithm)
    result["parameters"] = len(weights.tensors)
    result["skipped"] = {"hidden": len(silent), "not in the baseline": len(result["unexpected"])}
    result["hidden"] = _hidden_keys(weights, rank)
    if result["mismatches"]:
        log.error(
            "rank %s does not match the baseline: %d differing, %d missing, %d unexpected of %d parameters: %s",
            rank, len(result["differing"]), len(result["missing"]), len(result["unexpected"]),
            result["parameters"], ", ".join(result["mismatches"][:5]),
        )  # fmt: skip
    return result


def plan(worker: Any, rank: Rank, nonce: Any = None, checkpoint: Any = None, sources: Any = None) -> Result:
    """{"plan": JSON text}: where this rank's parameters come from, recorded from its loader without any weights.

    Args:
        checkpoint: path of the checkpoint that is loaded; default: the one that the engine has loaded.
        sources: the tensors that are loaded instead, as {name: {"dtype", "shape"}} or the JSON text of that.
    """
    from .recorder import record, served_checkpoint

    if sources is not None and checkpoint is not None:
        raise CheckError("checkpoint and sources are both given; pass the one that the weights are from")
    if sources is not None:
        sources = planned.sources_of(_mapping(sources, "sources"))
    document = record(worker, rank, checkpoint=None if checkpoint is None else str(checkpoint), sources=sources)
    if sources is None and checkpoint is None:
        checkpoint = served_checkpoint(worker)
    return {
        "plan": text_of(document),
        "parameters": sum(1 for _ in parameters_of(document)),
        "checkpoint": None if checkpoint is None else str(checkpoint),
    }


def verify(worker: Any, rank: Rank, nonce: Any = None, checkpoint: Any = None, algorithm: str = "sha256") -> Result:
    """What this rank holds and what it must hold: the checksum, a plan, and what that makes of the checkpoint.

    The verdict is the caller's, who sees all ranks.
    """
    found = checksum(worker, rank, algorithm=algorithm)
    recorded = plan(worker, rank, checkpoint=checkpoint)
    expected = planned.expect(recorded["plan"], recorded["checkpoint"], algorithm=algorithm)
    return {**found, "plan": recorded["plan"], "expected": expected, "checkpoint": recorded["checkpoint"]}


def last_report(worker: Any, rank: Rank, nonce: Any = None) -> Result:
    """The result of this worker's last check again, for callers whose framework drops return values."""
    last: Reply | None = getattr(worker, _LAST_REPLY, None)
    if last is None:
        raise CheckError("this worker has made no check yet, so there is no last report")
    if last["error"] is not None:
        raise CheckError(f"the last {last['action']} failed: {last['error']['type']}: {last['error']['message']}")
    return {"of": last["action"], **last["result"]}


def _compare_keys(
    weights: Weights, keys: Mapping[str, str], baseline: dict[str, str], rank: Rank, algorithm: str
) -> Result:
    """Compares the tensors named by `keys` {key: name} with this rank's part of the baseline."""
    if not keys.keys() & baseline.keys():
        missing, unexpected = sorted(baseline), sorted(keys)
        counts = {"compared": 0, "equal": 0, "bytes": 0, "through_host": 0}
        lists = {"differing": [], "missing": missing, "unexpected": unexpected}
        return {"match": False, "mismatches": sorted(missing + unexpected), **lists, **counts}
    report = verbs.compare({name: weights.tensors[name] for name in keys.values()}, baseline, rank, algorithm=algorithm)
    del report["tensors"]  # the caller counts parameters, with those that were skipped
    return dict(report)


_EXPECTED = {
    "baseline": "the checksums of an earlier check, as a mapping of key to digest",
    "sources": 'what the tensors are, as a mapping of name to {"dtype", "shape"}',
}


def _mapping(argument: Any, name: str) -> Mapping[str, Any]:
    """The argument as a mapping; JSON text is how it comes over /collective_rpc."""
    if isinstance(argument, str):
        try:
            argument = json.loads(argument)
        except ValueError as error:
            raise CheckError(f"the {name} is no JSON text: {error}") from error
    if not isinstance(argument, Mapping) or not all(isinstance(key, str) for key in argument):
        raise CheckError(f"{name} is of type {type(argument).__name__}; pass {_EXPECTED[name]} or as its JSON text")
    return argument


def _hidden_keys(weights: Weights, rank: Rank) -> list[str]:
    if weights.hidden:
        warn_once(
            "hidden weights",
            "%d of %d parameters hold no bytes and cannot be checked, since vLLM keeps these weights in a form "
            "of its kernels: %s ... On CPU, start it with VLLM_WEIGHT_CHECKER_KEEP_CPU_WEIGHTS=1 to see them.",
            len(weights.hidden), len(weights.tensors), weights.hidden[0],
        )  # fmt: skip
    return [rank.prefix + name for name in weights.hidden]


def _answer(act: Callable[..., Result], worker: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Reply:
    """The reply to one call of a method: with the result of `act`, or with the error that it ended in."""
    reply: Reply = {
        "weight_checker": PROTOCOL,
        "action": act.__name__,
        "nonce": kwargs.get("nonce", args[0] if args else None),
        "rank": None,
        "error": None,
        "result": None,
    }
    try:
        rank = rank_of(worker)
        reply["rank"] = asdict(rank)
        _check_arguments(act, args, kwargs)
        reply["result"] = act(worker, rank, *args, **kwargs)
    except Exception as error:
        log.error("%s failed: %s", act.__name__, type(error).__name__, exc_info=True)
        reply["error"] = {"type": type(error).__name__, "message": _text(error)}
    if act is not last_report:
        _keep(worker, reply)
    return reply


def _check_arguments(act: Callable[..., Result], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Says what the method takes, in the caller's terms, when the arguments are others."""
    parameters = list(inspect.signature(act).parameters.values())[2:]
    signature = inspect.Signature([parameter.replace(annotation=parameter.empty) for parameter in parameters])
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise CheckError(f"weight_checker_{act.__name__}{signature}: {error}") from None


def _text(error: Exception) -> str:
    try:
        return str(error) or repr(error)
    except Exception:  # a foreign exception may fail to print itself
        return "(this error has no text)"


def _keep(worker: Any, reply: Reply) -> None:
    """Keeps the reply on the worker for `last_report`."""
    try:
        setattr(worker, _LAST_REPLY, reply)
    except Exception:
        warn_once("last report", "the last report cannot be kept on a %s", type(worker).__name__, exc_info=True)


def _method(act: Callable[..., Result]) -> Callable[..., Reply]:
    # Any arguments are taken, so that wrong ones are answered and not raised.
    def method(self: Any, *args: Any, **kwargs: Any) -> Reply:
        return _answer(act, self, args, kwargs)

    method.__name__ = method.__qualname__ = f"weight_checker_{act.__name__}"
    method.__doc__ = act.__doc__
    return method


_ACTIONS: tuple[Callable[..., Result], ...] = (checksum, reset, compare, plan, verify, last_report)
METHODS: dict[str, Callable[..., Reply]] = {method.__name__: method for method in map(_method, _ACTIONS)}
"""The methods of a worker, by their names for `collective_rpc`; each takes a worker as `self`."""


class WorkerExtension:
    """`worker_extension_cls="vllm_weight_checker.WorkerExtension"` gives every worker the methods `METHODS`.

    vLLM refuses to start when the worker already has a name of its extension, which it has when the
    plugin is installed too. So this class has no public name at all, and answers for its methods only
    when nobody else does. An extension of your own may inherit from it.
    """

    def __getattr__(self, name: str) -> Any:
        if name in METHODS:
            return MethodType(METHODS[name], self)
        next_one = getattr(super(), "__getattr__", None)
        if next_one is not None:
            return next_one(name)
        # Fails again, with the text that it would have without this class; that of a failing property too.
        return object.__getattribute__(self, name)
