"""Sessions: what is drafted, from where, and what a commit changes (cases 1 to 5, 29)."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from zerodraft.lookup.cost import CostCurve
from zerodraft.lookup.draft import PREDICTION, Draft, Outcome
from zerodraft.lookup.drafter import Drafter
from zerodraft.lookup.policy import DraftPolicy

FREE = DraftPolicy(cost=CostCurve([(1, 1.0), (2, 1.0)]), max_draft_tokens=63)  # nodes cost nothing


@pytest.mark.parametrize("text", [[], [7], [7, 8], [1, 2, 3], [1, 2, 1, 3]])
def test_nothing_to_continue_is_an_empty_draft(text):
    assert len(Drafter().begin(text).propose(16)) == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [([5, 5], [5, 5, 5, 5]), ([5, 5, 5], [5] * 8), ([1, 2, 3, 1, 2], [3, 1, 2, 3, 1, 2, 3, 1]), ([0, 0], [0] * 4)],
)
def test_a_copy_goes_on_into_itself(text, expected):
    draft = Drafter(policy=FREE).begin(text).propose(63)
    assert draft.is_chain
    assert draft.token_ids.tolist()[: len(expected)] == expected
    assert all(token == text[origin] for token, origin in zip(draft.token_ids, draft.origin) if origin < len(text))


def test_a_minimum_beyond_the_text_drafts_nothing():
    policy = DraftPolicy(prompt_lookup_min=50, prompt_lookup_max=50)
    assert len(Drafter(policy=policy).begin([1, 2, 1, 2, 1]).propose(8)) == 0


def test_the_barrier_neither_matches_nor_is_drafted():
    session = Drafter().begin([9, 7, 1], [5, 1])
    draft = session.propose(16)  # 1 occurred before only at the end of the prediction
    assert len(draft) == 0
    session = Drafter().begin([5], [4, 5, 6])
    draft = session.propose(16)
    assert draft.token_ids.tolist() == [6]
    assert draft.source.tolist() == [PREDICTION]


def test_the_prediction_is_followed_from_its_beginning():
    prediction = list(range(10, 40))
    session = Drafter(policy=FREE).begin([1, 2, 3], prediction)
    session.commit(Draft.empty(), Outcome(path=(), new_ids=(10,), stop="full"))
    output = [10]
    num_steps = 0
    while len(output) < len(prediction):
        draft = session.propose(64)
        path = tuple(range(len(draft)))
        new = draft.token_ids.tolist()
        session.commit(draft, Outcome(path=path, new_ids=tuple(new), stop="full"))
        output += new
        num_steps += 1
    assert output == prediction
    assert session.copy_pointer == len(prediction)
    assert num_steps < 4


def test_the_pointer_stays_on_a_full_rejection_and_ignores_foreign_drafts():
    session = Drafter().begin([1, 2, 3, 1, 2])
    draft = session.propose(4)
    session.commit(draft, Outcome(path=(0, 1), new_ids=(3, 1, 9), stop="rejected"))
    assert session.copy_pointer == 4
    session.commit(session.propose(4), Outcome(path=(), new_ids=(1,), stop="rejected"))
    assert session.copy_pointer == 4
    session.commit(Draft.chain([6, 7]), Outcome(path=(0, 1), new_ids=(6, 7, 8), stop="full"))
    assert session.copy_pointer == 4
    foreign = dataclasses.replace(Draft.chain([6]), origin=np.array([10**6], np.int32))
    session.commit(foreign, Outcome(path=(0,), new_ids=(6, 1), stop="full"))
    assert session.copy_pointer == 4


@pytest.mark.parametrize("budget", [0, 1, 2, 7, 64])
def test_the_budget_is_a_limit(budget):
    session = Drafter(policy=FREE).begin([7] * 600)
    assert len(session.propose(budget)) == min(budget, 63)
    assert len(session.propose(64, max_depth=budget)) == min(budget, 63)
    tree = Drafter(policy=FREE).begin([token for i in range(200) for token in (1, 2, 3, 100 + i)] + [1, 2, 3])
    assert len(tree.propose(budget)) == min(budget, len(tree.propose(64)))


def test_requests_share_nothing():
    used, fresh = Drafter(policy=FREE), Drafter(policy=FREE)
    first = used.begin([1, 2, 3, 4, 1, 2])
    first.commit(first.propose(8), Outcome(path=(0,), new_ids=(3, 9), stop="rejected"))
    first.finish()
    for drafter in (used, fresh):
        session = drafter.begin([7, 1, 2])
        assert len(session.propose(8)) == 0
        session.commit(Draft.empty(), Outcome(path=(), new_ids=(7,), stop="full"))
        assert session.propose(4).token_ids.tolist() == [1, 2, 7, 1]


@pytest.mark.parametrize("bad", [(-1,), (2**31,), (1.5,), ("a",)])
def test_bad_emitted_ids_leave_the_session_unchanged(bad):
    session = Drafter().begin([1, 2, 1])
    draft = session.propose(4)
    with pytest.raises(ValueError):
        session.commit(draft, Outcome(path=(0,), new_ids=(2, *bad), stop="full"))
    with pytest.raises(ValueError, match="path"):
        session.commit(draft, Outcome(path=(4,), new_ids=(2,), stop="full"))
    assert session.index.token_ids.tolist() == [1, 2, 1]
    assert session.copy_pointer == 0
    assert session.propose(4).token_ids.tolist() == draft.token_ids.tolist()


def test_a_finished_session_refuses_work():
    session = Drafter().begin([1, 1])
    session.finish()
    session.finish()
    with pytest.raises(RuntimeError, match="finished"):
        session.propose(1)
    with pytest.raises(RuntimeError, match="finished"):
        session.commit(Draft.empty(), Outcome(path=(), new_ids=(1,), stop="full"))
    assert len(session.index) == 2


@pytest.mark.parametrize("bounds", [(-1, None), (4, -1)])
def test_negative_bounds_are_refused(bounds):
    with pytest.raises(ValueError, match="negative"):
        Drafter().begin([1, 1]).propose(*bounds)


@pytest.mark.parametrize(
    ("option", "first", "second"),
    [
        ("max_draft_tokens", 3, 9),
        ("prompt_lookup_min", 1, 3),
        ("prompt_lookup_max", 1, 2),
    ],
)
def test_every_option_has_an_effect(option, first, second):
    drafts = []
    for value in (first, second):
        policy = DraftPolicy(**{option: value})
        assert getattr(policy, option) == value
        drafts.append(Drafter(policy=policy).begin([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2]).propose(64).token_ids.tolist())
    assert drafts[0] != drafts[1]


@pytest.mark.parametrize(
    "options",
    [
        {"max_draft_tokens": 0},
        {"max_draft_tokens": -1},
        {"max_draft_tokens": 10**9},
        {"max_draft_tokens": 2.5},
        {"max_draft_tokens": True},
        {"prompt_lookup_min": 0},
        {"prompt_lookup_max": 10**9},
        {"prompt_lookup_min": 5, "prompt_lookup_max": 4},
    ],
)
def test_impossible_options_are_refused_by_name(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        DraftPolicy(**options)


def test_unknown_options_are_refused():
    for unknown in ("num_tokens", "length_factor"):  # the fixed rule is gone
        with pytest.raises(TypeError, match=unknown):
            DraftPolicy(**{unknown: 3})
    with pytest.raises(ValueError, match="DraftPolicy"):
        Drafter(policy={"max_draft_tokens": 3})
    with pytest.raises(ValueError, match="memory"):
        Drafter().begin([1]).finish(remember=True)
