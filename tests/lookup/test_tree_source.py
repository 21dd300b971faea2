"""Drafter(suffix_tree=True): a suffix tree of the session's text as one of its sources."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.policy import learned_from_tree

from zerodraft.lookup import _block
from zerodraft.lookup.cost import CostCurve
from zerodraft.lookup.draft import CONTEXT, PREDICTION, Draft, Outcome
from zerodraft.lookup.drafter import Drafter, DraftSession
from zerodraft.lookup.measure.replay import Replay, replay, walk_known
from zerodraft.lookup.policy import DraftPolicy, priors
from zerodraft.lookup.suffix import _rated as core
from zerodraft.lookup.suffix.tree_source import TreeSource

FREE = DraftPolicy(cost=CostCurve([(1, 1.0), (2, 1.0001)]), max_draft_tokens=48)
NO_COPIES = dataclasses.replace(FREE, prompt_lookup_min=4096, prompt_lookup_max=4096)
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


def tree_of(session: DraftSession) -> TreeSource:
    (source,) = session._sources
    assert isinstance(source, TreeSource)
    return source


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
    assert plain.begin([1, 2])._sources == ()


@pytest.mark.parametrize("bad", [1, "yes", None])
def test_the_option_is_a_bool(bad: object) -> None:
    with pytest.raises(ValueError, match="suffix_tree must be True or False"):
        Drafter(suffix_tree=bad)  # type: ignore[arg-type]


texts = st.lists(st.integers(0, 3), min_size=1, max_size=40)
steps = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 5), st.lists(st.integers(0, 3), min_size=1, max_size=4)))


@given(st.one_of(st.just([]), texts), texts, steps, st.booleans())
def test_drafts_are_sound(prediction: list[int], prompt: list[int], moves: list[tuple], only_tree: bool) -> None:
    """Bounds, origins and probabilities hold, also of the tree by itself, and it has the session's own text."""
    session = (Drafter(policy=NO_COPIES, suffix_tree=True) if only_tree else with_tree).begin(prompt, prediction)
    source = tree_of(session)
    for max_tokens, max_depth, new_ids in moves:
        draft = session.propose(max_tokens, max_depth)
        assert_sound(session, draft, max_tokens, max_depth, len(prediction))
        outcome = walk_known(draft, new_ids, 0)
        session.commit(draft, Outcome(path=outcome.path, new_ids=tuple(new_ids), stop="rejected"))
        assert len(source.tree) == len(session.index)
    source.tree.check_integrity()
    assert np.array_equal(np.maximum(source.tree._arrays.tokens[: len(source.tree)], -1), session.index.token_ids)


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


@st.composite
def drafted_trees(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """(token ids, parents), siblings with different tokens."""
    parents: list[int] = []
    ids: list[int] = []
    for node in range(draw(st.integers(0, 8))):
        parents.append(draw(st.integers(-1, node - 1)))
        siblings = [token for token, parent in zip(ids, parents) if parent == parents[-1]]
        ids.append(draw(st.integers(0, 9).filter(lambda token, used=siblings: token not in used)))
    return ids, parents


@given(drafted_trees(), st.integers(1, 600), st.lists(st.integers(0, 3), max_size=5), st.booleans())
def test_belief_shifts_by_the_walk(tree: tuple[list[int], list[int]], match: int, came: list[int], cut: bool) -> None:
    ids, parents = tree
    block = np.zeros((_block.NUM_ROWS, len(ids)), np.int32)
    block[_block.TOKEN], block[_block.PARENT], block[_block.MATCH] = ids, parents, match
    beliefs, tables = priors()[1].copy(), FREE.tables()
    expected = learned_from_tree(beliefs.tolist(), tables.breaks.tolist(), ids, parents, match, came, not cut)
    if len(ids):
        core.learn(block, len(ids), np.array(came, np.int32), not cut, beliefs, tables)
    assert beliefs == pytest.approx(expected)
    walked = walk_known(Draft.tree(ids, parents), came, 0).num_accepted
    assert (beliefs != pytest.approx(priors()[1])) == (walked > 0 or (not cut and bool(came) and len(ids) > 0))


def test_a_commit_without_a_proposal_compares_nothing() -> None:
    session = with_tree.begin([1, 2, 3, 1, 2])
    beliefs = tree_of(session)._beliefs
    before = beliefs.copy()
    session.commit(Draft.empty(), Outcome(path=(), new_ids=(3,), stop="full"))
    assert np.array_equal(beliefs, before)
    session.propose(4)
    session.commit(Draft.empty(), Outcome(path=(), new_ids=(1, 2), stop="full"))
    assert not np.array_equal(beliefs, before)
    before = beliefs.copy()
    session.commit(Draft.empty(), Outcome(path=(), new_ids=(9,), stop="full"))
    assert np.array_equal(beliefs, before)


@pytest.mark.parametrize("stop", ["eos", "stop", "length"])
def test_a_cut_teaches_nothing(stop: str) -> None:
    for teaches, reason in ((False, stop), (True, "rejected")):
        session = with_tree.begin([1, 2, 3, 1, 2])
        before = tree_of(session)._beliefs.copy()
        session.propose(4)
        session.commit(Draft.empty(), Outcome(path=(), new_ids=(9,), stop=reason))  # type: ignore[arg-type]
        assert np.array_equal(tree_of(session)._beliefs, before) != teaches


def test_a_tree_that_is_wrong_again_and_again_is_believed_less() -> None:
    drafter = Drafter(policy=NO_COPIES, suffix_tree=True)
    text = [token for i in range(12) for token in (1, 2, 3, 100 + i)]
    session = drafter.begin(text)
    chances = []
    for i in range(8):
        session.commit(Draft.empty(), Outcome(path=(), new_ids=(200 + i, 1, 2), stop="full"))
        draft = session.propose(4)
        assert draft.token_ids[0] == 3
        chances.append(float(draft.probs[0]))
    assert chances == sorted(chances, reverse=True)
    assert chances[-1] < chances[0]
    fresh = drafter.begin([*text, 200, 1, 2]).propose(4)  # and only within that session
    assert float(fresh.probs[0]) == pytest.approx(chances[0])


def test_a_prediction_is_drafted_as_such() -> None:
    session = Drafter(policy=NO_COPIES, suffix_tree=True).begin([9, 1, 2], [1, 2, 3, 4, 5])
    draft = session.propose(8)
    assert draft.token_ids.tolist() == [3, 4, 5]  # and nothing behind its end
    assert draft.source.tolist() == [PREDICTION] * 3
    assert draft.origin.tolist() == [2, 3, 4]
