"""How long the memory takes: to add, evict and propose, to open a large file, and to draft from it the first time.

    python bench memory_latency

CPU time of the one thread; p20, p50, p80 and the maximum over n calls. Writes
bench/results/memory_latency.csv and prints a Markdown table.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import measure
import numpy as np
from streams import code

from zerodraft.lookup.drafter import Drafter
from zerodraft.lookup.memory.draft_memory import DraftMemory

TEXT = 2000
clock = time.thread_time_ns


def timed(run: Callable[[], Any]) -> float:
    """CPU microseconds of one call."""
    started = clock()
    run()
    return (clock() - started) / 1000


def show(what: str, values: list[float], unit: str = "µs") -> dict[str, Any]:
    """Print one line of the table and return it as a row of the file."""
    row: dict[str, Any] = {"what": what, "unit": unit, "n": len(values)}
    row |= {
        name: f"{np.percentile(values, q):.3g}" for name, q in (("p20", 20), ("p50", 50), ("p80", 80), ("max", 100))
    }
    print("| " + " | ".join(map(str, row.values())) + " |", flush=True)
    return row


def running(tokens: np.ndarray) -> Iterator[dict[str, Any]]:
    """Texts of 2,000 tokens of code through a memory of half a million; then proposals from it when it is full."""
    memory = DraftMemory(500_000)
    added, evicted = [], []
    for start in range(0, len(tokens) - TEXT, TEXT):
        text = tokens[start : start + TEXT]
        added.append(timed(lambda text=text: memory.add(text)) / TEXT * 1000)
    for _ in range(100):
        evicted.append(timed(lambda: memory.evict(TEXT)))
        memory.add(tokens[:TEXT])
    yield show("add a text of 2,000 tokens, full memory", added, "ns per token")
    yield show("evict 2,000 tokens", evicted)
    rng = np.random.default_rng(0)
    starts = rng.integers(len(tokens) - 400_000, len(tokens) - 600, 1000)
    contexts = [tokens[start : start + 512] for start in starts]
    num_segments = len(list(memory._shelf))
    yield show(
        f"propose 16, 500,000 tokens in {num_segments} segments",
        [timed(lambda c=c: memory.propose(c, 16)) for c in contexts],
    )
    for name, drafter in (("without", Drafter()), ("with", Drafter(memory=memory))):
        sessions = [drafter.begin(context) for context in contexts]
        for session in sessions[:20]:
            session.propose(16)
        yield show(f"session.propose 16, {name} that memory", [timed(lambda s=s: s.propose(16)) for s in sessions])
    yield show("memory per live token", [memory.nbytes / memory.num_tokens], "bytes")


def large_file() -> Iterator[dict[str, Any]]:
    """A file of 100 MB: opening it, then proposals that each touch a part that was not used before."""
    tokens = np.random.default_rng(0).integers(0, 60_000, 5_200_000).astype(np.int32)
    with tempfile.TemporaryDirectory() as directory:
        memory = DraftMemory(50_000_000)
        memory.add(tokens)
        memory.save(directory)
        size = max(path.stat().st_size for path in Path(directory).iterdir())
        opened = [timed(lambda: DraftMemory.load(directory, 50_000_000)) / 1000 for _ in range(50)]
        yield show(f"open a file of {size / 1e6:.0f} MB", opened, "ms")
        again = DraftMemory.load(directory, 50_000_000)
        contexts = [tokens[at : at + 40] for at in range(0, 5_000_000, 5_000)]
        yield show(
            "propose 16 from it, first use of that part", [timed(lambda c=c: again.propose(c, 16)) for c in contexts]
        )
        yield show("propose 16 from it, later", [timed(lambda c=c: again.propose(c, 16)) for c in contexts])


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print("| what | unit | n | p20 | p50 | p80 | max |\n|---|---|---|---|---|---|---|")
    print(measure.write_csv("memory_latency", [*running(code(1_000_000)), *large_file()]))
