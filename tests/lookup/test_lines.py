"""SessionLines against DraftSession: the same drafts, whatever comes, in one kernel call for all rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zerodraft.lookup.copy import _replacement_core as replacing
from zerodraft.lookup.cost import CostCurve
from zerodraft.lookup.draft import Draft, Outcome
from zerodraft.lookup.drafter import Drafter
from zerodraft.lookup.measure.replay import walk_known
from zerodraft.lookup.memory.draft_memory import DraftMemory
from zerodraft.lookup.policy import DraftPolicy
from zerodraft.lookup.serving import _batch_kernel as core
from zerodraft.lookup.serving.lines import SessionLines

CHEAP = CostCurve([(1, 1.0), (201, 2.0)])
LONG = CostCurve([(1, 1.0), (33, 2.0)], [(1, 1.0), (33, 3.0)], contexts=(16, 64))


def policy_of(cost: CostCurve = CHEAP, **options) -> DraftPolicy:
    return DraftPolicy(**{"cost": cost, "max_branches": 1, "max_draft_tokens": 12, **options})


class Batch:
    """Lines and, beside them, sessions that are driven one by one."""

    def __init__(self, drafter: Drafter, prompts: list[list[int]], width: int = 400) -> None:
        self.lines, self.width = SessionLines(drafter, 12), width
        self.rows = np.zeros((len(prompts), width), np.int32)
        self.lengths = np.array([len(p) for p in prompts], np.int64)
        for row, prompt in zip(self.rows, prompts):
            row[: len(prompt)] = prompt
        self.of_row = np.array([self.lines.begin(np.array(p, np.int32)) for p in prompts], np.int64)
        self.sessions = [drafter.begin(prompt) for prompt in prompts]
        self.drafts = [Draft.empty()] * len(prompts)

    def step(self, new: list[list[int]]) -> None:
        num_rows = len(new)
        for row, ids in enumerate(new):
            self.rows[row, self.lengths[row] : self.lengths[row] + len(ids)] = ids
            self.lengths[row] += len(ids)
        num_new, status = np.array([len(ids) for ids in new], np.int64), np.empty(num_rows, np.int64)
        first = True
        while self.lines.step(self.rows, self.lengths, num_new, self.of_row, status, self.width, first):
            assert set(status.tolist()) <= {core.DONE, core.GROW}
            for row in np.flatnonzero(status == core.GROW):
                line = int(self.of_row[row])
                known = self.lines.num_indexed(line)
                self.lines.append(line, self.rows[row, known : self.lengths[row]])
            first = False
        longest = int(self.lengths.max())
        for row, (session, ids) in enumerate(zip(self.sessions, new)):
            draft = self.drafts[row]
            agreed = 0
            while agreed < min(len(draft), len(ids)) and draft.token_ids[agreed] == ids[agreed]:
                agreed += 1
            session.commit(draft, Outcome(path=tuple(range(agreed)), new_ids=tuple(ids), stop="rejected"))
            room = min(12, self.width - int(self.lengths[row]) - 1)
            # The cost of a position follows the longest row of a batch; a session by itself knows its own only.
            session._tables = self.lines._tables
            session._tables_for = (num_rows, len(session.index).bit_length())
            assert longest >= len(session.index)
            self.drafts[row] = session.propose(room, room, num_rows=num_rows) if room > 0 else Draft.empty()
            drafted = self.lines.drafts[row, : self.lines.num_drafted[row]].tolist()
            assert drafted == self.drafts[row].token_ids.tolist()
            assert self.lines.text(int(self.of_row[row])).tolist() == session.index.token_ids.tolist()


texts = st.lists(st.integers(0, 3), max_size=30)
steps = st.lists(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=3, max_size=3), max_size=12)


@settings(deadline=None, max_examples=150)
@given(st.lists(texts, min_size=3, max_size=3), steps, st.sampled_from([CHEAP, LONG]), st.data())
def test_lines_draft_what_sessions_draft(prompts, news, cost, data):
    batch = Batch(Drafter(policy=policy_of(cost)), prompts, width=data.draw(st.sampled_from([110, 400])))
    for new in news:
        follow = data.draw(st.integers(0, 12))
        batch.step([[*draft.token_ids[:follow].tolist(), *ids] for draft, ids in zip(batch.drafts, new)][:3])
        if batch.lengths.max() > batch.width - 20:
            break


def test_replacements_are_drafted_again_as_in_a_session():
    """Two rows write the renamed text of their prompts, as far as it was drafted and one token more."""
    rng = np.random.default_rng(3)
    parts = rng.integers(0, 5000, (2, 8, 10)).tolist()
    olds = [[token for part in of_row for token in (*part, 6000, 6001)] for of_row in parts]
    news = [[token for part in of_row for token in (*part, 7000, 7001, 6001)] for of_row in parts]
    batch = Batch(Drafter(policy=policy_of()), olds)
    at, steps = [0, 0], 0
    while min(at) < len(news[0]):
        new = []
        for row, (draft, text) in enumerate(zip(batch.drafts, news)):
            outcome = walk_known(draft, text, at[row]) if at[row] < len(text) else None
            new.append(list(outcome.new_ids) if outcome is not None else [1])
            at[row] += len(new[-1])
        batch.step(new)
        steps += 1
    assert [int(session._replaced[1, replacing.HITS]) for session in batch.sessions] == [8, 8]
    assert steps < 0.3 * len(news[0])


def test_long_texts_make_room_and_draft_the_same():
    rng = np.random.default_rng(0)
    base = rng.integers(0, 5000, 700).tolist()
    batch = Batch(Drafter(policy=policy_of()), [base, base[100:300], base[:50]], width=6000)
    drafted = 0
    for number in range(300):
        new = []
        for row, draft in enumerate(batch.drafts):
            right = int(rng.integers(0, 13))
            new.append([*draft.token_ids[:right].tolist(), base[(number * 3 + row * 7) % 700]])
            drafted += len(draft)
        batch.step(new)
    assert drafted > 500


def test_a_row_that_is_not_the_lines_text_is_lost_and_the_session_says_when_it_is_spoilt():
    drafter = Drafter(policy=policy_of())
    text = [1, 2, 3, 40, *range(100, 200), 1, 2]
    other = [1, 2, 3, 41, *range(100, 200), 1, 2]
    lines = SessionLines(drafter, 8)
    line = lines.begin(np.array(text, np.int32))
    lines._state[line, core.SCRUBBED] = 60  # the comparison in turn is elsewhere just now
    rows, lengths = np.zeros((1, 300), np.int32), np.array([len(other) + 1], np.int64)
    rows[0, : len(other) + 1] = [*other, 3]
    status = np.empty(1, np.int64)
    assert lines.step(rows, lengths, np.array([1]), np.array([line]), status, 300, True) == 1
    assert status.tolist() == [core.LOST]
    assert lines.num_drafted[0] == 0
    assert lines.is_spoilt(line)
    assert lines.text(line).tolist() == text


def test_every_part_of_a_text_is_compared_in_turn():
    lines = SessionLines(Drafter(policy=policy_of()), 8)
    text = np.random.default_rng(1).integers(0, 10**6, 3000).astype(np.int32)
    line = lines.begin(text[:2000])
    rows = np.zeros((1, 3100), np.int32)
    rows[0, :3000] = text
    rows[0, 700] += 1
    status, lost_at = np.empty(1, np.int64), 0
    for length in range(2001, 2040):
        lines.step(rows, np.array([length]), np.array([1]), np.array([line]), status, 3100, True)
        if status[0] == core.LOST:
            lost_at = length
            break
    assert 2000 < lost_at <= 2000 + -(-2000 // core.SCRUB)


def test_the_memory_joins_and_learns():
    memory = DraftMemory(10_000)
    memory.add(list(range(100, 160)))
    lines = SessionLines(Drafter(policy=policy_of(), memory=memory), 12)
    line = lines.begin(np.array([1, 2, 3, 4, 5, 6], np.int32))
    rows = np.zeros((1, 300), np.int32)
    rows[0, :9] = [1, 2, 3, 4, 5, 6, 100, 101, 102]
    status = np.empty(1, np.int64)
    lines.step(rows, np.array([9]), np.array([3]), np.array([line]), status, 300, True)
    assert lines.num_drafted[0] == 0
    lines.merge_shared(line, 0, 12)
    n = int(lines.num_drafted[0])
    assert n >= 1
    assert lines.drafts[0, :n].tolist() == list(range(103, 103 + n))
    rows[0, 9 : 9 + n] = lines.drafts[0, :n]
    lines.step(rows, np.array([9 + n]), np.array([n]), np.array([line]), status, 300, True)
    lines.merge_shared(line, 0, 12)
    m = int(lines.num_drafted[0])
    assert m >= 1
    assert lines.drafts[0, :m].tolist() == list(range(103 + n, 103 + n + m))
    weights = lines._session(line)._shared._weights[0]
    assert not np.array_equal(weights, Drafter(policy=policy_of(), memory=memory).begin([1])._shared._weights[0])
    lines.merge_shared(line, 0, 0)


@pytest.mark.parametrize(("shortest", "drafts"), [(3, True), (4, False)])
def test_the_shortest_match_binds_the_memory(shortest, drafts):
    memory = DraftMemory(10_000)
    memory.add(list(range(100, 160)))
    lines = SessionLines(Drafter(policy=policy_of(prompt_lookup_min=shortest), memory=memory), 12)
    line = lines.begin(np.array([1, 2, 3], np.int32))
    rows = np.zeros((1, 300), np.int32)
    rows[0, :6] = [1, 2, 3, 100, 101, 102]
    status = np.empty(1, np.int64)
    lines.step(rows, np.array([6]), np.array([3]), np.array([line]), status, 300, True)
    lines.merge_shared(line, 0, 12)
    assert bool(lines.num_drafted[0]) == drafts


@pytest.mark.parametrize(
    ("drafter", "named"),
    [
        (Drafter(), "max_branches"),
        (Drafter(policy=policy_of(length_factor=2.0)), "length_factor"),
        (Drafter(policy=policy_of(), recycle=True), "recycle"),
        (Drafter(policy=policy_of(), suffix_tree=True), "suffix_tree"),
    ],
)
def test_what_lines_cannot_do_is_refused(drafter, named):
    with pytest.raises(ValueError, match=named):
        SessionLines(drafter, 8)


def test_the_draft_length_is_bounded_by_the_policys():
    with pytest.raises(ValueError, match="max_draft_tokens"):
        SessionLines(Drafter(policy=policy_of()), 13)


def test_lines_are_used_again():
    lines = SessionLines(Drafter(policy=policy_of()), 8)
    taken = [lines.begin(np.arange(5, dtype=np.int32)) for _ in range(20)]
    assert len(set(taken)) == lines.num_sessions == 20
    lines.finish(taken[3])
    assert lines.begin(np.arange(3, dtype=np.int32)) == taken[3]
    assert lines.text(taken[3]).tolist() == [0, 1, 2]


@given(st.lists(st.tuples(st.integers(-1, 9), st.integers(0, 4)), max_size=10), st.integers(1, 12))
def test_of_a_tree_the_likeliest_chain_is_kept(nodes, width):
    tree = np.zeros((6, len(nodes)), np.int32)
    for node, (parent, prob) in enumerate(nodes):
        tree[:, node] = [100 + node, min(parent, node - 1), 0, 3, 50 + node, 2]
        tree[2, node : node + 1].view(np.float32)[0] = prob / 4
    expected, node = [], -1
    while len(expected) < width:
        children = [i for i in range(len(nodes)) if tree[1, i] == node]
        if not children:
            break
        node = max(children, key=lambda i: (nodes[i][1], -i))
        expected.append(node)
    chain, drafted = np.zeros((6, width), np.int32), np.zeros(width, np.int32)
    n = core.keep_likeliest(tree, len(nodes), chain, drafted)
    assert n == len(expected)
    assert drafted[:n].tolist() == chain[0, :n].tolist() == [100 + node for node in expected]
    assert chain[1, :n].tolist() == list(range(-1, n - 1))
    assert chain[4, :n].tolist() == [50 + node for node in expected]
