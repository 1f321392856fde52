"""The `vllm.endpoint_plugins` entry point: serves `POST /weight_checker` on vLLM's API server.

The requests, answers and refusals are those of vLLM's own endpoint (0.32 and later), which this one
replaces; versions before have it from here. It adds the request's fields `detail`, `algorithm`, `fill`
and `seed` and the actions `plan` and `verify` with `checkpoint` and `sources`, and answers only when every
rank has answered exactly once. Since a reset destroys the served
model, the endpoint exists only with VLLM_SERVER_DEV_MODE=1, like vLLM's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field, ValidationError, WrapValidator
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12, and brings it

from . import loop_json
from ._native import ALGORITHMS, FILLS
from .baselines import algorithm_of
from .checkpoint_roots import CheckpointRefused, permitted
from .engines import check_client
from .errors import CheckError
from .notices import log
from .report import Report
from .servers import PATH


class WeightCheckerEndpoint:
    """What vLLM makes of the entry point, without arguments; it satisfies vLLM's `EndpointPlugin`."""

    name = "weight_checker"
    required_tasks = None
    """Any model can be checked. The render server has none; there the endpoint says so."""

    def attach_router(self, app: FastAPI) -> None:
        """Adds the route to `app`, in development mode only."""
        from vllm import envs

        if envs.VLLM_SERVER_DEV_MODE:
            app.include_router(_router())
        else:
            log.info(
                "POST /weight_checker is not served, since it can destroy the model: VLLM_SERVER_DEV_MODE=1 adds it"
            )

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Nothing to do: the route finds the engine where vLLM's routes do, in `app.state`."""


class _Request(Request):
    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            self._json = await loop_json.read(await self.body())
        return self._json


class _Route(APIRoute):
    """A route whose body is parsed by `_Request`; what is done with the result is FastAPI's, as for vLLM's route."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_request(request: Request) -> Response:
            return await handle(_Request(request.scope, request.receive))

        return handle_request


OWN_ACTIONS = ("plan", "verify")


def _own_or(action: Any, vllms: Callable[[Any], str]) -> str:
    """An action of ours passes; of another vLLM's own words say that it is none."""
    return action if action in OWN_ACTIONS else vllms(action)


Action = Annotated[Literal["checksum", "reset", "compare"], WrapValidator(_own_or)]


class _Tensor(TypedDict):
    dtype: str
    shape: list[Annotated[int, Field(ge=0, lt=2**63)]]


class _OwnFields(BaseModel):
    """The fields of a request that vLLM's endpoint does not have."""

    detail: bool = False
    algorithm: Literal[tuple(ALGORITHMS)] | None = None  # type: ignore[valid-type]
    fill: Literal[tuple(FILLS)] = "zero"  # type: ignore[valid-type]
    seed: int = Field(0, ge=0, lt=2**64)
    checkpoint: str | None = None
    sources: dict[str, _Tensor] | None = None

    @classmethod
    def of(cls, body: dict[str, Any]) -> _OwnFields:
        """The fields in `body`, or the refusal that FastAPI gives to wrong ones.

        As parameters of the route they would appear in refusals where vLLM's do not name them.
        """
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            errors = [{**one, "loc": ("body", *one["loc"])} for one in error.errors(include_url=False)]
            raise RequestValidationError(errors, body=body) from error


async def weight_checker(
    raw_request: Request,
    action: Annotated[Action, Body(embed=True)],
    baseline: Annotated[dict[str, str] | None, Body(embed=True)] = None,
) -> Response:
    """Checksum, reset, or compare model weights against a baseline; plan or verify them.

    Also takes `detail` (the full report), `algorithm` (for checksum and verify; for compare
    it is that of the baseline, and another one is an error), `fill` and `seed` (for reset),
    `checkpoint` (a path on this machine, for plan and verify) and `sources` (for plan).
    """
    own = _OwnFields.of(await raw_request.json())
    client = getattr(raw_request.app.state, "engine_client", None)
    if client is None:
        raise HTTPException(status_code=501, detail="this server has no engine, so there are no weights to check")
    arguments = await _arguments(action, baseline, own, client)
    try:
        report = await check_client(client, action, **arguments)
    except CheckError as error:
        log.error("weight_checker: %s failed: %s", action, error)
        raise HTTPException(status_code=500, detail=str(error)) from error
    # A report is no dict, and json writes dicts.
    answer = dict(report) if own.detail else _as_vllm(report)
    return Response(await loop_json.write(answer), media_type="application/json")


async def _arguments(action: str, baseline: dict[str, str] | None, own: _OwnFields, client: Any) -> dict[str, Any]:
    """What the check takes, or the refusal of a request that asks for what cannot or must not be."""
    if action == "checksum":
        return {"algorithm": own.algorithm or "sha256"}
    if action == "reset":
        return {"fill": own.fill, "seed": own.seed}
    if action in OWN_ACTIONS:
        more = {"algorithm": own.algorithm or "sha256"} if action == "verify" else {"sources": own.sources}
        if more.get("sources") is not None and own.checkpoint is not None:
            raise HTTPException(status_code=400, detail="action='plan' takes a 'checkpoint' or 'sources', not both")
        return {"checkpoint": await _checkpoint(own.checkpoint, client), **more}
    if baseline is None:
        raise HTTPException(status_code=400, detail="action='compare' requires a 'baseline' object")
    return {"baseline": baseline, "algorithm": await _algorithm(baseline, own.algorithm)}


async def _checkpoint(asked: str | None, client: Any) -> str | None:
    served = getattr(getattr(client.vllm_config, "model_config", None), "model", None)
    try:
        return await asyncio.to_thread(permitted, asked, served)
    except CheckpointRefused as error:
        raise HTTPException(status_code=403, detail=str(error)) from error


async def _algorithm(baseline: dict[str, str], asked: str | None) -> str:
    """The algorithm of the baseline's digests; a mixture, or another than was asked for, is the request's fault."""
    try:
        return await asyncio.to_thread(algorithm_of, baseline, asked)
    except CheckError as error:
        raise HTTPException(status_code=400, detail=str(error)) from error


def _router() -> APIRouter:
    router = APIRouter(route_class=_Route)
    router.add_api_route(PATH, weight_checker, methods=["POST"])
    return router


def _as_vllm(report: Report) -> dict[str, Any]:
    """The part of a report that vLLM's own endpoint answers, and its like for our own actions."""
    return {name: report[name] for name in ("checksums", "status", "match", "mismatches", "plan") if name in report}
