"""Replay public traces: how many tokens per forward, and what speed-up, each drafting rule would have given.

    python bench replay                      # everything on the held-out split; a CSV and a Markdown table
    python bench replay --split train --tables replay --only adaptive

Speed-up = sum of tokens / sum of forward costs under a cost curve (bench/curves.json), prefill excluded. The text is
known, so no model runs. Workloads: bench/workloads.py.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measure
import numpy as np
import peers
import workloads

from zerodraft.lookup.cost import CostCurve
from zerodraft.lookup.drafter import Drafter
from zerodraft.lookup.measure.replay import Replay, replay
from zerodraft.lookup.policy import DraftPolicy

GROUPS = {
    "edits": ("edits-small", "edits-large"),
    "continuation": ("continuation",),
    "summaries": ("summaries",),
    "agents": ("agents",),
}


@dataclass(frozen=True)
class TokenTrace:
    """A trace in token ids."""

    kind: str
    split: str
    package: str
    prompt: np.ndarray
    output: np.ndarray
    prediction: np.ndarray | None


@dataclass(frozen=True)
class Rule:
    """One line of the table: how to draft, and under which of the curves it is meant to be used (all if None)."""

    name: str
    begin: Callable[[TokenTrace], Any]
    curve: str | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cache", type=Path, default=workloads.DEFAULT_CACHE, help="where the workloads are kept")
    parser.add_argument("--tokenizer", type=Path, help="folder with a tokenizer.json (default: Qwen2.5's, fetched)")


def load(options: argparse.Namespace) -> list[TokenTrace]:
    """Build the workloads where they are not yet there, and tokenise them."""
    from tokenizers import Tokenizer

    if options.tokenizer is None:
        from zerodraft.integrations import weights

        options.tokenizer = weights.fetch("qwen")
    tokenizer = Tokenizer.from_file(str(options.tokenizer / "tokenizer.json"))

    def ids(text: str) -> np.ndarray:
        return np.array(tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

    traces = [trace for group in workloads.build(options.cache).values() for trace in group]
    return [
        TokenTrace(
            trace.kind,
            trace.split,
            trace.package,
            ids(trace.prompt),
            ids(trace.output),
            None if trace.prediction is None else ids(trace.prediction),
        )
        for trace in traces
    ]


def ours(policy: DraftPolicy, *, with_prediction: bool = False) -> Callable[[TokenTrace], Any]:
    drafter = Drafter(policy=policy)
    return lambda trace: drafter.begin(trace.prompt, trace.prediction if with_prediction else None)


def fixed(factor: float, most: int) -> Callable[[TokenTrace], Any]:
    return lambda trace: peers.FixedLength(trace.prompt, factor, most, prompt_lookup_max=4096)


def adaptive(name: str, **options: Any) -> DraftPolicy:
    """The adaptive rule that reckons with one of the curves."""
    return DraftPolicy(cost=measure.curve(name), **options)


def rules() -> list[Rule]:
    """The lines of the main table."""
    lines = [
        Rule("HF prompt lookup, 10 drafted, n ≤ 2", lambda t: peers.PromptLookup(t.prompt, 10, 2)),
        Rule("HF prompt lookup, 10 drafted, n ≤ 3", lambda t: peers.PromptLookup(t.prompt, 10, 3)),
        Rule("vLLM-style n-gram 2..5, 16 drafted", lambda t: peers.Ngram(t.prompt, 16)),
        *peers.suffix_decoding_rules(Rule),
        Rule("fixed 16", fixed(4096, 16)),
        Rule("fixed 64", fixed(4096, 64)),
        Rule("n = min(255, 4·match)", fixed(4, 255)),
        Rule("n = min(63, 4·match)", fixed(4, 63)),
        Rule("n = min(63, match)", fixed(1, 63)),
        Rule("adaptive, default curve", ours(DraftPolicy())),
    ]
    for curve in measure.CURVES:
        lines.append(Rule("adaptive, the right curve", ours(adaptive(curve)), curve))
    for curve in measure.CURVES:
        lines.append(Rule("adaptive, the old file as prediction", ours(adaptive(curve), with_prediction=True), curve))
    lines.append(Rule("copy oracle, at most 255", lambda t: peers.Oracle(t.prompt, t.output, 255)))
    return lines


def capped_rules() -> list[Rule]:
    """Lines for the table of tokens per forward under a cap on the nodes."""
    lines = []
    for most in (16, 64):
        lines += [
            Rule(f"HF prompt lookup n ≤ 2, {most}", lambda t, most=most: peers.PromptLookup(t.prompt, most, 2)),
            Rule(f"vLLM-style n-gram 2..5, {most}", lambda t, most=most: peers.Ngram(t.prompt, most)),
            Rule(f"longest match nearest the pointer, {most}", fixed(4096, most)),
            Rule(f"adaptive, free nodes, {most}", ours(DraftPolicy(cost=FREE, max_draft_tokens=most))),
            Rule(f"copy oracle, {most}", lambda t, most=most: peers.Oracle(t.prompt, t.output, most)),
        ]
    return lines


FREE = CostCurve([(1, 1.0), (2, 1.0001)])  # nodes cost next to nothing: only their number is bounded


def ablation_rules() -> list[Rule]:
    """The adaptive rule for the wrong curve, and with one part taken away."""
    lines = [Rule(f"drafted for {curve}", ours(adaptive(curve))) for curve in measure.CURVES]
    for curve in measure.CURVES:
        lines += [
            Rule("adaptive", ours(adaptive(curve)), curve),
            Rule("without branches", ours(adaptive(curve, max_branches=1)), curve),
            Rule("2 branches", ours(adaptive(curve, max_branches=2)), curve),
            Rule("16 branches", ours(adaptive(curve, max_branches=16)), curve),
            Rule("at most 63 nodes", ours(adaptive(curve, max_draft_tokens=63)), curve),
            Rule("at most 127 nodes", ours(adaptive(curve, max_draft_tokens=127)), curve),
            Rule("matches from 2 tokens", ours(adaptive(curve, prompt_lookup_min=2)), curve),
            Rule("matches up to 64 tokens", ours(adaptive(curve, prompt_lookup_max=64)), curve),
            Rule("without replacements", peers.forgetting(adaptive(curve), peers.replacements), curve),
            Rule("nothing learned", peers.forgetting(adaptive(curve), peers.beliefs), curve),
        ]
    return lines


def run(rule: Rule, traces: Iterable[TokenTrace]) -> Replay:
    total = Replay()
    for trace in traces:
        total.merge(replay(rule.begin(trace), trace.output))
    return total


def replayed(
    lines: list[Rule], traces: list[TokenTrace], groups: dict[str, tuple[str, ...]]
) -> Iterator[dict[str, Any]]:
    """Yield one row per rule, group of workloads and curve."""
    curves = {name: measure.curve(name) for name in measure.CURVES}
    for rule in lines:
        started = time.perf_counter()
        for group, kinds in groups.items():
            chosen = [trace for trace in traces if trace.kind in kinds]
            if not chosen or ("prediction" in rule.name and chosen[0].prediction is None):
                continue
            done = run(rule, chosen)
            for name in measure.CURVES if rule.curve is None else (rule.curve,):
                yield {
                    "rule": rule.name,
                    "workload": group,
                    "curve": name,
                    "split": chosen[0].split,
                    "num_traces": len(chosen),
                    "num_tokens": done.num_decode_tokens,
                    "tokens_per_forward": round(done.stats.tokens_per_forward, 3),
                    "drafted_per_forward": round(done.stats.num_draft_tokens / done.stats.num_decode_forwards, 3),
                    "acceptance_rate": round(done.stats.draft_acceptance_rate, 4),
                    "forwards_without_draft": round(done.stats.num_empty_drafts / done.stats.num_decode_forwards, 4),
                    "drafts_wholly_rejected": round(
                        1 - done.stats.accepted_by_depth[1] / max(1, done.stats.num_drafts), 4
                    ),
                    "speedup": round(done.speedup(curves[name]), 3),
                    "calibration_error": round(done.calibration_error, 4),
                }
        print(f"{rule.name} {rule.curve or ''}: {time.perf_counter() - started:.0f} s", file=sys.stderr)


def markdown(rows: list[dict[str, Any]]) -> str:
    """A table: rules down, workloads across; a cell: speed-ups under the curves (tokens, drafted per forward)."""
    cells: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
    groups: list[str] = []
    for row in rows:
        cells.setdefault(row["rule"], {}).setdefault(row["workload"], {})[row["curve"]] = row
        if row["workload"] not in groups:
            groups.append(row["workload"])
    lines = ["| rule | " + " | ".join(groups) + " |", "|---" * (len(groups) + 1) + "|"]
    for rule, by_group in cells.items():
        texts = []
        for group in groups:
            got = by_group.get(group, {})
            if not got:
                texts.append("")
                continue
            speed = " / ".join(f"{got[name]['speedup']:.2f}" if name in got else "-" for name in measure.CURVES)
            first = next(iter(got.values()))
            texts.append(f"{speed} ({first['tokens_per_forward']:.1f}, {first['drafted_per_forward']:.1f})")
        lines.append(f"| {rule} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


TABLES = {"replay": rules, "replay_capped": capped_rules, "replay_ablation": ablation_rules}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--split", choices=("train", "held-out"), default="held-out")
    parser.add_argument("--tables", default=",".join(TABLES), help="which of the tables, by name")
    parser.add_argument("--only", default="", help="only rules whose name contains this")
    parser.add_argument("--by-size", action="store_true", help="small and large edits apart")
    parser.add_argument("--out", type=Path, default=measure.RESULTS)
    options = parser.parse_args()
    traces = [trace for trace in load(options) if trace.split == options.split]
    for kinds, names in GROUPS.items():
        lengths = [len(trace.output) for trace in traces if trace.kind in names]
        print(f"{options.split} {kinds}: {len(lengths)} traces, {sum(lengths)} output tokens", file=sys.stderr)
    groups = {kind: (kind,) for kinds in GROUPS.values() for kind in kinds} if options.by_size else GROUPS
    for table in options.tables.split(","):
        lines = [rule for rule in TABLES[table]() if options.only in rule.name]
        rows = list(replayed(lines, traces, groups))
        measure.write_csv(options.out / f"{table}{'_by_size' * options.by_size}.csv", rows)
        print(f"## {table}\n\n{markdown(rows)}\n")
