"""What a restore costs: public edits replayed against a model that reads again what it kept of a rejected draft.

    python bench restores            # held-out split; bench/results/restores.csv and a Markdown table

A model with a recurrent state checks one chain per step; after a rejection the root and the accepted tokens are read
again at the head of the next forward, and above 16 of them one step drafts nothing (docs/models.md). The text is known,
so no model runs; a forward costs what the curve says of all its positions, those read again included.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measure
import replay as tool

from zerodraft.integrations.hf.chains import MAX_PENDING
from zerodraft.lookup.chained import Chained
from zerodraft.lookup.draft import Draft, Outcome
from zerodraft.lookup.drafter import Drafter
from zerodraft.lookup.measure.replay import Replay, walk_known

GROUPS = {"edits": ("edits-small", "edits-large"), "continuation": ("continuation",)}


@dataclass
class State:
    """What a target has to read again; ``reads`` is False for one that can crop its cache."""

    reads: bool
    pending: int = 0


@dataclass(frozen=True)
class Line:
    """A kind of target, and the drafter for it."""

    name: str
    drafter: Callable[[Drafter, State], Any]
    reads: bool


LINES = (
    Line("no state, trees", lambda drafter, state: drafter, False),
    Line("no state, chains", lambda drafter, state: Chained(drafter, lambda: -1), False),
    Line("a state, its restores not reckoned with", lambda drafter, state: Chained(drafter, lambda: -1), True),
    Line("a state, reckoned with", lambda drafter, state: Chained(drafter, lambda: state.pending), True),
)


def run(session: Any, tokens: list[int], state: State) -> tuple[Replay, Counter[str]]:
    """Walk ``tokens`` as a target in this state would that writes exactly them."""
    done, counts = Replay(), Counter[str]()
    first = Outcome(path=(), new_ids=(tokens[0],), stop="full")
    session.commit(Draft.empty(), first)
    done.stats.record(Draft.empty(), first, is_prefill=True)
    at, state.pending = 1, 0
    while at < len(tokens):
        is_full = state.pending > MAX_PENDING
        draft = Draft.empty() if is_full else session.propose(4096, len(tokens) - at - 1)
        outcome = walk_known(draft, tokens, at)
        session.commit(draft, outcome)
        at += len(outcome.new_ids)
        done.stats.record(draft, outcome)
        done.stats.num_decode_forwards += 1
        done.forwards[state.pending + 1 + len(draft)] += 1
        counts["replayed"] += state.pending
        rejected = len(outcome.path) < len(draft)
        counts["restores"] += rejected and state.reads
        state.pending = state.pending + 1 + len(outcome.path) if rejected and state.reads else 0
    return done, counts


def replayed(traces: list[tool.TokenTrace]) -> list[dict[str, Any]]:
    rows = []
    for name in measure.CURVES:
        policy = tool.adaptive(name)
        for line in LINES:
            for group, kinds in GROUPS.items():
                total, counts = Replay(), Counter[str]()
                chosen = [trace for trace in traces if trace.kind in kinds and len(trace.output)]
                for trace in chosen:
                    state = State(line.reads)
                    session = line.drafter(Drafter(policy=policy), state).begin(trace.prompt)
                    done, counted = run(session, trace.output.tolist(), state)
                    total.merge(done)
                    counts.update(counted)
                forwards = total.stats.num_decode_forwards
                rows.append(
                    {
                        "target": line.name,
                        "workload": group,
                        "curve": name,
                        "num_traces": len(chosen),
                        "num_tokens": total.num_decode_tokens,
                        "tokens_per_forward": round(total.stats.tokens_per_forward, 3),
                        "drafted_per_forward": round(total.stats.num_draft_tokens / forwards, 3),
                        "restores_per_forward": round(counts["restores"] / forwards, 4),
                        "replayed_per_forward": round(counts["replayed"] / forwards, 3),
                        "speedup": round(total.speedup(measure.curve(name)), 3),
                    }
                )
                print(*rows[-1].values(), file=sys.stderr)
    return rows


def markdown(rows: list[dict[str, Any]]) -> str:
    """Speed-ups under the three curves; in brackets drafted and replayed positions per forward under the first."""
    lines = ["| target | " + " | ".join(GROUPS) + " |", "|---" * (len(GROUPS) + 1) + "|"]
    for line in LINES:
        cells = []
        for group in GROUPS:
            own = [row for row in rows if row["target"] == line.name and row["workload"] == group]
            drafted = " / ".join(f"{row['drafted_per_forward']:.1f}" for row in own)
            replayed = " / ".join(f"{row['replayed_per_forward']:.1f}" for row in own)
            cells.append(" / ".join(f"{row['speedup']:.2f}" for row in own) + f" ({drafted}; {replayed})")
        lines.append(f"| {line.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tool.add_arguments(parser)
    parser.add_argument("--split", choices=("train", "held-out"), default="held-out")
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "restores.csv")
    options = parser.parse_args()
    traces = [trace for trace in tool.load(options) if trace.split == options.split]
    rows = replayed(traces)
    measure.write_csv(options.out, rows)
    print(markdown(rows))
