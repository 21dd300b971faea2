"""Forwards of a few fixed shapes, so that each can be compiled, and on CUDA captured, once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import CompileConfig, PreTrainedModel

_MAX_GRAPHS = 128
COMPILE_OPTIONS = ("off", "auto", "buckets")


def fixed_shapes(model: PreTrainedModel, compile: str) -> tuple[bool, Callable[..., Any]]:
    """(whether checking forwards are filled up to fixed widths, what to call for them).

    Args:
        model: the target.
        compile: "off": shapes as they come; "auto": on CUDA fixed shapes and the model compiled with
            ``torch.compile(mode="reduce-overhead")``, elsewhere as "off"; "buckets": fixed shapes, the model as it is
            (for one that is compiled already).

    Raises:
        ValueError: another value of ``compile``.
    """
    if compile not in COMPILE_OPTIONS:
        raise ValueError(f"compile must be one of {COMPILE_OPTIONS}, got {compile!r}")
    if compile == "buckets":
        return True, model
    if compile == "off" or model.device.type != "cuda":
        return False, model
    from torch._dynamo import config  # takes seconds to import

    # One graph per width and capacity: beyond the limit torch would go on uncompiled without a word.
    config.recompile_limit = max(config.recompile_limit, _MAX_GRAPHS)
    return True, model.get_compiled_call(CompileConfig(mode="reduce-overhead", dynamic=False))
