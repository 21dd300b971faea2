"""How the cost of a build grows with the text: ns and bytes per token, and what each doubling of the length adds.

    python bench build_growth                     # bench/results/build_growth.csv and .png
    python bench build_growth --lengths 50000,100000 --rounds 5

CPU time of one thread. Every round builds each structure from every length of a stream, one after the other, so that a
busy machine meets all lengths alike; ``ratio`` is the median over the rounds of the time per token against that of half
the length in the same round.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
import numpy as np
from contenders import Ngram, TreeChain
from lookup_latency import clock
from streams import STREAMS, VOCAB, Tokens

LENGTHS = (50_000, 100_000, 200_000, 400_000, 800_000)
STRUCTURES: dict[str, Callable[[Tokens], Any]] = {"SuffixTree": TreeChain, "NgramIndex": Ngram}
STREAMS = STREAMS | {"all ids": lambda n: np.random.default_rng(5).integers(0, VOCAB, n).astype(np.int32)}
BUILDS = 3  # per round and length, the best of them: memory comes from the system once, and is the process's own then


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default=",".join(STREAMS))
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)))
    parser.add_argument("--rounds", type=int, default=15, help="(default: %(default)s)")
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "build_growth.csv")
    options = parser.parse_args()
    lengths = sorted(map(int, options.lengths.split(",")))
    rows: list[dict[str, Any]] = []
    for stream in options.streams.split(","):
        tokens = STREAMS[stream](lengths[-1])
        for name, build in STRUCTURES.items():
            rows += grown(stream, name, build, tokens, lengths, options.rounds)
            print(stream, name, [row["ratio"] for row in rows[-len(lengths) :]], file=sys.stderr)
    measure.write_csv(options.out, rows)
    plot(rows, options.out.with_suffix(".png"))


def grown(
    stream: str, name: str, build: Callable[[Tokens], Any], tokens: Tokens, lengths: list[int], num_rounds: int
) -> list[dict[str, Any]]:
    """Build from prefixes of a stream; one row per length."""
    build(tokens[:64])  # imports and compilation are not what is timed
    times = np.empty((num_rounds, len(lengths)))
    held: list[float] = [0.0] * len(lengths)
    for round_ in range(num_rounds):
        for i, length in enumerate(lengths):
            taken = []
            for _ in range(BUILDS):
                start = clock()
                built = build(tokens[:length])
                taken.append((clock() - start) / length)
            times[round_, i] = min(taken)
            held[i] = built.nbytes() / length
            del built
    rows = []
    for i, length in enumerate(lengths):
        p20, p50, p80 = np.percentile(times[:, i], [20, 50, 80])
        row = {"stream": stream, "structure": name, "tokens": length, "unit": "ns per token", "n": num_rounds}
        row |= {"p20": f"{p20:.1f}", "p50": f"{p50:.1f}", "p80": f"{p80:.1f}", "min": f"{times[:, i].min():.1f}"}
        row |= {"ratio": "", "bytes_per_token": f"{held[i]:.1f}", "bytes_ratio": ""}
        if i and length == 2 * lengths[i - 1]:
            row["ratio"] = f"{np.median(times[:, i] / times[:, i - 1]):.2f}"
            row["bytes_ratio"] = f"{held[i] / held[i - 1]:.2f}"
        rows.append(row)
    return rows


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """ns per token against the length, one panel per structure, one line per stream."""
    plt = measure.pyplot()
    if plt is None:
        return
    figure, panels = plt.subplots(1, len(STRUCTURES), figsize=(5 * len(STRUCTURES), 4), squeeze=False)
    for panel, name in zip(panels[0], STRUCTURES):
        for stream in dict.fromkeys(row["stream"] for row in rows):
            line = [
                (row["tokens"], float(row["p50"]))
                for row in rows
                if (row["stream"], row["structure"]) == (stream, name)
            ]
            panel.plot(*zip(*line), "o-", label=stream, markersize=4)
        panel.set_xscale("log", base=2)
        panel.set_ylim(bottom=0)
        panel.set_title(name)
        panel.set_xlabel("tokens")
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("build, ns of CPU time per token, p50")
    panels[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
