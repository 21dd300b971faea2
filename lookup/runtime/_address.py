"""at: arrays by their addresses, for kernels that are called often and would need many of them."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import config, types
from numba.extending import intrinsic


def address_of(array: npt.NDArray[np.generic]) -> int:
    """Where the data of a contiguous array lie, as long as the array lives."""
    assert array.flags.c_contiguous
    return int(array.__array_interface__["data"][0])


def _at(typing_context: Any, address: Any) -> Any:
    """In a kernel ``carray(at(address), shape, dtype)`` is the array that lies there. Nothing is checked."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), generate


def _plain_at(address: int) -> Any:
    """What ``at`` is under NUMBA_DISABLE_JIT=1."""
    return ctypes.c_void_p(int(address))


at: Any = _plain_at if config.DISABLE_JIT else intrinsic(_at)
