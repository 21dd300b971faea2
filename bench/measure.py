"""What every end-to-end measurement needs: the machine's name, interleaved runs, ratios with intervals, CSV files."""

from __future__ import annotations

import csv
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """Hardware and versions, to stand in every result file."""
    import numpy
    import torch
    import transformers

    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor(),
        "threads": torch.get_num_threads(),
        "load_at_start": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": numpy.__version__,
    }


def load(name: str, dtype: str) -> Any:
    """A model that ``bench/fetch_models.py`` has fetched, or one by path or hub id."""
    from zerodraft.integrations import weights
    from zerodraft.integrations.models import load_model

    folder = weights.find(name) if name in weights.CATALOGUE else None
    if name in weights.CATALOGUE and folder is None:
        raise SystemExit(f"{name} is not there yet: python bench/fetch_models.py {name}")
    return load_model(str(folder or name), dtype=dtype)


def interleaved(ways: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Run every way once per round, in turn, and return wall-clock seconds per way; one unmeasured round first."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, run in ways.items():
            started = time.perf_counter()
            run()
            if number:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """(p20, p50, p80)."""
    if len(values) < 2:
        return (values[0],) * 3
    cuts = statistics.quantiles(values, n=10, method="inclusive")
    return cuts[1], cuts[4], cuts[7]


def ratio(slow: Sequence[float], fast: Sequence[float]) -> tuple[float, float, float]:
    """(p20, p50, p80) of slow / fast over pairs of one round: above 1 the second way is faster."""
    return spread([a / b for a, b in zip(slow, fast, strict=True)])


def write_csv(name: str, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write ``bench/results/NAME.csv`` whole, machine and versions in every row."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.csv"
    about = machine()
    full = [{**row, **about} for row in rows]
    with path.with_suffix(".tmp").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(full[0]))
        writer.writeheader()
        writer.writerows(full)
    path.with_suffix(".tmp").replace(path)
    return path
