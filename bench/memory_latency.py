"""How long the memory takes: to add, evict and propose, to open a large file, and to draft from it the first time.

    python bench/memory_latency.py

CPU time of the one thread; p20, p50, p80 and the maximum over n calls. Prints a Markdown table.
"""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def show(what: str, values: list[float], unit: str = "µs") -> None:
    p20, p50, p80, most = (float(np.percentile(values, q)) for q in (20, 50, 80, 100))
    print(f"| {what} | {unit} | {len(values)} | {p20:.3g} | {p50:.3g} | {p80:.3g} | {most:.3g} |", flush=True)


def running(tokens: np.ndarray) -> None:
    """Texts of 2,000 tokens of code through a memory of half a million; then proposals from it when it is full."""
    memory = DraftMemory(500_000)
    added, evicted = [], []
    for start in range(0, len(tokens) - TEXT, TEXT):
        text = tokens[start : start + TEXT]
        added.append(timed(lambda text=text: memory.add(text)) / TEXT * 1000)
    for _ in range(100):
        evicted.append(timed(lambda: memory.evict(TEXT)))
        memory.add(tokens[:TEXT])
    show("add a text of 2,000 tokens, full memory", added, "ns per token")
    show("evict 2,000 tokens", evicted)
    rng = np.random.default_rng(0)
    starts = rng.integers(len(tokens) - 400_000, len(tokens) - 600, 1000)
    contexts = [tokens[start : start + 512] for start in starts]
    num_segments = len(list(memory._shelf))
    show(
        f"propose 16, 500,000 tokens in {num_segments} segments",
        [timed(lambda c=c: memory.propose(c, 16)) for c in contexts],
    )
    for name, drafter in (("without", Drafter()), ("with", Drafter(memory=memory))):
        sessions = [drafter.begin(context) for context in contexts]
        for session in sessions[:20]:
            session.propose(16)
        show(f"session.propose 16, {name} that memory", [timed(lambda s=s: s.propose(16)) for s in sessions])
    print(f"bytes per live token: {memory.nbytes / memory.num_tokens:.1f}")


def large_file() -> None:
    """A file of 100 MB: opening it, then proposals that each touch a part that was not used before."""
    tokens = np.random.default_rng(0).integers(0, 60_000, 5_200_000).astype(np.int32)
    with tempfile.TemporaryDirectory() as directory:
        memory = DraftMemory(50_000_000)
        memory.add(tokens)
        memory.save(directory)
        size = max(path.stat().st_size for path in Path(directory).iterdir())
        opened = [timed(lambda: DraftMemory.load(directory, 50_000_000)) / 1000 for _ in range(50)]
        show(f"open a file of {size / 1e6:.0f} MB", opened, "ms")
        again = DraftMemory.load(directory, 50_000_000)
        contexts = [tokens[at : at + 40] for at in range(0, 5_000_000, 5_000)]
        show("propose 16 from it, first use of that part", [timed(lambda c=c: again.propose(c, 16)) for c in contexts])
        show("propose 16 from it, later", [timed(lambda c=c: again.propose(c, 16)) for c in contexts])


def main() -> None:
    cpu = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    load, python = os.getloadavg()[0], platform.python_version()
    print(f"{cpu[0].split(':')[1].strip()}, Python {python}, load {load:.1f} at the start\n")
    print("| what | unit | n | p20 | p50 | p80 | max |\n|---|---|---|---|---|---|---|")
    running(code(1_000_000))
    large_file()


if __name__ == "__main__":
    main()
