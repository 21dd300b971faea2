"""What a memory adds: replay the workloads one after another, remembering each output under its package's name.

    python bench memory_replay                   # held-out split
    python bench memory_replay --split train --limit 60

Tokens per forward and the speed-up under each curve of bench/curves.json, without a memory and with one, for several
settings: a Markdown table and bench/results/memory_replay.csv. The last workload takes the prompt away and leaves the
old file in the memory only.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import measure
import replay as replay_bench

from zerodraft.lookup.drafter import Drafter
from zerodraft.lookup.measure.replay import Replay, replay
from zerodraft.lookup.memory.draft_memory import DraftMemory

KINDS = ("edits-small", "continuation", "agents", "summaries")
SETTINGS: dict[str, dict[str, float] | None] = {
    "no memory": None,
    "memory": {},
    "memory, min_prob 0.2": {"min_prob": 0.2},
    "memory, min_match_len 4": {"min_match_len": 4},
}
MAX_TOKENS = 5_000_000

Trace = replay_bench.TokenTrace


def in_sequence(drafter: Drafter, traces: list[Trace]) -> Replay:
    """Each request may draft from the outputs of the earlier ones of its package."""
    total = Replay()
    for trace in traces:
        session = drafter.begin(trace.prompt, namespace=trace.package)
        total.merge(replay(session, trace.output))
        session.finish("output" if drafter.memory is not None else False)
    return total


def from_memory_only(drafter: Drafter, traces: list[Trace], settings: dict[str, float] | None) -> Replay:
    """The old file is not in the prompt, but in a memory that holds nothing else."""
    total = Replay()
    for trace in traces:
        if settings is None:
            session = drafter.begin(trace.prompt)
        else:
            memory = DraftMemory(MAX_TOKENS, **settings)  # type: ignore[arg-type]
            memory.add(trace.prompt)
            session = Drafter(policy=drafter.policy, memory=memory).begin(trace.prompt[:20])
        total.merge(replay(session, trace.output))
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    replay_bench.add_arguments(parser)
    parser.add_argument("--split", default="held-out", choices=("held-out", "train"))
    parser.add_argument("--limit", type=int, default=10**9, help="requests per kind of work")
    options = parser.parse_args()
    traces = [trace for trace in replay_bench.load(options) if trace.split == options.split]
    curves = {name: measure.curve(name) for name in measure.CURVES}
    policy = replay_bench.adaptive("gpu-like")
    rows: list[dict[str, Any]] = []
    print(f"| work | split | n | drafter | tokens per forward | {' | '.join(curves)} |")
    print(f"|---|---|---|---|---|{'---|' * len(curves)}")

    def show(kind: str, run: Callable[[Drafter, list[Trace], dict[str, float] | None], Replay]) -> None:
        chosen = [trace for trace in traces if trace.kind == kind.split(",")[0]][: options.limit]
        for name, settings in SETTINGS.items():
            memory = None if settings is None else DraftMemory(MAX_TOKENS, **settings)  # type: ignore[arg-type]
            total = run(Drafter(policy=policy, memory=memory), chosen, settings)
            row = {"work": kind, "split": options.split, "n": len(chosen), "drafter": name}
            row["tokens_per_forward"] = round(total.stats.tokens_per_forward, 2)
            row |= {f"speedup_{name}": round(total.speedup(curve), 2) for name, curve in curves.items()}
            rows.append(row)
            print("| " + " | ".join(map(str, row.values())) + " |", flush=True)

    for kind in KINDS:
        show(kind, lambda drafter, chosen, _: in_sequence(drafter, chosen))
    show("edits-small, old file in memory only", from_memory_only)
    print(measure.write_csv("memory_replay", rows))
