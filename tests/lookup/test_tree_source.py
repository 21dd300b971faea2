"""Drafter(suffix_tree=True): the tree beside the session's own draft."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerodraft.lookup.cost import CostCurve
from zerodraft.lookup.draft import CONTEXT, PREDICTION, Draft, Outcome
from zerodraft.lookup.drafter import Drafter, DraftSession
from zerodraft.lookup.measure.replay import Replay, replay, walk_known
from zerodraft.lookup.policy import DraftPolicy
from zerodraft.lookup.suffix import _suffix_core as core

FREE = DraftPolicy(cost=CostCurve([(1, 1.0), (2, 1.0001)]), max_draft_tokens=48)
plain, with_tree = Drafter(policy=FREE), Drafter(policy=FREE, suffix_tree=True)


def jobs(seed: int, num_jobs: int) -> list[list[int]]:
    """Outputs of one mould: short fixed runs of tokens with a choice of three after each, one of them likelier."""
    rng = np.random.default_rng(seed)
    texts = []
    for _ in range(num_jobs):
        text: list[int] = []
        for block in range(40):
            choice = int(rng.choice(3, p=[0.2, 0.7, 0.1]))
            text += [100 * block + i for i in range(3)]
            text += [5000 + 100 * block + 10 * choice + i for i in range(2)]
        texts.append(text)
    return texts


def run(drafter: Drafter) -> Replay:
    total = Replay()
    for seed in range(6):
        *earlier, output = jobs(seed, 16)
        total.merge(replay(drafter.begin([token for text in earlier for token in text]), output))
    return total


def test_frequencies_beat_the_nearest_copy_on_repeated_jobs() -> None:
    without, beside = run(plain), run(with_tree)
    assert beside.num_decode_tokens == without.num_decode_tokens
    assert beside.stats.tokens_per_forward > 1.03 * without.stats.tokens_per_forward
    assert beside.stats.num_draft_tokens <= 1.05 * without.stats.num_draft_tokens


def test_off_is_the_default_and_leaves_no_trace() -> None:
    assert plain.suffix_tree is False
    assert plain.begin([1, 2])._tree is None


@pytest.mark.parametrize("bad", [1, "yes", None])
def test_the_option_is_a_bool(bad: object) -> None:
    with pytest.raises(ValueError, match="suffix_tree must be True or False"):
        Drafter(suffix_tree=bad)  # type: ignore[arg-type]


texts = st.lists(st.integers(0, 3), min_size=1, max_size=40)
steps = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 5), st.lists(st.integers(0, 3), min_size=1, max_size=4)))


@given(st.one_of(st.just([]), texts), texts, steps, st.booleans())
def test_drafts_are_sound(prediction: list[int], prompt: list[int], moves: list[tuple], prefer_tree: bool) -> None:
    """Bounds, origins and probabilities hold whichever draft is used, and the tree has the session's own text."""
    session = with_tree.begin(prompt, prediction)
    source = session._tree
    assert source is not None
    for max_tokens, max_depth, new_ids in moves:
        source._scores[:] = [0.0, 1.0] if prefer_tree else [1.0, 0.0]
        draft = session.propose(max_tokens, max_depth)
        assert_sound(session, draft, max_tokens, max_depth, len(prediction))
        outcome = walk_known(draft, new_ids, 0)
        session.commit(draft, Outcome(path=outcome.path, new_ids=tuple(new_ids), stop="rejected"))
        assert len(source.tree) == len(session.index)
    source.tree.check_integrity()
    assert np.array_equal(np.maximum(source.tree._tokens[: len(source.tree)], -1), session.index.token_ids)


def assert_sound(session: DraftSession, draft: Draft, max_tokens: int, max_depth: int, num_predicted: int) -> None:
    draft.check()
    assert len(draft) <= max_tokens
    depth: list[int] = []
    for parent in draft.parents.tolist():
        depth.append(1 if parent < 0 else depth[parent] + 1)
    assert max(depth, default=0) <= max_depth
    for node, (parent, origin) in enumerate(zip(draft.parents.tolist(), draft.origin.tolist())):
        prob = float(draft.probs[node])
        assert 0.0 <= prob <= (1.0 if parent < 0 else float(draft.probs[parent])) + 1e-6
        if 0 <= origin < len(session.index):
            assert session.index.token_ids[origin] == draft.token_ids[node]
            assert draft.source[node] == (PREDICTION if origin < num_predicted else CONTEXT)


@given(st.data())
def test_agreement_is_the_walk(data: st.DataObject) -> None:
    n = data.draw(st.integers(0, 8))
    parents = [data.draw(st.integers(-1, i - 1)) for i in range(n)]
    used: set[tuple[int, int]] = set()
    ids = []
    for parent in parents:
        token = data.draw(st.integers(0, 9).filter(lambda t, p=parent: (p, t) not in used))
        used.add((parent, token))
        ids.append(token)
    came = data.draw(st.lists(st.integers(0, 3), max_size=5))
    block = np.zeros((core.NUM_ROWS, n), np.int32)
    block[core.ROW_TOKEN], block[core.ROW_PARENT] = ids, parents
    expected = walk_known(Draft.tree(ids, parents), came, 0).num_accepted
    assert core.num_agreed(block, n, np.array(came, np.int32)) == expected


def test_a_commit_without_a_proposal_compares_nothing() -> None:
    session = with_tree.begin([1, 2, 3, 1, 2])
    assert session._tree is not None
    session.commit(Draft.empty(), Outcome(path=(), new_ids=(3,), stop="full"))
    assert session._tree._scores == [0.0, 0.0]
    session.propose(4)
    session.commit(Draft.empty(), Outcome(path=(), new_ids=(1, 2), stop="full"))
    assert session._tree._scores == [2.0, 2.0]
    session.commit(Draft.empty(), Outcome(path=(), new_ids=(9,), stop="full"))
    assert session._tree._scores == [2.0, 2.0]
