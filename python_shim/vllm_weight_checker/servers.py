"""How to reach every rank over HTTP: `POST /weight_checker` of all API servers of one deployment.

With external or hybrid data-parallel load balancing each server speaks for its own engines only. The
answers of all given servers are merged, no rank may come from two of them, and together they must speak
for every data-parallel engine that they say there is. Only the standard library is used.
"""

from __future__ import annotations

import http.client
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from .errors import CheckError, RankError
from .merging import Part, combine
from .planned import audit
from .rank import Rank
from .report import Report
from .verification import combine_verified

PATH = "/weight_checker"
REMEDY = "start it with weight_checker appended to VLLM_PLUGINS and with VLLM_SERVER_DEV_MODE=1"


def base_url(url: str) -> str:
    """`url` without a trailing slash, as it is called and named in reports. ValueError when it is none."""
    parts = urlsplit(url)
    try:
        # Reading the port refuses one above 65535, of which the system would take the lowest bits.
        is_plain = not (parts.query or parts.fragment or parts.username) and parts.port != 0
    except ValueError:
        is_plain = False
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_plain:
        # Not repeated as it is: it may hold a password.
        shown = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        raise ValueError(f"{shown!r} is no address of an API server; it looks like http://host:8000")
    return url.rstrip("/")


def check_servers(
    urls: Sequence[str],
    action: str,
    timeout: float,
    baseline: Mapping[str, str] | None = None,
    **arguments: Any,
) -> Report:
    """Makes one check on every rank behind `urls`, asking all servers at the same time.

    Args:
        urls: what `base_url` gave for every API server.
        action: "checksum", "reset", "compare", "plan" or "verify"; a compare needs the `baseline`. Of several
            servers a verify also takes the plans, since none of them can audit more than its own ranks.
        timeout: seconds that a server may be silent.
        arguments: other fields of the request; those that are None are left out.

    Raises:
        CheckError: a server did not answer, refused, or has no such endpoint; `RankError`: the answers do
            not cover every rank exactly once. The message names the server.
    """
    fields = {"action": action, "detail": True, "baseline": baseline, **arguments}
    parts = _parts(urls, action, {name: value for name, value in fields.items() if value is not None}, timeout)
    data_parallel_size = _require_whole_deployment(parts)
    if action != "verify":
        return combine(action, parts, data_parallel_size, baseline)
    if len(parts) == 1:
        return combine_verified(parts, data_parallel_size)
    plans = check_servers(urls, "plan", timeout, checkpoint=arguments.get("checkpoint"))
    report = combine_verified(parts, data_parallel_size, audit(plans.plan))
    if plans.ranks != report.ranks:
        raise RankError(f"the servers have verified {report.ranks} and planned {plans.ranks}: ask again")
    return report


def _parts(urls: Sequence[str], action: str, fields: Mapping[str, Any], timeout: float) -> list[Part]:
    """What each server answers; `CheckError` with the words of all that failed."""
    body = json.dumps(fields).encode()
    answers: list[dict[str, Any]] = []
    failures: dict[str, str] = {}
    for url, outcome in zip(urls, _ask_all(urls, action, body, timeout), strict=True):
        if isinstance(outcome, CheckError):
            failures[url] = str(outcome)
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            answers.append(outcome)
    if failures:
        done = ", ".join(url for url in urls if url not in failures)
        but = f" (but the weights behind {done} have been reset)" if action == "reset" and done else ""
        raise CheckError("; ".join(failures.values()) + but)
    return list(map(_part, urls, answers))


def _ask_all(urls: Sequence[str], action: str, body: bytes, timeout: float) -> list[dict[str, Any] | BaseException]:
    """The outcome of `_ask` for each URL, from all of them at the same time."""
    outcomes: dict[str, dict[str, Any] | BaseException] = {}

    def ask(url: str) -> None:
        try:
            outcomes[url] = _ask(url, action, body, timeout)
        except BaseException as error:
            outcomes[url] = error

    # Daemons, so that an interrupted caller need not wait for servers that are silent.
    threads = [threading.Thread(target=ask, args=(url,), daemon=True) for url in urls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [outcomes[url] for url in urls]


def _ask(url: str, action: str, body: bytes, timeout: float) -> dict[str, Any]:
    """The report of one server. Every failure is a `CheckError` that names the server."""
    try:
        answer = json.loads(_post(url, body, timeout))
    except (ValueError, RecursionError) as error:
        raise CheckError(f"{url} answered something that is no JSON: {error}") from error
    if isinstance(answer, dict) and isinstance(answer.get("ranks"), list):
        return answer
    if isinstance(answer, dict) and {"checksums", "status", "match"} & answer.keys():
        done = ", which has set all weights to zero" if action == "reset" else ""
        raise CheckError(
            f"{url} answered with vLLM's own endpoint{done}; it does not say which ranks answered: {REMEDY}"
        )
    raise CheckError(f"{url} answered something that is no report: {json.dumps(answer)[:200]}")


def _post(url: str, body: bytes, timeout: float) -> bytes:
    try:
        request = urllib.request.Request(url + PATH, data=body, headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return bytes(response.read())
    except urllib.error.HTTPError as error:
        raise CheckError(_refusal(url, error)) from error
    except (OSError, http.client.HTTPException, ValueError, OverflowError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, TimeoutError):
            raise CheckError(f"{url} did not answer within {timeout:g} s; it may still be at work") from error
        raise CheckError(f"{url} cannot be reached: {str(reason) or type(reason).__name__}") from error


def _refusal(url: str, error: urllib.error.HTTPError) -> str:
    """What a server said with a status that is not 200."""
    try:
        text = error.read(1 << 20).decode(errors="replace")
    except (OSError, http.client.HTTPException):
        text = ""
    if error.code in (404, 405):
        return f"{url} has no endpoint {PATH} (HTTP {error.code}): {REMEDY}"
    try:
        answer = json.loads(text)
        message = answer["error"]["message"] if "error" in answer else answer["detail"]
    except (ValueError, TypeError, KeyError, RecursionError):
        message = text.strip()[:200] or error.reason
    return f"{url} refused (HTTP {error.code}): {message}"


def _part(url: str, answer: dict[str, Any]) -> Part:
    ranks = [Rank.of_key(f"{name}:") if isinstance(name, str) else None for name in answer["ranks"]]
    if None in ranks or [str(rank) for rank in ranks] != answer["ranks"]:
        raise RankError(f"the answer of {url} is unsound: its ranks are {str(answer['ranks'])[:200]}")
    return Part(url, tuple(rank for rank in ranks if rank), answer)


def _require_whole_deployment(parts: Sequence[Part]) -> int:
    """The deployment's data-parallel size, once it is certain that each of its engines was asked once."""
    sizes = {part.source: part.result.get("data_parallel_size") for part in parts}
    size = next(iter(sizes.values()))
    if not isinstance(size, int) or set(sizes.values()) != {size}:
        said = ", ".join(f"{url}: {size}" for url, size in sizes.items())
        raise RankError(f"the servers are not of one deployment: their data-parallel sizes are {said}")
    server_of: dict[Rank, str] = {}
    for part in parts:
        for rank in part.ranks:
            if rank in server_of:
                raise RankError(
                    f"{server_of[rank]} and {part.source} both answered for rank {rank}; give each server once"
                )
            server_of[rank] = part.source
    engines = {rank.dp for rank in server_of}
    missing = [f"dp{dp}" for dp in range(size) if dp not in engines]
    if missing:
        raise RankError(
            f"no answer from {', '.join(missing)} of {size} data-parallel engines by {', '.join(sizes)}: "
            "give the URL of every API server of the deployment"
        )
    unknown = sorted(f"dp{dp}" for dp in engines if dp >= size)
    if unknown:
        raise RankError(
            f"{', '.join(unknown)} answered by {', '.join(sizes)}, but the deployment has {size} data-parallel engines"
        )
    return size
