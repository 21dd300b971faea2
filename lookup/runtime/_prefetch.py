"""prefetch: the processor's instruction of that name, for kernels."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic


def _prefetch(typing_context: Any, array: Any, row: Any, column: Any) -> Any:
    """In a kernel ``prefetch(array, row, column)`` fetches an element of a 2-D array into the cache and waits not.

    Indices are not checked: one outside the array fetches something useless, or nothing.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        kind, *given = signature.args
        view = context.make_array(kind)(context, builder, arguments[0])
        indices = [context.cast(builder, value, of, types.intp) for value, of in zip(arguments[1:], given)]
        pointer = cgutils.get_item_pointer(context, builder, kind, view, indices, wraparound=False)
        pointer = builder.bitcast(pointer, cgutils.voidptr_t)
        flag = ir.IntType(32)
        form = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, flag, flag, flag])
        fetch = builder.module.declare_intrinsic("llvm.prefetch", [cgutils.voidptr_t], form)
        builder.call(fetch, [pointer, flag(0), flag(3), flag(1)])  # to be read, to be kept in every cache, data

    return types.void(array, row, column), generate


def _no_prefetch(array: Any, row: int, column: int) -> None:
    """What prefetch is under NUMBA_DISABLE_JIT=1."""


prefetch: Any = _no_prefetch if config.DISABLE_JIT else intrinsic(_prefetch)
