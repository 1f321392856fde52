"""A worker extension for tests: one rank's model cannot be reached, until it is mended."""

from __future__ import annotations

from typing import Any


class BreakOneRank:
    """`worker_extension_cls="break_extension.BreakOneRank"`."""

    def hide_model(self: Any, tp: int | str) -> None:
        """On tensor-parallel rank `tp`, `model_runner.get_model()` raises from now on."""
        from vllm.distributed import get_tensor_model_parallel_rank

        def get_model() -> None:
            raise OSError("this rank's model cannot be reached")

        if get_tensor_model_parallel_rank() == int(tp):
            self.model_runner.get_model = get_model

    def show_model(self: Any) -> None:
        """Mends every rank."""
        vars(self.model_runner).pop("get_model", None)
