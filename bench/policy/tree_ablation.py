"""Where the suffix tree earns its place: tokens per forward of the n-gram session alone, the tree alone, and both.

    python bench tree_ablation                 # bench/results/lookup_ablation.csv

Repeated jobs, what the tree is meant for: the prompt holds outputs of earlier, similar jobs, the output is one more.
``codecs``: the standard library's character-map codecs, real files of one mould. ``reports``: build reports written by
a small generator with skewed choices (seeded, so the frequencies are known to be worth learning). And two streams
without such structure, ``code`` and ``agents``, continued for a thousand tokens. Known text: no model runs.

    python bench tree_ablation --traces 40     # bench/results/lookup_ablation_traces.csv

The same on the held-out public traces of workloads.py (fetched if need be), up to 40 of each kind.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import sysconfig
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import measure
import numpy as np
from streams import VOCAB, Tokens, agents, code

from zerodraft.lookup.cost import CostCurve
from zerodraft.lookup.draft import Draft, Outcome
from zerodraft.lookup.drafter import Drafter
from zerodraft.lookup.measure.replay import Replay, replay
from zerodraft.lookup.policy import DraftPolicy
from zerodraft.lookup.suffix.suffix_tree import SuffixTree

COLUMNS = (
    "workload",
    "earlier_outputs",
    "costs",
    "rule",
    "num_outputs",
    "num_tokens",
    "tokens_per_forward",
    "drafted_per_forward",
    "speedup",
)
FREE = CostCurve([(1, 1.0), (2, 1.0001)])  # nodes cost next to nothing: only their number is bounded


def ids_of(text: str) -> Tokens:
    pieces = re.findall(r"\w+|\s+|[^\w\s]", text)
    return np.array([zlib.crc32(piece.encode()) % VOCAB for piece in pieces], np.int32)


def codecs(num_earlier: int, num_outputs: int) -> Iterator[tuple[Tokens, Tokens]]:
    """(prompt, output) pairs of the character-map codecs in a fixed random order, outputs cut at 1500 tokens."""
    folder = Path(sysconfig.get_path("stdlib")) / "encodings"
    files = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py"))]
    jobs = [ids_of(text)[:1500] for text in files if "charmap_decode" in text and "decoding_table" in text]
    random.Random(4).shuffle(jobs)
    for i in range(num_earlier, min(len(jobs), num_earlier + num_outputs)):
        yield np.concatenate(jobs[i - num_earlier : i]), jobs[i]


WORDS = [
    "parser",
    "lexer",
    "cache",
    "router",
    "broker",
    "loader",
    "writer",
    "reader",
    "index",
    "store",
    "queue",
    "worker",
]


def report(rng: random.Random) -> str:
    """One build report: fixed phrases, skewed choices, free numbers."""
    lines = [f"## Build {rng.randrange(10_000)}\n"]
    for _ in range(rng.randint(8, 16)):
        module = WORDS[min(int(rng.expovariate(0.35)), len(WORDS) - 1)]
        status = rng.choices(["passed", "failed", "was skipped"], [80, 14, 6])[0]
        lines.append(f"- module `{module}`: {rng.randint(3, 90)} tests, suite {status} on ")
        lines.append(rng.choices(["linux", "macos", "windows"], [70, 20, 10])[0])
        if status == "failed":
            kind = rng.choices(["an assertion in", "a timeout of", "an import error in"], [60, 30, 10])[0]
            lines.append(f"; first failure: {kind} `test_{module}_{rng.choice(WORDS)}`, owner notified by mail")
        elif status == "passed" and rng.random() < 0.3:
            lines.append(", coverage rose above the agreed threshold")
        lines.append(".\n")
    return "".join(lines) + "All artefacts were uploaded and the badge was refreshed.\n"


def reports(num_earlier: int, num_outputs: int) -> Iterator[tuple[Tokens, Tokens]]:
    rng = random.Random(5)
    jobs = [ids_of(report(rng)) for _ in range(num_earlier + num_outputs)]
    for i in range(num_earlier, num_earlier + num_outputs):
        yield np.concatenate(jobs[i - num_earlier : i]), jobs[i]


def continued(stream: Callable[[int], Tokens]) -> Callable[[int, int], Iterator[tuple[Tokens, Tokens]]]:
    def pairs(num_earlier: int, num_outputs: int) -> Iterator[tuple[Tokens, Tokens]]:
        tokens = stream(8192 + 1000 * num_outputs)
        for i in range(num_outputs):
            yield tokens[1000 * i : 1000 * i + 8192], tokens[1000 * i + 8192 : 1000 * i + 9192]

    return pairs


class TreeAlone:
    """The suffix tree without the n-gram session: its best branches, as many nodes as are free."""

    def __init__(self, prompt: Tokens, budget: int, max_branches: int) -> None:
        self.tree = SuffixTree(prompt)
        self.budget, self.max_branches = budget, max_branches

    def propose(self, max_tokens: int, max_depth: int | None = None) -> Draft:
        most = min(self.budget, max_tokens)
        return self.tree.propose(most, max_depth, max_branches=self.max_branches, min_prob=0.02)

    def commit(self, draft: Draft, outcome: Outcome) -> None:
        self.tree.extend(outcome.new_ids)


def rules(curve: CostCurve, budget: int) -> dict[str, Callable[[Tokens], Any]]:
    """Ways to draft under one cost curve; the tree alone knows no costs, so it is asked where nodes are free only."""
    policy = DraftPolicy(cost=curve, max_draft_tokens=budget)
    lines: dict[str, Callable[[Tokens], Any]] = {"n-gram alone": Drafter(policy=policy).begin}
    if curve is FREE:
        for branches in (1, 2, 4):
            lines[f"tree alone, {branches} branches"] = lambda p, b=branches: TreeAlone(p, budget, b)
    return lines | {"both": Drafter(policy=policy, suffix_tree=True).begin}


def traces(num_outputs: int) -> Iterator[tuple[str, int, list[tuple[Tokens, Tokens]]]]:
    """Held-out traces by kind, a fixed random choice of each."""
    import replay as traces_of

    parser = argparse.ArgumentParser()
    traces_of.add_arguments(parser)
    kinds: dict[str, list[tuple[Tokens, Tokens]]] = {}
    for trace in traces_of.load(parser.parse_args([])):
        if trace.split != "train":
            kinds.setdefault(trace.kind, []).append((trace.prompt, trace.output))
    for kind, jobs in kinds.items():
        yield kind, 0, random.Random(6).sample(jobs, min(num_outputs, len(jobs)))


def streams(num_outputs: int) -> Iterator[tuple[str, int, list[tuple[Tokens, Tokens]]]]:
    """The workloads of this file: (name, number of earlier outputs, (prompt, output) pairs)."""
    for name, pairs, earlier in (
        ("codecs", codecs, (1, 4, 16)),
        ("reports", reports, (1, 4, 16, 64)),
        ("code", continued(code), (0,)),
        ("agents", continued(agents), (0,)),
    ):
        for num_earlier in earlier:
            yield name, num_earlier, list(pairs(num_earlier, num_outputs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outputs", type=int, default=30, help="outputs replayed per line (default: %(default)s)")
    parser.add_argument("--traces", type=int, help="replay this many held-out traces of each kind instead")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    name = "lookup_ablation.csv" if options.traces is None else "lookup_ablation_traces.csv"
    out = options.out or measure.RESULTS / name
    settings = [("16 free nodes", FREE, 16), ("64 free nodes", FREE, 64)]
    settings += [(name, measure.curve(name), 255) for name in measure.CURVES]
    rows = []
    for name, num_earlier, jobs in streams(options.outputs) if options.traces is None else traces(options.traces):
        for costs, curve, budget in settings:
            for rule, begin in rules(curve, budget).items():
                rows.append(line((name, num_earlier, costs, rule), begin, curve, jobs))
                print(" ".join(str(value) for value in rows[-1].values()), file=sys.stderr)
    measure.write_csv(out, rows)


def line(names: tuple[Any, ...], begin: Callable[[Tokens], Any], curve: CostCurve, jobs: list[Any]) -> dict[str, Any]:
    total = Replay()
    for prompt, output in jobs:
        total.merge(replay(begin(prompt), output))
    stats = total.stats
    figures = (stats.tokens_per_forward, stats.num_draft_tokens / stats.num_decode_forwards, total.speedup(curve))
    return dict(zip(COLUMNS, (*names, len(jobs), total.num_decode_tokens, *(f"{figure:.3f}" for figure in figures))))
