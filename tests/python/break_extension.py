"""A worker extension for tests: one rank fails, in a way that can be mended or in one that cannot."""

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

    def raise_on(self: Any, tp: int | str) -> None:
        """Raises on one rank, as no worker method should: rank 0 puts the replies of the others out of step."""
        from vllm.distributed import get_tensor_model_parallel_rank

        if get_tensor_model_parallel_rank() == int(tp):
            raise OSError("a worker method has raised")
