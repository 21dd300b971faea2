"""What one step of the policy costs: propose and commit, in replayed sessions with 8,000 tokens of context.

    python bench policy_time --out bench/results/policy_time.csv

Every held-out prompt is brought to 8,000 tokens by other prompts of its workload in front. Wall time of one thread;
compare with the machine's load, which is written beside the figures.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import measure
import numpy as np
import replay

from zerodraft.lookup.draft import Draft, Outcome
from zerodraft.lookup.drafter import Drafter
from zerodraft.lookup.measure.replay import walk_known

CONTEXT, MAX_TRACES = 8000, 30


def time_steps(drafter: Drafter, prompt: np.ndarray, output: list[int]) -> list[tuple[int, int]]:
    """Nanoseconds of (propose, commit) of every step."""
    session = drafter.begin(prompt)
    session.commit(Draft.empty(), Outcome(path=(), new_ids=(output[0],), stop="full"))
    at, steps = 1, []
    while at < len(output):
        start = time.perf_counter_ns()
        draft = session.propose(4096, len(output) - at - 1)
        proposed = time.perf_counter_ns()
        outcome = walk_known(draft, output, at)
        walked = time.perf_counter_ns()
        session.commit(draft, outcome)
        steps.append((proposed - start, time.perf_counter_ns() - walked))
        at += len(outcome.new_ids)
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    replay.add_arguments(parser)
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "policy_time.csv")
    options = parser.parse_args()
    traces = [trace for trace in replay.load(options) if trace.split == "held-out"]
    rows = []
    for group, kinds in replay.GROUPS.items():
        chosen = [trace for trace in traces if trace.kind in kinds]
        before = np.concatenate([trace.prompt for trace in chosen])
        for curve in measure.CURVES:
            drafter = Drafter(policy=replay.adaptive(curve))
            steps = []
            for trace in chosen[:MAX_TRACES]:
                prompt = np.concatenate([before[: max(0, CONTEXT - len(trace.prompt))], trace.prompt])
                steps += time_steps(drafter, prompt, trace.output.tolist())
            taken = np.array(steps) / 1e3
            row = {"workload": group, "curve": curve, "split": "held-out", "num_steps": len(steps)}
            for name, values in (("propose", taken[:, 0]), ("commit", taken[:, 1]), ("step", taken.sum(1))):
                for q in (20, 50, 80):
                    row[f"{name}_us_p{q}"] = round(float(np.percentile(values, q)), 2)
            rows.append(row)
            print(row)
    print(measure.write_csv(options.out, rows))
