"""warm_up: compile (once per machine) and load the kernels now instead of in the first request."""

from __future__ import annotations

import importlib
import time
from typing import Final

CORES: Final = tuple(f"zerodraft.lookup.{name}_core" for name in ("_ngram", "_policy", "_merge", "_suffix", "_recycling"))


def warm_up() -> float:
    """Import every kernel file, which compiles it or loads it from numba's cache; return the seconds it took.

    The first time on a machine takes some seconds, later processes a fraction of one, a second call nothing.
    """
    start = time.perf_counter()
    for core in CORES:
        importlib.import_module(core)
    return time.perf_counter() - start
