"""What every measurement needs: the machine's name, interleaved runs, ratios with intervals, cost curves, CSV files."""

from __future__ import annotations

import csv
import importlib.metadata
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zerodraft.lookup.cost import CostCurve

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
RESULTS = BENCH / "results"
CURVES = ("gpu-like", "cpu-bf16", "cpu-fp32")  # of curves.json, in the order of the tables
LOAD_AT_START = round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else ""


def machine() -> dict[str, Any]:
    """Hardware and versions, to stand in every row of every result file; imports nothing.

    ``threads`` are torch's, empty where torch had no part in the run.
    """
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    torch = sys.modules.get("torch")
    return {
        "cpu": names[0] if names else platform.processor(),
        "num_cpus": os.cpu_count(),
        "threads": "" if torch is None else torch.get_num_threads(),
        "load_at_start": LOAD_AT_START,
        "python": platform.python_version(),
        **{name: version(name) for name in ("numpy", "numba", "torch", "transformers")},
    }


def version(package: str) -> str:
    """The installed version; empty where there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def curve(name: str) -> CostCurve:
    """One of the cost curves of bench/curves.json."""
    from zerodraft.lookup.cost import CostCurve

    return CostCurve.load(BENCH / "curves.json", name)


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


def write_csv(where: str | Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write a file of results whole, machine and versions in every row; return where it is.

    ``where``: a name, for ``bench/results/NAME.csv``, or a path. A row that names its machine already, one that was
    read back from such a file, keeps it. Columns are those of all rows; what a row does not have stays empty.
    """
    path = RESULTS / f"{where}.csv" if isinstance(where, str) else where
    about = machine()
    full = [{**row, **about, **row} for row in rows]
    figures = dict.fromkeys(name for row in full for name in row if name not in about)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".tmp")
    with unfinished.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*figures, *about], restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(full)
    unfinished.replace(path)
    return path


def read_csv(where: str | Path) -> list[dict[str, str]]:
    """The rows of a file of results, all values as text; none where there is no file."""
    path = RESULTS / f"{where}.csv" if isinstance(where, str) else where
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def pyplot() -> Any:
    """matplotlib's, drawing into files only; None where it is not installed, which is said."""
    try:
        import matplotlib
    except ImportError:
        print("no matplotlib: no plots", file=sys.stderr)
        return None
    matplotlib.use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot
