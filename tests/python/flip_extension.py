"""A worker extension such as a training framework brings, whose method damages one element of a weight on one rank."""

from __future__ import annotations

from typing import Any


class FlipOneElement:
    """`worker_extension_cls="flip_extension.FlipOneElement"`."""

    def flip_one_element(self: Any, tp: int | str, name: str, dp: int | str = 0) -> dict[str, Any]:
        """Flips the lowest bit of the last element of the parameter `name`, on one rank only.

        Text is taken for the indices `tp` and `dp`, since POST /collective_rpc passes arguments as text.
        """
        import torch
        from vllm.distributed import get_tensor_model_parallel_rank

        if (self.parallel_config.data_parallel_index, get_tensor_model_parallel_rank()) != (int(dp), int(tp)):
            return {"flipped": None}
        parameter = dict(self.model_runner.get_model().named_parameters())[name]
        parameter.data.view(torch.uint8).view(-1)[-parameter.element_size()] ^= 1
        return {"flipped": name}
