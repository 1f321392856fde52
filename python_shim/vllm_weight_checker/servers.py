"""How to reach every rank over HTTP: `POST /weight_checker` of all API servers of one deployment.

With external or hybrid data-parallel load balancing each server speaks for its own engines only. The
answers of all given servers are merged, no rank may come from two of them, and together they must speak
for every data-parallel engine that they say there is. Only the standard library is used.
"""

from __future__ import annotations

import http.client
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .errors import CheckError, RankError
from .merging import Part, combine
from .rank import Rank
from .report import Report

PATH = "/weight_checker"
REMEDY = "start it with weight_checker appended to VLLM_PLUGINS and with VLLM_SERVER_DEV_MODE=1"


def base_url(url: str) -> str:
    """`url` without a trailing slash, as it is called and named in reports. ValueError when it is none."""
    if not url.startswith(("http://", "https://")) or not url.partition("://")[2].strip("/"):
        raise ValueError(f"{url!r} is no address of an API server; it looks like http://host:8000")
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
        action: "checksum", "reset" or "compare"; a compare needs the `baseline`.
        timeout: seconds that a server may be silent.
        arguments: other fields of the request.

    Raises:
        CheckError: a server did not answer, refused, or has no such endpoint; `RankError`: the answers do
            not cover every rank exactly once. The message names the server.
    """
    fields = {"action": action, "detail": True, **arguments}
    if baseline is not None:
        fields["baseline"] = baseline
    body = json.dumps(fields).encode()
    with ThreadPoolExecutor(max_workers=len(urls)) as pool:
        pending = [pool.submit(_ask, url, action, body, timeout) for url in urls]
    failures = [str(asked.exception()) for asked in pending if asked.exception()]
    if failures:
        done = [url for url, asked in zip(urls, pending) if not asked.exception()]
        but = f" (but the weights behind {', '.join(done)} have been reset)" if action == "reset" and done else ""
        raise CheckError("; ".join(failures) + but)
    parts = [_part(url, asked.result()) for url, asked in zip(urls, pending)]
    return combine(action, parts, _require_whole_deployment(parts), baseline)


def _ask(url: str, action: str, body: bytes, timeout: float) -> dict[str, Any]:
    """The answer of one server to one request. Every failure is a `CheckError` that names the server."""
    request = urllib.request.Request(url + PATH, data=body, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            answer = json.loads(response.read())
    except urllib.error.HTTPError as error:
        raise CheckError(_refusal(url, error)) from error
    except (TimeoutError, urllib.error.URLError, http.client.HTTPException, OSError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, (TimeoutError, socket.timeout)):
            raise CheckError(f"{url} did not answer within {timeout:g} s; it may still be at work") from error
        raise CheckError(f"{url} cannot be reached: {reason or type(reason).__name__}") from error
    except (ValueError, RecursionError) as error:
        raise CheckError(f"{url} answered something that is no JSON: {error}") from error
    if not isinstance(answer, dict) or not isinstance(answer.get("ranks"), list):
        by_vllm = isinstance(answer, dict) and {"checksums", "status", "match"} & answer.keys()
        if not by_vllm:
            raise CheckError(f"{url} answered something that is no report: {json.dumps(answer)[:200]}")
        done = ", which has set all weights to zero" if action == "reset" else ""
        raise CheckError(
            f"{url} answered with vLLM's own endpoint{done}; it does not say which ranks answered, so {REMEDY}"
        )
    return answer


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
                raise RankError(f"{server_of[rank]} and {part.source} both answered for rank {rank}; give each server once")
            server_of[rank] = part.source
    engines = {rank.dp for rank in server_of}
    missing = [f"dp{dp}" for dp in range(size) if dp not in engines]
    if missing:
        raise RankError(
            f"no answer from {', '.join(missing)} of {size} data-parallel engines: "
            "give the URL of every API server of the deployment"
        )
    unknown = sorted(f"dp{dp}" for dp in engines if dp >= size)
    if unknown:
        raise RankError(f"{', '.join(unknown)} answered, but the deployment has {size} data-parallel engines")
    return size
