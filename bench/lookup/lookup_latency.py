"""How long one lookup takes: every structure and every peer that is installed, in one run, by CPU time.

    python bench lookup_latency                       # bench/results/lookup_latency.csv and .png
    python bench lookup_latency --streams code --contexts 1024,8192 --calls 200

Each contender is built from the first tokens of a stream; then the next tokens of the same stream are appended one by
one and 16 drafted after each. Times are CPU time of the one thread, less the median cost of reading the clock. Peers:
transformers' prompt lookup, the n-gram lookup as vLLM does it (rewritten), and SuffixDecoding where arctic-inference
is installed (``pip install --no-deps arctic-inference``; it builds from source and needs cmake, nanobind,
grpcio-tools, protobuf and torch).
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import measure
import numpy as np
from contenders import OURS, peers
from streams import STREAMS, Tokens

CONTEXTS = (1024, 8192, 32_768, 131_072)
MAX_NS = 10 * 10**9  # CPU time after which a line of slow calls ends early: n says how many there were
clock = time.thread_time_ns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default=",".join(STREAMS))
    parser.add_argument("--contexts", default=",".join(map(str, CONTEXTS)))
    parser.add_argument("--calls", type=int, default=1000, help="appends and proposals per line (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "lookup_latency.csv")
    options = parser.parse_args()
    contenders = OURS | peers()
    if "SuffixDecoding chain" not in contenders:
        print("SuffixDecoding left out: arctic-inference is not installed", file=sys.stderr)
    rows: list[dict[str, Any]] = []
    for stream in options.streams.split(","):
        for context in map(int, options.contexts.split(",")):
            tokens = STREAMS[stream](context + options.calls)
            for name, build in contenders.items():
                for found in measures(build, tokens, context):
                    rows.append({"stream": stream, "context": context, "contender": name, **found})
            print(f"{stream} {context}", file=sys.stderr)
    peer = {"arctic_inference": measure.version("arctic-inference")}
    measure.write_csv(options.out, [row | peer for row in rows])
    plot(rows, options.out.with_suffix(".png"))


def measures(build: Callable[[Tokens], Any], tokens: Tokens, context: int) -> Iterator[dict[str, Any]]:
    """Time one contender on one stream at one context length."""
    prompt, rest = tokens[:context], tokens[context:].tolist()
    build(prompt[:64]).propose()  # imports and compilation are not what is timed
    clock_cost = _clock_cost()
    num_builds = max(3, min(20, 200_000 // context))
    builds = []
    for _ in range(num_builds):
        start = clock()
        contender = build(prompt)
        builds.append((clock() - start - clock_cost) / context)
    yield _summary("build", "ns per token", builds)
    held = contender.nbytes()
    if held is not None:
        yield _summary("memory", "bytes per token", [held / context])
    contender.propose()
    appends, proposals, drafted = [], [], []
    gc.disable()
    begin = clock()
    for token in rest:
        start = clock()
        contender.append(token)
        middle = clock()
        found = contender.propose()
        end = clock()
        appends.append((middle - start - clock_cost) / 1000)
        proposals.append((end - middle - clock_cost) / 1000)
        drafted.append(0 if found is None else len(found))
        if end - begin > MAX_NS:
            break
    gc.enable()
    yield _summary("append", "us", appends)
    yield _summary("propose", "us", proposals)
    yield _summary("step", "us", [a + p for a, p in zip(appends, proposals)])
    yield _summary("drafted", "tokens", drafted)


def _clock_cost() -> int:
    readings = [clock() for _ in range(2001)]
    return int(np.median(np.diff(readings)))


def _summary(what: str, unit: str, values: list[float]) -> dict[str, Any]:
    p20, p50, p80 = np.percentile(values, [20, 50, 80])
    numbers = {"p20": p20, "p50": p50, "p80": p80, "max": max(values)}
    return {"measure": what, "unit": unit, "n": len(values)} | {k: f"{v:.2f}" for k, v in numbers.items()}


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """One log-log panel per stream: p50 of a step (append one token, propose) against the context length."""
    plt = measure.pyplot()
    if plt is None:
        return
    streams = list(dict.fromkeys(row["stream"] for row in rows))
    contenders = list(dict.fromkeys(row["contender"] for row in rows))
    figure, panels = plt.subplots(1, len(streams), figsize=(4 * len(streams), 4.2), sharey=True, squeeze=False)
    for panel, stream in zip(panels[0], streams):
        for name in contenders:
            line = [
                (row["context"], float(row["p50"]))
                for row in rows
                if (row["stream"], row["contender"], row["measure"]) == (stream, name, "step")
            ]
            style = "o-" if name in OURS else "s--"
            panel.loglog(*zip(*line), style, label=name, markersize=4)
        panel.set_title(stream)
        panel.set_xlabel("context, tokens")
        panel.grid(which="major", alpha=0.3)
    panels[0][0].set_ylabel("one step (append + propose 16), µs of CPU time, p50")
    panels[0][0].legend(fontsize=7, loc="upper left")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
