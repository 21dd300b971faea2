"""EngineRows under an engine that swaps, preempts, resumes and reorders rows: against plain-Python books by request."""

from __future__ import annotations

import logging
import random

import numpy as np
import pytest
import reference.engine_batch
import reference.text
from hypothesis import given, settings
from hypothesis import strategies as st

from zerodraft.integrations.serving.engine_rows import EngineRows
from zerodraft.lookup.cost import CostCurve
from zerodraft.lookup.draft import Draft, Outcome
from zerodraft.lookup.drafter import Drafter, DraftSession
from zerodraft.lookup.memory.draft_memory import DraftMemory
from zerodraft.lookup.policy import DraftPolicy
from zerodraft.lookup.serving import _rows as core

MOST, WIDTH, MAX_ROWS = 8, 900, 6
POLICY = DraftPolicy(cost=CostCurve([(1, 1.0), (201, 2.0)]), max_branches=1, max_draft_tokens=MOST)


class Engine:
    """The plain-Python batch, and the rows under test beside it."""

    def __init__(self, memory: DraftMemory | None = None, width: int = WIDTH, **options) -> None:
        self.batch = reference.engine_batch.EngineBatch(MAX_ROWS, width)
        self.rows = EngineRows(
            Drafter(policy=POLICY, memory=memory),
            max_draft_tokens=MOST,
            max_rows=MAX_ROWS,
            max_length=width,
            **options,
        )
        self.drafts: list[list[int]] = []

    def step(self, new: list[list[int]], is_heard: bool = True) -> list[list[int]]:
        """Every row gets its new tokens ([]: it is not decoding); the proposer is asked unless it is not heard."""
        self.batch.sample(new)
        self.drafts = [[] for _ in new]
        if is_heard:
            buffer = np.array(self.batch.buffer, np.int32)
            lengths = np.array(self.batch.lengths() + [0] * (MAX_ROWS - len(new)), np.int32)
            self.drafts = self.rows.step(new, lengths, buffer)
            assert len(self.drafts) == len(new)
        return self.drafts

    def has_replacements(self, number: int) -> bool:
        """Whether the request's session has seen one token replaced by another."""
        line = int(self.rows._row_lines[self.batch.order.index(number)])
        return line >= 0 and bool(self.rows._lines._states[line].replaced.count)

    def follow(self, rng: random.Random, vocabulary: int) -> list[list[int]]:
        """New tokens for every row: as drafted for a while, then a token of its own."""
        new = []
        for number, draft in zip(self.batch.order, [*self.drafts, *[[]] * MAX_ROWS]):
            right = rng.randrange(len(draft) + 1)
            room = self.batch.width - len(self.batch.requests[number])
            new.append([*draft[:right], rng.randrange(vocabulary)][: max(room, 0)])
        return new


def hostile_twin(text: list[int], rng: random.Random) -> list[int]:
    """The same text but for one token, which its length and its end do not show; at times the very same."""
    twin = list(text)
    if len(twin) > 1 and rng.random() < 0.8:
        place = rng.randrange(len(twin) - 1)
        twin[place] = 4 + rng.randrange(3)
    return twin


@settings(deadline=None, max_examples=250)
@given(
    st.integers(0, 2**32),
    st.lists(st.sampled_from("estttxwdapg"), min_size=5, max_size=60),
    st.sampled_from([2, 4, 50]),
)
def test_no_row_ever_drafts_from_another_rows_text(seed, actions, vocabulary):
    rng = random.Random(seed)
    engine = Engine(finish_after=rng.choice([1, 3, 64]))
    batch, out, next_number = engine.batch, [], 0
    for action in actions:
        order = batch.order
        if action == "e" and len(order) < MAX_ROWS:  # a new request
            text = [rng.randrange(vocabulary) for _ in range(rng.choice([0, 3, 60, 600]))]
            batch.enter(next_number, text)
            next_number += 1
        elif action == "t" and order and len(order) < MAX_ROWS:  # one that looks like a running one
            batch.enter(next_number, hostile_twin(batch.requests[rng.choice(order)], rng))
            next_number += 1
        elif action == "x" and order:  # preempted, to come back
            row = rng.randrange(len(order))
            out.append(order[row])
            batch.leave(row)
        elif action == "a" and out and len(order) < MAX_ROWS:  # resumed
            batch.enter(out.pop(rng.randrange(len(out))))
        elif action == "d" and order:  # finished
            batch.leave(rng.randrange(len(order)))
        elif action == "w" and len(order) > 1:  # swapped, and a twin takes the place of its model
            batch.swap(*rng.sample(range(len(order)), 2))
        elif action == "p" and order:  # finished, and a twin that has grown as much stands in its row in the same step
            row = rng.randrange(len(order))
            text = hostile_twin(batch.requests[order[row]], rng)
            batch.order[row] = next_number
            batch.requests[next_number] = text
            batch.write()
            next_number += 1
        new = engine.follow(rng, vocabulary)
        if action == "s" and new:
            new[rng.randrange(len(new))] = []  # a row that is not decoding in this step
        for number, ids, draft in zip(batch.order, new, engine.step(new, is_heard=action != "g")):
            text = batch.requests[number]
            assert len(draft) <= MOST
            assert not draft or len(text) + len(draft) + 1 <= WIDTH
            assert ids or not draft
            if engine.has_replacements(number):  # a copy, what replaced something, the copy again, and once more
                assert reference.text.num_stretches(text, draft) <= 5, (text, draft)
            else:
                assert reference.text.copies_own_text(text, draft), (text, draft)
    assert engine.rows.counts["odd_rows"] == 0
    assert engine.rows.num_sessions <= 2 * MAX_ROWS
    engine.rows.close()
    assert engine.rows.num_sessions == 0


def play(engine: Engine, rng: random.Random, disturb: bool) -> tuple[int, dict[int, DraftSession]]:
    """60 steps of different texts, each against a session of its own; (tokens drafted, sessions)."""
    batch, out, drafted = engine.batch, [], 0
    sessions: dict[int, DraftSession] = {}
    last: dict[int, Draft] = {}
    pages = {number: [rng.randrange(10**6) for _ in range(9)] for number in range(9)}
    for time in range(70):
        if len(batch.order) < MAX_ROWS and time % 4 == 0 and len(sessions) < 9:
            number = len(sessions)
            batch.enter(number, pages[number] * 3)
            sessions[number] = engine.rows._lines._drafter.begin(pages[number] * 3)
        if disturb and len(batch.order) > 2:
            batch.swap(*rng.sample(range(len(batch.order)), 2))
            if time % 7 == 3:
                out.append(batch.order[1])
                batch.leave(1)
            if time % 7 == 6 and len(batch.order) < MAX_ROWS:
                batch.enter(out.pop())
        new = []
        for number in batch.order:
            draft = last.get(number, Draft.empty()).token_ids.tolist()
            right = rng.randrange(len(draft) + 1)
            new.append([*draft[:right], rng.choice(pages[number])])
        drafts = engine.step(new)
        for number, ids, got in zip(batch.order, new, drafts):
            draft, session = last.get(number, Draft.empty()), sessions[number]
            agreed = sum(
                1 for i in range(min(len(draft), len(ids))) if draft.token_ids[: i + 1].tolist() == ids[: i + 1]
            )
            session.commit(draft, Outcome(path=tuple(range(agreed)), new_ids=tuple(ids), stop="rejected"))
            room = min(MOST, engine.batch.width - len(batch.requests[number]) - 1)
            last[number] = session.propose(room, room, num_rows=len(batch.order))
            assert got == last[number].token_ids.tolist()
            drafted += len(got)
    return drafted, sessions


@pytest.mark.parametrize("disturb", [False, True])
def test_every_request_drafts_as_a_session_of_its_own(disturb):
    """Swapped at every step and preempted now and then: the sessions are the same as if every row had stayed alone."""
    engine = Engine(width=1500)
    drafted, sessions = play(engine, random.Random(5), disturb)
    assert drafted > 300
    assert engine.rows.counts["texts"] == len(sessions)  # none was ever begun twice
    assert (engine.rows.counts["texts_found_again"] > 100) == disturb


def test_a_row_that_stays_is_read_only_where_it_is_new_or_drafted_from():
    """What is read per step does not grow with the text: the rest may be anything for a while."""
    rng = np.random.default_rng(2)
    page = rng.integers(0, 10**6, 5000).tolist()
    engine = Engine(width=12_000)
    engine.batch.enter(0, page + page[:40])
    engine.step([[page[40]]])
    assert engine.drafts == [page[41:49]]
    text = engine.batch.requests[0]
    text[4000:4100] = [7] * 100  # far from everything that this step has reason to look at
    engine.batch.write()
    engine.step([page[41:50]])
    assert engine.drafts == [page[50:58]]
    assert engine.rows.counts["texts"] == 1
    for _ in range(5020 // core.SCRUB + 1):  # and yet it is found out
        engine.step([[1]])
    assert engine.rows.counts["texts"] == 2


def test_a_draft_is_read_in_the_row_and_nowhere_else():
    rng = np.random.default_rng(3)
    page = rng.integers(0, 10**6, 2000).tolist()
    engine = Engine(width=5000)
    engine.batch.enter(0, page + page[1000:1040])
    engine.step([[page[1040]]])
    assert engine.drafts == [page[1041:1049]]
    twin = list(engine.batch.requests[0])
    twin[1045] = 5
    engine.batch.requests[1], engine.batch.order[0] = twin, 1
    engine.batch.write()
    engine.step([[page[1041]]])
    assert engine.drafts == [[*page[1042:1045], 5, *page[1046:1050]]]
    assert engine.rows.counts["texts"] == 2


def test_swapped_rows_of_one_length_keep_their_sessions():
    engine = Engine()
    page = list(range(300))
    engine.batch.enter(0, [*page, 500, 501, *page[:40]])
    engine.batch.enter(1, [*page, 500, 502, *page[40:80]])
    for step in range(6):
        engine.batch.swap(0, 1)
        assert all(engine.step([[7], [7]] if step % 2 else [[3], [60]]))
    assert engine.rows.counts["texts"] == 2
    assert engine.rows.counts["texts_found_again"] == 10


def remembered(memory: DraftMemory) -> list[list[int]]:
    return [ids.tolist() for segment in memory._shelf for ids, _ in segment.live_texts()]


def test_missing_is_not_finished():
    memory = DraftMemory(1000)
    engine = Engine(memory, remember="output", finish_after=5)
    engine.batch.enter(0, [1, 2, 3, 4])
    engine.batch.enter(1, [9, 8, 7])
    engine.step([[5, 6], [6]])
    engine.batch.leave(0)
    for token in (11, 12, 13):
        engine.step([[token]])
    assert remembered(memory) == []
    engine.batch.enter(0)  # preempted, it was
    engine.step([[14], [7]])
    assert engine.rows.counts["texts"] == 2
    engine.batch.leave(1)
    for token in range(20, 27):
        engine.step([[token]])
    assert remembered(memory) == [[5, 6, 7]]
    engine.rows.close()
    assert remembered(memory) == [[5, 6, 7], [6, 11, 12, 13, 14, *range(20, 27)]]


def test_one_that_comes_back_too_late_is_remembered_in_two_parts():
    memory = DraftMemory(1000)
    engine = Engine(memory, remember="output", finish_after=2)
    engine.batch.enter(0, [1, 2])
    engine.batch.enter(1, [9])
    engine.step([[3, 4], [1]])
    engine.batch.leave(0)
    for token in (11, 12, 13):
        engine.step([[token]])
    assert remembered(memory) == [[3, 4]]
    engine.batch.enter(0)
    engine.step([[14], [5]])
    engine.step([[15], [6]])
    engine.rows.close()
    assert sorted(remembered(memory)) == [[1, *range(11, 16)], [3, 4], [5, 6]]


@pytest.mark.parametrize(("remember", "first"), [("output", [3, 99]), ("both", [1, 2, 3, 99])])
def test_what_follows_the_end_of_a_text_in_its_last_step_is_not_remembered(remember, first):
    memory = DraftMemory(1000)
    engine = Engine(memory, remember=remember, end_ids=[99, 98])
    engine.batch.enter(0, [1, 2])
    engine.batch.enter(1, [9, 99, 9])  # an end in a prompt is none
    engine.step([[3], [1]])
    engine.step([[99, 5, 6], [1]])
    engine.batch.leave(0)
    engine.step([[1]])
    assert remembered(memory) == [first]
    engine.batch.leave(0)
    engine.step([])
    assert remembered(memory) == [first]


def test_a_row_at_its_greatest_length_is_finished_when_it_goes():
    memory = DraftMemory(1000)
    engine = Engine(memory, remember="output", width=20)
    engine.batch.enter(0, list(range(15)))
    engine.step([[1, 2]])
    engine.step([[3, 4, 5]])
    assert engine.drafts == [[]]
    engine.batch.leave(0)
    engine.step([])
    assert remembered(memory) == [[1, 2, 3, 4, 5]]


def test_the_next_turn_of_a_talk_goes_on_in_the_same_row_and_what_the_user_said_is_not_remembered():
    memory = DraftMemory(1000)
    engine = Engine(memory, remember="output")
    engine.batch.enter(0, [1, 2, 3])
    engine.step([[4, 5]])
    engine.batch.requests[0] += [60, 61, 62]  # what the user said next
    engine.batch.write()
    engine.step([[7]])
    engine.rows.close()
    assert remembered(memory) == [[4, 5], [7]]
    assert engine.rows.counts["texts"] == 1


def test_nothing_is_remembered_unless_asked_for():
    memory = DraftMemory(1000)
    engine = Engine(memory)
    engine.batch.enter(0, [1, 2, 3])
    engine.step([[4, 5]])
    engine.rows.close()
    assert remembered(memory) == []


def test_a_later_request_drafts_from_an_earlier_ones_output():
    memory = DraftMemory(1000)
    engine = Engine(memory, remember="output", end_ids=[99])
    engine.batch.enter(0, [1, 2, 3])
    engine.step([[*range(40, 70), 99]])
    engine.batch.leave(0)
    engine.batch.enter(1, [5])
    engine.step([[6]])
    assert engine.step([[44, 45, 46]])[0][:2] == [47, 48]


def test_namespaces_do_not_see_each_other():
    memory = DraftMemory(1000)
    for namespace, found in (("a", False), ("a", True), ("b", False)):
        engine = Engine(memory, remember="output", namespace=namespace)
        engine.batch.enter(0, [1, 2, 3])
        assert bool(engine.step([[44, 45, 46]])[0]) == found
        engine.step([list(range(47, 70))])
        engine.rows.close()


ODD = {
    "ids below zero": (np.full((6, 50), -1, np.int32), [5, 5]),
    "longer than the row": (np.ones((6, 50), np.int32), [51, 5]),
    "shorter than what is new": (np.ones((6, 50), np.int32), [0, 5]),
    "length below zero": (np.ones((6, 50), np.int32), [-3, 5]),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_rows_draft_nothing_and_are_said_once(name, caplog):
    buffer, lengths = ODD[name]
    buffer[1] = [1, 2] * 25
    rows = EngineRows(Drafter(policy=POLICY), max_draft_tokens=MOST, max_rows=6, max_length=50)
    with caplog.at_level(logging.WARNING):
        for more in range(3):
            drafts = rows.step([[1], [1]], np.array(lengths) + np.array([0, more]), buffer)
            assert drafts[0] == []
            assert drafts[1][:2] == ([2, 1], [1, 2], [2, 1])[more][: len(drafts[1])] != []
    assert rows.counts["odd_rows"] == 3
    assert len(caplog.records) == 1


def test_arrays_of_another_kind_are_refused():
    rows = EngineRows(Drafter(policy=POLICY), max_draft_tokens=MOST, max_rows=6, max_length=50)
    with pytest.raises(TypeError):
        rows.step([[1]], np.array([5]), np.ones((6, 50), np.int64))
    with pytest.raises(ValueError, match="at least 2"):
        rows.step([[1], [1]], np.array([5]), np.ones((6, 50), np.int32))


def test_sessions_of_missing_texts_are_bounded():
    engine = Engine(finish_after=10**6)
    for number in range(50):
        engine.batch.enter(number, [number, 1, 2, 3])
        engine.step([[4]])
        engine.batch.leave(0)
    engine.step([])
    assert engine.rows.num_sessions == MAX_ROWS
