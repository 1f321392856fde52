"""HTTP servers on this machine that play vLLM API servers, with simulated ranks behind them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from simulated_engines import SERVED, Worker

Answer = tuple[int, bytes]
Request = dict[str, Any]


class PlayedServer:
    """A running server: `url`, the `requests` that it got, and `respond`, which makes its answers."""

    def __init__(self, respond: Callable[[Request], Answer]) -> None:
        self.requests: list[Request] = []
        self.paths: list[str] = []
        self.respond = respond
        played = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                played.requests.append(request)
                played.paths.append(self.path)
                status, body = played.respond(request)
                if status == 0:
                    return  # hangs up without an answer
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> PlayedServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def serving(ranks: list[Worker], data_parallel_size: int = 1) -> Iterator[PlayedServer]:
    """A server that has our endpoint and answers for `ranks`."""
    with PlayedServer(
        lambda request: (200, json.dumps(report(ranks, data_parallel_size, **request)).encode())
    ) as server:
        yield server


def answering(status: int, body: object) -> PlayedServer:
    """A server that gives the same answer to everything; `body` is bytes, or what JSON can hold."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return PlayedServer(lambda request: (status, data))


def report(ranks: list[Worker], data_parallel_size: int, action: str, detail: bool, **arguments: Any) -> dict[str, Any]:
    """The detailed answer of a server with these ranks, put together without the package's code."""
    assert detail is True
    if action in ("plan", "verify"):
        return {**_planned(ranks, action, **arguments), "data_parallel_size": data_parallel_size}
    results = [worker.answer(f"weight_checker_{action}", **arguments)["result"] for worker in ranks]
    merged: dict[str, Any] = {
        "ranks": [worker.prefix[:-1] for worker in ranks],
        "data_parallel_size": data_parallel_size,
    }
    for result in results:
        for name, value in result.items():
            if isinstance(value, bool):
                merged[name] = merged.get(name, True) and value
            elif isinstance(value, int):
                merged[name] = merged.get(name, 0) + value
            elif isinstance(value, list):
                merged[name] = sorted(merged.get(name, []) + value)
            elif name == "skipped":
                before = merged.get(name, {})
                merged[name] = {reason: before.get(reason, 0) + count for reason, count in value.items()}
            else:
                merged[name] = {**merged.get(name, {}), **value}
    if action == "reset":
        merged["status"] = "reset"
    if action == "compare":
        prefixes = tuple(worker.prefix for worker in ranks)
        foreign = [key for key in arguments["baseline"] if not key.startswith(prefixes)]
        merged["missing"] = sorted(merged["missing"] + foreign)
        merged["mismatches"] = sorted(merged["differing"] + merged["missing"] + merged["unexpected"])
        merged["match"] = not merged["mismatches"]
    return merged


def _planned(
    ranks: list[Worker], action: str, checkpoint: str | None = None, sources: Any = None, algorithm: str = "sha256"
) -> dict[str, Any]:
    """The answer to a plan, or to a verify of plans in which nothing is missing and no parameter is out of the way."""
    documents = [worker.document(sources) for worker in ranks]
    keys = [worker.prefix + name for worker in ranks for name in worker.document()["ranks"][0]["parameters"]]
    same = {"ranks": [worker.prefix[:-1] for worker in ranks], "checkpoint": None if sources else checkpoint or SERVED}
    if action == "plan":
        plan = {**documents[0], "ranks": [document["ranks"][0] for document in documents]}
        return {"plan": plan, "parameters": len(keys), **same}
    held = {worker.prefix + name: data for worker in ranks for name, data in worker.weights.items()}
    hidden = {worker.prefix + name: "hidden" for worker in ranks for name in worker.hidden}
    differing = sorted(key for key, data in held.items() if data != ranks[0].checkpoint[key])
    unplaced = [{"source": name, "explained": None} for name in ranks[0].checkpoint if name not in keys]
    findings = {"partly_placed": [], "unwritten": [], "overlapping": [], "past_the_end": [], "replicas": []}
    return {
        "match": not differing and not unplaced,
        "mismatches": differing,
        "differing": differing,
        **{name: [] for name in ("missing", "unexpected", "unwritten")},
        "not_comparable": hidden,
        "audited": not unplaced,
        "audit": {"complete": not unplaced, "unplaced": unplaced, **findings},
        **{"parameters": len(held) + len(hidden), "compared": len(held), "equal": len(held) - len(differing)},
        **{"bytes": sum(map(len, held.values())), "algorithm": algorithm},
        **same,
    }
