"""warm_up: compile (once per machine) and load the kernels now instead of in the first request."""

from __future__ import annotations

import importlib
import time
from typing import Final

STRUCTURES: Final = ("ngram", "policy", "merge", "suffix", "recycling")
CORES: Final = tuple(f"zerodraft.lookup._{name}_core" for name in STRUCTURES)


def warm_up() -> float:
    """Import every kernel file, which compiles it or loads it from numba's cache; return the seconds it took.

    The first time on a machine takes some seconds, later processes a fraction of one, a second call nothing.
    """
    start = time.perf_counter()
    for core in CORES:
        importlib.import_module(core)
    return time.perf_counter() - start
