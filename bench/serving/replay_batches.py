"""Replay batches of public traces: rows filled up to the widest draft against rows one behind the other.

    python bench replay_batches [--rows 4,8,32] [--count 48]

Rows are replayed in lockstep, a new trace takes the place of a finished one. Speed-up: cost of plain batched decoding
over ours, per token, under the curves of bench/curves.json, prefill excluded. The text is known, so no model runs. What
a row costs beside its positions is left out. Writes bench/results/replay_batches.csv.
"""

from __future__ import annotations

import argparse
import random
from typing import Any

import measure
import replay

from zerodraft.lookup.cost import CostCurve
from zerodraft.lookup.draft import Draft, Outcome
from zerodraft.lookup.drafter import Drafter
from zerodraft.lookup.measure.replay import walk_known

KINDS = ("edits-small", "continuation", "summaries")
MOST = 1 << 14


class Row:
    """One trace on its way."""

    def __init__(self, drafter: Drafter, trace: replay.TokenTrace) -> None:
        self.session, self.tokens, self.at = drafter.begin(trace.prompt), trace.output.tolist(), 1
        self.session.commit(Draft.empty(), Outcome(path=(), new_ids=(self.tokens[0],), stop="full"))

    @property
    def room(self) -> int:
        return len(self.tokens) - self.at - 1

    def take(self, draft: Draft) -> int:
        """Commit what is right of the draft; returns the number of new tokens."""
        outcome = walk_known(draft, self.tokens, self.at)
        self.session.commit(draft, outcome)
        self.at += len(outcome.new_ids)
        return len(outcome.new_ids)


def run(traces: list[replay.TokenTrace], curve: CostCurve, num_rows: int) -> dict[str, float]:
    """Speed-ups over plain decoding of as many rows while all places are taken."""
    drafter, waiting = Drafter(policy=replay.DraftPolicy(cost=curve)), list(traces)
    costs = curve.table(MOST)
    rows = [Row(drafter, waiting.pop()) for _ in range(num_rows)]
    tokens = forwards = 0
    packed = filled = 0.0
    while True:
        drafts = drafter.propose_batch([row.session for row in rows], 4096, [row.room for row in rows])
        packed += costs[sum(1 + len(draft) for draft in drafts)]
        filled += costs[num_rows * (1 + max(len(draft) for draft in drafts))]
        forwards += 1
        tokens += sum(row.take(draft) for row, draft in zip(rows, drafts))
        done = [place for place, row in enumerate(rows) if row.at >= len(row.tokens)]
        if len(done) > len(waiting):
            break
        for place in done:
            rows[place] = Row(drafter, waiting.pop())
    plain = tokens / num_rows * costs[num_rows]
    return {"tokens_per_forward": tokens / forwards, "filled_up": plain / filled, "packed": plain / packed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="4,8,32", help="batch sizes")
    parser.add_argument("--count", type=int, default=48, help="traces of each kind")
    replay.add_arguments(parser)
    args = parser.parse_args()
    traces = [trace for trace in replay.load(args) if trace.split == "held-out" and len(trace.output) > 1]
    results: list[dict[str, Any]] = []
    for kind in KINDS:
        chosen = [trace for trace in traces if trace.kind == kind]
        random.Random(0).shuffle(chosen)
        for name in measure.CURVES:
            for num_rows in map(int, args.rows.split(",")):
                found = run(chosen[: args.count], measure.curve(name), num_rows)
                results.append({"kind": kind, "curve": name, "rows": num_rows, "traces": len(chosen[: args.count])})
                results[-1] |= {key: round(value, 3) for key, value in found.items()}
                print(results[-1], flush=True)
    print(measure.write_csv("replay_batches", results))
