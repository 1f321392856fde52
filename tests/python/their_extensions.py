"""Worker extensions as other frameworks have them: `worker_extension_cls="their_extensions.Theirs"`."""

from __future__ import annotations

from typing import Any

from vllm_weight_checker import WorkerExtension


class Theirs:
    """An extension that knows nothing of this package."""

    def their_method(self) -> str:
        return "theirs"

    def raise_on(self: Any, prefix: str) -> str:
        """Raises on the rank whose keys begin with `prefix`, as no worker method should."""
        if self._weight_checksum_prefix() == prefix:
            raise ValueError("their method has failed")
        return "theirs"


class TheirsWithOurs(Theirs, WorkerExtension):
    """An extension whose owner wants the checks too."""
