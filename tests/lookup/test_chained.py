"""Drafts for a target that reads again what it kept of a rejected one."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from zerodraft import CostCurve, Drafter, DraftPolicy
from zerodraft.lookup.chained import Chained, affordable, likeliest_path
from zerodraft.lookup.draft import Draft


def _rate(probs, costs, pending, n):
    """Expected tokens per expected cost of checking ``n`` nodes, outcome by outcome."""
    steps = [1.0, *probs[:n]]
    tokens = cost = 0.0
    for right in range(n + 1):
        chance = steps[right] - (steps[right + 1] if right < n else 0.0)
        tokens += chance * (right + 1)
        again = pending + right + 1 if right < n else 0
        cost += chance * (costs[1 + pending + n] - costs[1 + pending] + 1.0 + costs[1 + again] - costs[1])
    return tokens / cost


@pytest.mark.parametrize("seed", range(30))
def test_the_length_is_the_best_of_all_lengths(seed):
    rng = random.Random(seed)
    probs = np.cumprod([rng.choice([0.5, 0.8, 0.95, 0.99]) for _ in range(rng.randrange(1, 12))])
    costs = CostCurve([(1, 1.0), (rng.choice([6, 28, 200]), 2.0)]).table(64)
    pending = rng.randrange(17)
    rates = [_rate(probs, costs, pending, n) for n in range(len(probs) + 1)]
    best = int(np.argmax(rates))
    expected = best if rates[best] > 1.05 else 0
    assert affordable(probs, costs, pending) == expected


def test_less_is_drafted_the_more_a_rejection_costs():
    """The same doubtful chain on a dear and on a cheap curve, with much and with nothing pending; sure ones stay."""
    dear, cheap = CostCurve([(1, 1.0), (6, 2.0)]).table(64), CostCurve([(1, 1.0), (200, 2.0)]).table(64)
    doubtful, sure = np.cumprod([0.7] * 10), np.cumprod([0.999] * 10)
    assert affordable(doubtful, dear, 0) < affordable(doubtful, cheap, 0)
    assert affordable(doubtful, dear, 12) < affordable(doubtful, dear, 0)
    assert affordable(sure, dear, 0) == 10


class Fixed:
    """A drafter of one's own: 20 tokens at every step."""

    def begin(self, prompt_ids, prediction_ids=None, namespace=None):
        return self

    def propose(self, max_tokens: int, max_depth: int | None = None) -> Draft:
        return Draft.chain(range(20))


def test_a_session_drafts_chains_and_what_is_read_again_counts():
    text = [1, 2, 3, 4, 5, 9, 1, 2, 3, 4, 6, 8, 1, 2, 3, 4]
    policy = DraftPolicy(cost=CostCurve([(1, 1.0), (8, 2.0)]))
    drafts = [
        Chained(Drafter(policy=policy), lambda pending=pending: pending).begin(text).propose(64) for pending in (-1, 16)
    ]
    assert all(draft.is_chain for draft in drafts)
    assert len(drafts[1]) < len(drafts[0]) > 0
    assert len(Chained(Fixed(), lambda: 16).begin(text).propose(64)) == 20  # nothing is known of what another's pays


def test_the_likeliest_path():
    """By brute force over all leaves, nodes that do not fit and those below them left out."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        n = int(rng.integers(1, 9))
        parents = np.array([rng.integers(-1, node) if node else -1 for node in range(n)], np.int32)
        draft = Draft.tree(np.arange(n), parents)
        object.__setattr__(draft, "probs", rng.random(n).astype(np.float32))
        fits = rng.random(n) < 0.8
        paths = [[]]
        for node in range(n):
            path = []
            up = node
            while up >= 0:
                path.insert(0, up)
                up = int(parents[up])
            if fits[path].all():
                paths.append(path)
        best = max(float(draft.probs[path].sum()) for path in paths)
        chosen = np.flatnonzero(likeliest_path(draft, fits)).tolist()
        assert chosen in paths
        assert float(draft.probs[chosen].sum()) == pytest.approx(best)
        assert all(a == parents[b] for a, b in itertools.pairwise(chosen))
