"""Make lookup/priors.json: how often copies break, by matched length, in a few kinds of text.

Replays the train split one token at a time, counts for every trace how often the best copy was right after m matched
tokens, and fits a mixture of kinds to these counts (expectation maximisation). Each workload has the share below, far
more for short free text than for copying: a summary ends before its text has said what kind it is, an edit says so in
its first hundred tokens. Shares and number of kinds are those whose worst cell of the train split was best calibrated.
"""

from __future__ import annotations

import argparse
import json

import measure
import numpy as np
import replay

from zerodraft.lookup.copy import _replaced as replacing
from zerodraft.lookup.draft import Draft, Outcome
from zerodraft.lookup.drafter import Drafter
from zerodraft.lookup.policy import DraftPolicy

MATCH_LENS = [1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128, 181, 256, 362, 512]
SHARES = {"edits": 0.04, "agents": 0.04, "continuation": 0.13, "summaries": 0.79}
NUM_KINDS, NUM_ROUNDS, PSEUDO_TOKENS = 6, 200, 3.0


def count_breaks(prompt, output, prediction) -> tuple[np.ndarray, np.ndarray]:
    """Return (right, wrong), each (len(MATCH_LENS),), for the best copy before every token but the first."""
    counts = np.zeros((2, len(MATCH_LENS)))
    session = Drafter(policy=DraftPolicy(max_branches=1)).begin(prompt, prediction)
    session.commit(Draft.empty(), Outcome(path=(), new_ids=(int(output[0]),), stop="full"))
    running = -1  # where a copy that was right goes on
    for token in output[1:].tolist():
        session.propose(1)
        best = session.best_copy
        if best is not None:
            position, match_len, evidence = best
            is_right = bool(session.index.token_ids[position] == token)
            # Other occurrences say much about a copy's first token and nothing about the next ones; where a replacement
            # is known, that decides.
            text = session.index.token_ids
            replaced = session._state.replaced
            is_site = replacing.find(text, len(text), replaced, position) >= 0
            if not is_site and (position == running or evidence == "single"):
                bucket = int(np.searchsorted(MATCH_LENS, match_len, side="right")) - 1
                counts[int(not is_right), bucket] += 1
            running = position + 1 if is_right else -1
        session.commit(Draft.empty(), Outcome(path=(), new_ids=(token,), stop="rejected"))
    return counts[0], counts[1]


def fit(right: np.ndarray, wrong: np.ndarray, shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return break probabilities (kinds, lengths) and the weight of each kind.

    From counts (traces, lengths) and the share of each trace (traces,), which sum to 1.
    """
    times = (shares * len(shares))[:, None]
    pooled = np.clip((times * wrong).sum(0) / np.maximum((times * (right + wrong)).sum(0), 1.0), 1e-3, 0.95)
    rate = (wrong.sum(1) + 1) / (right.sum(1) + wrong.sum(1) + 2)
    rank = np.argsort(np.argsort(rate)) * NUM_KINDS // len(rate)
    share = np.eye(NUM_KINDS)[rank] * 0.9 + 0.1 / NUM_KINDS
    for _ in range(NUM_ROUNDS):
        num_wrong, num_right = (share * times).T @ wrong, (share * times).T @ right
        breaks = (num_wrong + PSEUDO_TOKENS * pooled) / (num_wrong + num_right + PSEUDO_TOKENS)
        weight = (share * times).mean(0)
        score = wrong @ np.log(breaks).T + right @ np.log(1 - breaks).T + np.log(weight + 1e-9)
        share = np.exp(score - score.max(1, keepdims=True))
        share /= share.sum(1, keepdims=True)
    order = np.argsort((breaks / np.array(MATCH_LENS)).sum(1))
    return breaks[order], weight[order]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    replay.add_arguments(parser)
    traces = [trace for trace in replay.load(parser.parse_args()) if trace.split == "train"]
    counts = [count_breaks(trace.prompt, trace.output, trace.prediction) for trace in traces]
    groups = [next(name for name, kinds in replay.GROUPS.items() if trace.kind in kinds) for trace in traces]
    shares = np.array([SHARES[group] / groups.count(group) for group in groups])
    breaks, weight = fit(np.array([right for right, _ in counts]), np.array([wrong for _, wrong in counts]), shares)
    priors = {
        "about": "Probability that a copy breaks at the next token after m matched ones, by kind of text. Made by "
        f"bench/policy/fit_priors.py from {len(traces)} traces of the train split (bench/workloads.py).",
        "match_lens": MATCH_LENS,
        "kinds": [
            {"weight": round(float(w), 4), "breaks": [round(float(b), 5) for b in row]}
            for w, row in zip(weight, breaks)
        ],
    }
    path = measure.ROOT / "lookup" / "priors.json"
    path.write_text(json.dumps(priors, indent=1) + "\n", encoding="utf-8")
    print(path.read_text())
