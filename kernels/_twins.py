"""Whether the Triton twin of a torch function serves a tensor: on CUDA, where Triton is installed."""

from __future__ import annotations

import functools
import importlib.util

import torch


def use_triton(tensor: torch.Tensor) -> bool:
    """True if the Triton twins take this tensor; everywhere else the torch functions do the same work."""
    return tensor.is_cuda and _has_triton()


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
