"""The Jacobi window, the pool, and both beside another drafter, against plain Python (cases 1, 3, 5, 21, 29)."""

from __future__ import annotations

import random

import numpy as np
import pytest
import reference.lookahead
import reference.tree
from hypothesis import given, settings
from hypothesis import strategies as st

from zerodraft.lookup.cost import CostCurve
from zerodraft.lookup.draft import WINDOW, Draft, Outcome
from zerodraft.lookup.drafter import Drafter
from zerodraft.lookup.lookahead.beside import TRIAL, Beside, WindowTrial
from zerodraft.lookup.lookahead.lookahead import Lookahead
from zerodraft.lookup.lookahead.ngram_pool import NgramPool
from zerodraft.lookup.measure import theory
from zerodraft.lookup.policy import DraftPolicy

FREE = CostCurve([(1, 1.0), (1001, 1.001)])


def made(path, new_ids, stop="full", topk=None) -> Outcome:
    return Outcome(path=path, new_ids=new_ids, stop=stop, topk=topk)


def toy(text) -> int:
    """A target: some function of the last three tokens and of the length."""
    return (sum((i + 2) * token for i, token in enumerate(text[-3:])) + len(text)) % 23


def outcome_of(context, draft, target=toy, k=1) -> Outcome:
    """What a forward of the target makes of a draft, every node seeing its ancestors only."""
    tokens, parents, verify = draft.token_ids.tolist(), draft.parents.tolist(), draft.verify.tolist()
    seen = [[*context, *(tokens[i] for i in reference.tree.path_to(node, parents))] for node in range(-1, len(tokens))]
    best = [target(text) for text in seen]
    topk = np.array([[(token + i) % 23 for i in range(k)] for token in best], np.int32)
    path, new, node = [], [], -1
    while True:
        new.append(best[node + 1])
        below = [i for i, up in enumerate(parents) if up == node and verify[i] and tokens[i] == new[-1]]
        if not below:
            return made(tuple(path), tuple(new), "rejected", topk)
        node = below[0]
        path.append(node)


def test_the_golden_table():
    """Window 3, n-grams of 3, 2 guesses: mask and positions drawn by hand, from the ancestor mask alone."""
    tree_attention = pytest.importorskip("zerodraft.kernels.tree_attention")
    session = Lookahead(window_size=3, ngram_size=3, guess_set_size=2).begin([5, 7, 8, 5, 1, 2, 5])
    session.commit(Draft.empty(), made((), (5,), "full", np.array([[5]], np.int32)))  # the prefill's token
    context = [5, 7, 8, 5, 1, 2, 5, 5]
    draft = session.propose(64)
    session.commit(draft, made((), (5,), "rejected", outcome_of(context, draft).topk))  # the levels are full now
    pool = session.pool
    for tail in ((7, 8), (1, 2)):
        pool.add((5, *tail))
    draft = session.propose(64)
    mask, depths = tree_attention.ancestor_mask(draft.parents)
    rows = """
        1
        1 1
        1 1 1
        1 . . 1
        1 1 . . 1
        1 1 1 . . 1
        1 . . . . . 1
        1 . . . . . 1 1
        1 . . . . . . . 1
        1 . . . . . . . 1 1"""
    expected = np.zeros((10, 10), bool)
    for i, row in enumerate(rows.strip().splitlines()):
        for j, mark in enumerate(row.split()):
            expected[i, j] = mark == "1"
    assert np.array_equal(mask, expected)
    assert depths.tolist() == [0, 1, 2, 1, 2, 3, 1, 2, 1, 2]
    assert draft.verify.tolist() == [False] * 5 + [True] * 4
    assert draft.token_ids.tolist()[5:] == [1, 2, 7, 8]
    assert set(draft.source.tolist()) == {WINDOW}


@settings(deadline=None)
@given(st.integers(1, 7), st.integers(2, 6), st.integers(0, 10**6))
def test_every_step_yields_the_oracles_ngrams(width, ngram, seed):
    rng = random.Random(seed)
    context = [rng.randrange(23) for _ in range(rng.randrange(1, 9))]
    session = Lookahead(width, ngram, 64, pool_from_prompt=False).begin(context)
    first = toy(context)
    session.commit(Draft.empty(), made((), (first,), "full"))
    context.append(first)
    num_full = 0
    for _ in range(ngram + 4):
        levels = [list(level) for level in session.window.levels]
        was_full = session.window.is_full
        draft = session.propose(10**4)
        draft.check()
        assert len(draft) <= (width + 64) * (ngram - 1)
        outcome = outcome_of(context, draft)
        session.commit(draft, outcome)
        if was_full:
            num_full += 1
            levels[0][0] = context[-1]
            grams = reference.lookahead.lookahead_step(toy, context, levels)
            assert len(grams) == width
            for gram in grams:
                assert gram[1:] in session.pool.guesses(gram[0])
        context += outcome.new_ids
    assert num_full >= 4


def test_the_text_is_the_targets_and_guesses_are_accepted():
    """A target with a period longer than nothing: its n-grams come back, so guesses are right."""
    target = lambda text: (text[-1] * 3 + 1) % 7  # noqa: E731
    context = [2, 5]
    session = Lookahead(4, 4, 4, pool_from_prompt=False).begin(context)
    expected = list(context)
    while len(expected) < 120:
        expected.append(target(expected))
    context.append(target(context))
    session.commit(Draft.empty(), made((), (context[-1],), "full"))
    num_forwards = 0
    while len(context) < 100:
        draft = session.propose(200)
        outcome = outcome_of(context, draft, target)
        session.commit(draft, outcome)
        context += outcome.new_ids
        num_forwards += 1
    assert context == expected[: len(context)]
    assert num_forwards < 50


def test_window_nodes_are_not_to_be_accepted_and_hang_from_no_guess():
    session = Lookahead(5, 4, 3).begin([1, 2, 3, 4, 1])
    for step in range(5):
        draft = session.propose(64)
        for parent, verify in zip(draft.parents.tolist(), draft.verify.tolist()):
            assert parent < 0 or bool(draft.verify[parent]) == verify
        session.commit(draft, outcome_of([1, 2, 3, 4, 1, *range(step)], draft))


@pytest.mark.parametrize("budget", [0, 1, 2, 7, 64])
def test_budget_and_depth_are_limits(budget):
    text = [token for i in range(30) for token in (1, i, i + 1, i + 2)] + [1]
    for depth in (None, 0, 1, 2, 3, 40):
        session = Lookahead(15, 5, 15).begin(text)
        context = list(text)
        for _ in range(6):
            draft = session.propose(budget, depth)
            draft.check()
            assert len(draft) <= budget
            depths = [len(reference.tree.path_to(node, draft.parents.tolist())) for node in range(len(draft))]
            assert max(depths, default=0) <= (budget if depth is None else depth)
            outcome = outcome_of(context, draft)
            session.commit(draft, outcome)
            context += outcome.new_ids


@pytest.mark.parametrize("text", [[], [7], [7, 8], [5, 5], [0, 0, 0]])
def test_short_prompts(text):
    session = Lookahead(15, 5, 15).begin(text)
    context = list(text)
    if not text:
        assert len(session.propose(16)) == 0
    for _ in range(8):
        draft = session.propose(512)
        outcome = outcome_of(context, draft)
        session.commit(draft, outcome)
        context += outcome.new_ids
    assert len(context) >= len(text) + 8


def test_sessions_share_nothing_and_repeat_themselves():
    lookahead = Lookahead(6, 4, 6)
    runs = []
    for prompt in ([3, 1, 4, 1, 5], [3, 1, 4, 1, 5], [2, 7, 1], [3, 1, 4, 1, 5]):
        session, context, drafts = lookahead.begin(prompt), list(prompt), []
        for _ in range(12):
            draft = session.propose(128)
            outcome = outcome_of(context, draft)
            session.commit(draft, outcome)
            context += outcome.new_ids
            drafts.append((draft.token_ids.tolist(), draft.parents.tolist(), draft.probs.tolist()))
        runs.append((context, drafts))
    assert runs[0] == runs[1] == runs[3]
    assert runs[2] != runs[0]


def test_the_pool_is_bounded_in_every_direction():
    pool = NgramPool(3, 2, max_keys=3)
    for key in range(10):
        for tail in range(5):
            pool.add((key, tail, tail))
    assert len(pool) == 6
    assert pool.guesses(0) == []
    assert pool.guesses(9) == [(4, 4), (3, 3)]
    pool.add((9, 3, 3))
    assert pool.guesses(9) == [(3, 3), (4, 4)]


@pytest.mark.parametrize(
    ("option", "first", "second"),
    [
        ("window_size", 3, 9),
        ("ngram_size", 3, 6),
        ("guess_set_size", 1, 5),
        ("pool_from_prompt", False, True),
        ("max_pool_keys", 1, 50),
    ],
)
def test_every_option_has_an_effect(option, first, second):
    seen = []
    for value in (first, second):
        lookahead = Lookahead(**{"window_size": 5, "ngram_size": 4, "guess_set_size": 5, option: value})
        assert getattr(lookahead, option) == value
        context, drafts = [1, 2, 3, 4, 5, 6, 1, 2, 3, 1], []
        session = lookahead.begin(context)
        for _ in range(12):
            draft = session.propose(200)
            outcome = outcome_of(context, draft, lambda text: (text[-1] * 3 + 1) % 7)
            session.commit(draft, outcome)
            context += outcome.new_ids
            drafts.append(draft.token_ids.tolist())
        seen.append(drafts)
    assert seen[0] != seen[1]


@pytest.mark.parametrize(
    "options",
    [
        {"window_size": 0},
        {"window_size": 10**9},
        {"ngram_size": 1},
        {"ngram_size": 2.5},
        {"guess_set_size": -1},
        {"guess_set_size": 0},
        {"guess_set_size": True},
        {"max_pool_keys": 0},
        {"pool_from_prompt": 1},
    ],
)
def test_impossible_options_are_refused_by_name(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Lookahead(**options)


def test_the_window_moves_one_way_only():
    with pytest.raises(TypeError, match="shift"):
        Lookahead(shift="accepted")


def test_misuse_of_a_session():
    session = Lookahead().begin([1, 2])
    with pytest.raises(ValueError, match="negative"):
        session.propose(-1)
    with pytest.raises(ValueError, match="negative"):
        session.propose(4, -1)
    with pytest.raises(ValueError, match="remember"):
        session.finish(remember=True)
    session.finish()
    with pytest.raises(RuntimeError, match="finished"):
        session.propose(1)
    with pytest.raises(RuntimeError, match="finished"):
        session.commit(Draft.empty(), made((), (1,), "full"))


@pytest.mark.parametrize(
    ("alpha", "gamma", "guesses"), [(0.3, 1, 1), (0.6, 3, 4), (0.9, 4, 15), (0.0, 3, 2), (1.0, 3, 2)]
)
def test_the_published_expectation_is_the_sum_over_cases(alpha, gamma, guesses):
    """E = 1 + the sum over i of P(some guess has its first i tokens right), guesses independent."""
    cases = 1 + sum(1 - (1 - alpha**i) ** guesses for i in range(1, gamma + 1))
    assert theory.lookahead_expected_tokens(alpha, gamma, guesses) == pytest.approx(cases)
    assert theory.lookahead_expected_tokens(alpha, gamma, 1) == pytest.approx(theory.expected_tokens(alpha, gamma))


def test_the_published_speedup_and_positions():
    assert theory.lookahead_speedup(5.0, 1.0) == 5.0
    assert theory.lookahead_speedup(1.0, 7.0) == 1.0
    session = Lookahead(15, 5, 15).begin(list(range(9)))
    sizes = []
    for _ in range(8):
        draft = session.propose(512)
        session.commit(draft, outcome_of(range(9), draft))
        sizes.append(len(draft) + 1)
    assert max(sizes) <= theory.lookahead_positions(15, 5, 15)
    for bad in ((0.5, 2, 0), (1.5, 2, 1), (0.5, -1, 1)):
        with pytest.raises(ValueError, match="must be"):
            theory.lookahead_expected_tokens(*bad)
    with pytest.raises(ValueError, match="at least 1"):
        theory.lookahead_speedup(0.5, 1.0)
    with pytest.raises(ValueError, match="ngram_size"):
        theory.lookahead_positions(1, 1, 1)


# ---- beside another drafter ------------------------------------------------------------------------------------------


def beside(curve=FREE, nodes=64, recycle=True, **options):
    drafter = Drafter(recycle=recycle, policy=DraftPolicy(cost=curve, max_draft_tokens=nodes))
    return Beside(drafter, Lookahead(**{"window_size": 5, "ngram_size": 4, "guess_set_size": 5, **options}))


@settings(deadline=None)  # the first example compiles
@given(st.integers(0, 10**6), st.sampled_from([1, 5, 24, 64]))
def test_a_merged_draft_is_a_tree_within_the_budget(seed, nodes):
    rng = random.Random(seed)
    context = [rng.randrange(9) for _ in range(12)]
    session = beside(nodes=nodes).begin(context)
    assert session.num_topk == 8
    for _ in range(15):
        depth = rng.randrange(1, 12)
        draft = session.propose(512, depth)
        draft.check()
        assert len(draft) <= nodes
        depths = [len(reference.tree.path_to(node, draft.parents.tolist())) for node in range(len(draft))]
        assert max(depths, default=0) <= depth
        outcome = outcome_of(context, draft, lambda text: (text[-1] * 3 + text[-2]) % 9, k=8)
        session.commit(draft, outcome)
        context += outcome.new_ids
    session.finish()


def test_a_sure_copy_carries_no_window():
    text = [*range(40), *range(30)]
    session = beside().begin(text)
    draft = session.propose(512)
    assert draft.verify.all()
    assert draft.token_ids[:10].tolist() == list(range(30, 40))
    session = beside().begin(list(range(100)))
    assert not session.propose(512).verify.all()


def test_a_window_that_cannot_pay_is_never_computed():
    steep = CostCurve([(1, 1.0), (101, 51.0)])
    session = beside(curve=steep).begin(list(range(50)))
    assert len(session.propose(512)) == 0
    assert "window stood down: it would cost" in session.stand_down_reason


def test_a_window_that_wins_nothing_pauses_and_is_tried_again():
    slope = CostCurve([(1, 1.0), (101, 1.5)])
    rng = random.Random(1)
    session = beside(curve=slope, recycle=False).begin([1, 2, 3])
    carried = []
    for _ in range(3 * TRIAL + 200):
        draft = session.propose(512)
        carried.append(not draft.verify.all())
        outcome = outcome_of([], Draft.empty(), lambda text: rng.randrange(10**6))
        topk = np.array([[rng.randrange(10**6)] for _ in range(len(draft) + 1)], np.int32)
        session.commit(draft, made((), outcome.new_ids, "rejected", topk))
    assert sum(carried[:TRIAL]) == TRIAL
    assert not any(carried[TRIAL : TRIAL + 60])
    assert any(carried[TRIAL + 60 :])
    assert "it won 0.00 tokens" in session.stand_down_reason


def test_a_trial_goes_on_while_it_pays():
    trial = WindowTrial()
    for _ in range(200):
        assert trial.wants(0.3, 1.0)
        trial.record(1, 0.3)
    assert trial.reason is None


def test_only_a_lookahead_stands_beside():
    with pytest.raises(ValueError, match="Lookahead"):
        Beside(Drafter(), object())
