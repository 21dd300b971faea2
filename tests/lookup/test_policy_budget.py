"""One budget over the rows of a batch: a hard limit, spent on the likeliest nodes, shrinking to nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerodraft.lookup.cost import CostCurve
from zerodraft.lookup.draft import Draft
from zerodraft.lookup.drafter import Drafter
from zerodraft.lookup.policy import DraftPolicy
from zerodraft.lookup.serving.budget import share_budget


@st.composite
def drafts(draw) -> Draft:
    n = draw(st.integers(0, 8))
    parents = [draw(st.integers(-1, node - 1)) for node in range(n)]
    draft = Draft.tree(range(n), parents)
    draft.probs[:] = [draw(st.sampled_from([0.1, 0.4, 0.9])) for _ in range(n)]
    return draft


def paths(draft: Draft) -> dict[tuple[int, ...], float]:
    """Tokens from the root to each node -> the least probability on the way."""
    found: dict[int, tuple[tuple[int, ...], float]] = {-1: ((), 1.0)}
    for node, parent in enumerate(draft.parents.tolist()):
        before, least = found[parent]
        found[node] = ((*before, int(draft.token_ids[node])), min(least, float(draft.probs[node])))
    return {path: least for node, (path, least) in found.items() if node >= 0}


@given(st.lists(drafts(), max_size=5), st.integers(0, 30))
def test_the_likeliest_nodes_stay_and_no_more_than_asked(given_drafts, budget):
    shared = share_budget(given_drafts, budget)
    assert len(shared) == len(given_drafts)
    assert sum(map(len, shared)) == min(budget, sum(map(len, given_drafts)))
    kept, left = [], []
    for before, after in zip(given_drafts, shared):
        after.check()
        assert paths(after).keys() <= paths(before).keys()
        kept += [p for path, p in paths(before).items() if path in paths(after)]
        left += [p for path, p in paths(before).items() if path not in paths(after)]
    assert not left or not kept or min(kept) >= max(left)


def test_a_negative_budget_is_refused():
    with pytest.raises(ValueError, match="max_tokens"):
        share_budget([], -1)


def rows(policy: DraftPolicy, count: int) -> list[Draft]:
    drafter = Drafter(policy=policy)
    texts = [[*range(100, 100 + 20 * (i + 1)), *range(100, 101 + i)] for i in range(count)]
    return drafter.propose_batch([drafter.begin(text) for text in texts], 64)


@pytest.mark.parametrize("most", [0, 1, 7, 40, None])
def test_the_policy_bounds_a_batch(most):
    free = CostCurve([(1, 1.0), (2, 1.0)])
    found = rows(DraftPolicy(cost=free, max_batch_tokens=most), 5)
    total = sum(map(len, found))
    assert total > 40 if most is None else total == most
    lengths = [len(draft) for draft in found]
    assert most != 40 or lengths[-1] > lengths[0]  # longer matches survive longer


def test_load_shrinks_drafts_row_by_row_down_to_none():
    busy = CostCurve([(1, 1.0), (33, 1.1), (65, 2.0), (129, 4.0)])
    means = [np.mean([len(draft) for draft in rows(DraftPolicy(cost=busy), count)]) for count in (1, 2, 4, 8, 64)]
    assert means[0] > 0
    lengths = [len(rows(DraftPolicy(cost=busy), count)[0]) for count in (1, 2, 4, 8, 16, 64, 256)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] == 0


@pytest.mark.parametrize("bad", [-1, 1.5, True])
def test_bad_budgets_are_refused(bad):
    with pytest.raises(ValueError, match="max_batch_tokens"):
        DraftPolicy(max_batch_tokens=bad)
