"""An endpoint plugin for tests: vLLM's own /weight_checker, unchanged, at a path where ours does not replace it."""

from __future__ import annotations

from typing import Any

OWN_PATH = "/vllms_own_weight_checker"


class VllmsOwnEndpoint:
    """`VLLM_PLUGINS=vllms_own`; the entry point lies beside this file."""

    name = "vllms_own"
    required_tasks = None

    def attach_router(self, app: Any) -> None:
        from vllm.entrypoints.rl.online.api_router import weight_checker

        app.add_api_route(OWN_PATH, weight_checker, methods=["POST"])

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Nothing to do: the route finds the engine in the application's state."""
