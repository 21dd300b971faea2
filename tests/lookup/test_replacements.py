"""What an edit replaced by what is drafted again at the next such place, and only while that comes true."""

from __future__ import annotations

import numpy as np
import pytest

from zerodraft.lookup.cost import CostCurve
from zerodraft.lookup.draft import Draft, Outcome
from zerodraft.lookup.drafter import Drafter, DraftSession
from zerodraft.lookup.measure.replay import walk_known
from zerodraft.lookup.policy import DraftPolicy

GPU = CostCurve([(1, 1.0), (201, 2.0)])


def replay_edit(old: list[int], new: list[int], **options) -> tuple[int, DraftSession]:
    """Forwards for writing ``new`` after ``old``, and the session."""
    session = Drafter(policy=DraftPolicy(cost=GPU, **options)).begin(old)
    session.commit(Draft.empty(), Outcome(path=(), new_ids=(new[0],), stop="full"))
    at, forwards = 1, 0
    while at < len(new):
        draft = session.propose(255, len(new) - at)
        outcome = walk_known(draft, new, at)
        session.commit(draft, outcome)
        at, forwards = at + len(outcome.new_ids), forwards + 1
    return forwards, session


@pytest.mark.parametrize("options", [{}, {"max_branches": 1}], ids=["tree", "chain"])
@pytest.mark.parametrize("renamed", [[7001], [7001, 7002, 7003], []], ids=["one token", "three", "left out"])
def test_a_rename_is_learned_at_its_first_site(renamed, options):
    rng = np.random.default_rng(0)
    parts = rng.integers(0, 6000, (10, 30)).tolist()
    old = [token for part in parts for token in (*part, 6500, 6501)]
    new = [token for part in parts for token in (*part, *renamed, 6501)]
    forwards, session = replay_edit(old, new, **options)
    replaced = session._states[0].replaced
    one = replaced.kept[0]
    tokens = session.index.token_ids.tolist()
    more = [] if renamed else [6501, parts[1][0]]  # what is left out is known by the tokens behind it
    assert tokens[one.old_at :][: one.old_len] == [6500, *more]
    assert tokens[one.new_at :][: one.new_len] == [*renamed, *more]
    if renamed:
        assert replaced.count == 1
        assert one.hits == 10
        assert forwards < 12  # three at the first site, then hardly one per site


@pytest.mark.parametrize(
    "points",
    [[(1, 1.0), (9, 1.32), (65, 2.44)], [(1, 1.0), (2, 1.15), (4, 1.3), (8, 1.5), (16, 1.66), (32, 1.98), (128, 3.9)]],
    ids=["two slopes", "as measured"],
)
def test_a_copy_that_holds_is_never_left_undrafted_for_a_fork_ahead(points):
    """A word that was replaced at every second of its sites: each site ahead is a fork in a copy that is right."""
    rng = np.random.default_rng(0)
    parts = rng.integers(0, 6000, (6, 60)).tolist()
    old = [token for part in parts for token in (*part, 6500, 6501)]
    new = [token for i, part in enumerate(parts) for token in (*part, *([6500] if i % 2 else [7001, 7002]), 6501)]
    session = Drafter(policy=DraftPolicy(cost=CostCurve(points))).begin(old)
    session.commit(Draft.empty(), Outcome(path=(), new_ids=(new[0],), stop="full"))
    at, forwards = 1, 0
    while at < len(new):
        draft = session.propose(255, len(new) - at)
        if not len(draft) and session.best_copy is not None:
            position, match, _ = session.best_copy
            assert match < 32 or session.index.token_ids[position] != new[at], f"nothing drafted at {at}"
        outcome = walk_known(draft, new, at)
        session.commit(draft, outcome)
        at, forwards = at + len(outcome.new_ids), forwards + 1
    assert forwards < len(new) / 10


def test_a_replacement_that_was_not_made_again_is_not_drafted_again():
    rng = np.random.default_rng(1)
    parts = rng.integers(0, 6000, (8, 30)).tolist()
    old = [token for part in parts for token in (*part, 6500, 6501)]
    new = [*parts[0], 7001, 6501, *old[32:]]
    forwards, session = replay_edit(old, new)
    one = session._states[0].replaced.kept[0]
    assert (one.hits, one.misses) == (1, 1)
    assert forwards < 10
