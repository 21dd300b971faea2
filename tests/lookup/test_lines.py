"""SessionLines against DraftSession: the same drafts, whatever comes, in one kernel call for all rows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.tree import likeliest_chain

from zerodraft.lookup import _block, _merge
from zerodraft.lookup.cost import CostCurve
from zerodraft.lookup.draft import Draft, Outcome
from zerodraft.lookup.drafter import Drafter
from zerodraft.lookup.measure.replay import walk_known
from zerodraft.lookup.memory.draft_memory import DraftMemory
from zerodraft.lookup.policy import DraftPolicy
from zerodraft.lookup.serving import _rows as core
from zerodraft.lookup.serving.lines import SessionLines
from zerodraft.lookup.sources.phrases import PhraseBook
from zerodraft.lookup.sources.source import Source

CHEAP = CostCurve([(1, 1.0), (201, 2.0)])
LONG = CostCurve([(1, 1.0), (33, 2.0)], [(1, 1.0), (33, 3.0)], contexts=(16, 64))


def policy_of(cost: CostCurve = CHEAP, **options) -> DraftPolicy:
    return DraftPolicy(**{"cost": cost, "max_branches": 1, "max_draft_tokens": 12, **options})


class Batch:
    """Lines and, beside them, sessions that are driven one by one."""

    def __init__(
        self, drafter: Drafter, prompts: list[list[int]], width: int = 400, namespace: str | None = None
    ) -> None:
        self.lines, self.width = SessionLines(drafter, 12, namespace), width
        self.memory, self.namespace = drafter.memory, namespace
        self.rows = np.zeros((len(prompts), width), np.int32)
        self.lengths = np.array([len(p) for p in prompts], np.int64)
        for row, prompt in zip(self.rows, prompts):
            row[: len(prompt)] = prompt
        self.of_row = np.array([self.lines.begin(np.array(p, np.int32)) for p in prompts], np.int64)
        self.sessions = [drafter.begin(prompt, namespace=namespace) for prompt in prompts]
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
            # A batch looks into the memory before it learns, a session before it drafts; and the cost of a position
            # follows the longest row of a batch, while a session by itself knows its own only.
            session._known = session._known._replace(tables=self.lines._tables)
            if self.memory is not None:
                view = self.memory.view(self.namespace)
                session._view, session._known = view, session._known._replace(segments=view.records)
            session.commit(draft, Outcome(path=tuple(range(agreed)), new_ids=tuple(ids), stop="rejected"))
            room = min(12, self.width - int(self.lengths[row]) - 1)
            session._tables_for = (num_rows, len(session.index).bit_length())
            assert longest >= len(session.index)
            self.drafts[row] = chain_of(session.propose(room, room, num_rows=num_rows)) if room > 0 else Draft.empty()
            drafted = self.lines.drafts[row, : self.lines.num_drafted[row]].tolist()
            assert drafted == self.drafts[row].token_ids.tolist()
            assert different(self.lines._states[self.of_row[row]], session._states[0]) == []
            assert self.lines.text(int(self.of_row[row])).tolist() == session.index.token_ids.tolist()


def different(one: Any, other: Any, name: str = "state") -> list[str]:
    """Fields of two records that differ; which block of a file was asked for is nobody's state."""
    if one.dtype.names is None:
        return [] if np.array_equal(one, other) else [f"{name}: {one} and {other}"]
    names = [field for field in one.dtype.names if not field.startswith("fault_")]
    return [found for field in names for found in different(one[field], other[field], f"{name}.{field}")]


def chain_of(draft: Draft) -> Draft:
    """What an engine that verifies chains takes of a draft."""
    kept = np.zeros(len(draft), np.bool_)
    kept[likeliest_chain(draft.parents.tolist(), draft.probs.tolist())] = True
    return draft.only(kept)


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
    assert [int(session._states[0].replaced.kept[0].hits) for session in batch.sessions] == [8, 8]
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
    lines._lines[line].scrubbed = 60  # the comparison in turn is elsewhere just now
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


changes = st.one_of(
    st.tuples(st.just("add"), st.lists(st.integers(0, 3), min_size=1, max_size=30)),
    st.tuples(st.just("evict"), st.integers(0, 60)),
    st.tuples(st.just("clear"), st.just(0)),
    st.tuples(st.just("nothing"), st.just(0)),
)


@settings(deadline=None, max_examples=100)
@given(
    st.lists(texts, min_size=3, max_size=3),
    st.lists(texts, max_size=6),
    steps,
    st.lists(changes, min_size=12, max_size=12),
    st.sampled_from([None, "a"]),
    st.integers(1, 3),
    st.data(),
)
def test_lines_with_a_memory_draft_what_sessions_draft(prompts, stored, news, changed, namespace, shortest, data):
    """Whatever is added to the memory, pushed out of it or cleared meanwhile."""
    memory = DraftMemory(200, min_match_len=shortest)
    for number, text in enumerate(stored):
        memory.add(text, (namespace, "other")[number % 3 == 2])
    batch = Batch(Drafter(policy=policy_of(), memory=memory), prompts, namespace=namespace)
    for new, (change, argument) in zip(news, changed):
        follow = data.draw(st.integers(0, 12))
        batch.step([[*draft.token_ids[:follow].tolist(), *ids] for draft, ids in zip(batch.drafts, new)])
        if change == "add":
            memory.add(argument, namespace)
        elif change == "evict":
            memory.evict(argument)
        elif change == "clear":
            memory.clear(namespace)


def test_a_text_of_the_memory_is_followed_by_several_rows():
    """And the whole of it in few steps: what agrees is believed, and the copy is followed where it stands."""
    rng = np.random.default_rng(4)
    stored = rng.integers(0, 5000, (3, 150)).tolist()
    memory = DraftMemory(10_000)
    memory.preload(stored)
    batch, at, steps = Batch(Drafter(policy=policy_of(), memory=memory), [[9001], [9002], [9003]]), [0, 0, 0], 0
    while min(at) < 150:
        new = []
        for row, (draft, text) in enumerate(zip(batch.drafts, stored)):
            come = text[at[row] :] or [1]
            agreed = 0
            while agreed < min(len(draft), len(come) - 1) and draft.token_ids[agreed] == come[agreed]:
                agreed += 1
            new.append(come[: agreed + 1])
            at[row] += len(new[-1])
        batch.step(new)
        steps += 1
    assert steps < 30


def one_line(lines: SessionLines, prompt: list[int]) -> tuple[int, Callable[[list[int]], list[int]]]:
    """A line, and a function that appends tokens to its row and returns what is drafted then."""
    line = lines.begin(np.array(prompt, np.int32))
    row, length = np.zeros((1, 4000), np.int32), len(prompt)
    row[0, :length] = prompt

    def step(new: list[int]) -> list[int]:
        nonlocal length
        row[0, length : length + len(new)] = new
        length += len(new)
        status = np.empty(1, np.int64)
        lengths, num_new, numbers = np.array([length]), np.array([len(new)]), np.array([line])
        assert lines.step(row, lengths, num_new, numbers, status, 4000, True) == 0
        return lines.drafts[0, : lines.num_drafted[0]].tolist()

    return line, step


def test_the_memory_joins_and_learns():
    memory = DraftMemory(10_000)
    memory.add(list(range(100, 160)))
    lines = SessionLines(Drafter(policy=policy_of(), memory=memory), 12)
    line, step = one_line(lines, [1, 2, 3, 4, 5, 6])
    first = step([100, 101, 102])
    assert first == list(range(103, 103 + len(first))) != []
    before = lines._states[line].beliefs.copy()
    second = step(first)
    assert second == list(range(103 + len(first), 103 + len(first) + len(second))) != []
    after = lines._states[line].beliefs
    assert not np.array_equal(after[_block.MEMORY], before[_block.MEMORY])
    assert np.array_equal(after[: _block.MEMORY], before[: _block.MEMORY])
    assert np.array_equal(lines._states[lines.begin(np.array([1], np.int32))].beliefs, before)  # and only there


def test_a_line_drafts_from_its_namespace_only():
    memory = DraftMemory(10_000)
    memory.add(list(range(100, 160)), "a")
    for namespace in ("a", "b", None):
        lines = SessionLines(Drafter(policy=policy_of(), memory=memory), 12, namespace)
        assert bool(one_line(lines, [1, 2, 3])[1]([100, 101, 102])) == (namespace == "a")
    with pytest.raises(ValueError, match="namespace"):
        SessionLines(Drafter(policy=policy_of(), memory=memory), 12, 3)


@pytest.mark.parametrize(("shortest", "drafts"), [(3, True), (4, False)])
def test_the_shortest_match_binds_the_memory(shortest, drafts):
    memory = DraftMemory(10_000)
    memory.add(list(range(100, 160)))
    lines = SessionLines(Drafter(policy=policy_of(prompt_lookup_min=shortest), memory=memory), 12)
    assert bool(one_line(lines, [1, 2, 3])[1]([100, 101, 102])) == drafts


def damaged(folder: Path, namespace: str | None, *texts: list[int]) -> DraftMemory:
    """A memory of files, a byte of the tokens in the first of them changed."""
    memory = DraftMemory(directory=folder)
    for text in texts:
        memory.add(text, namespace)
        memory.save()
    path = max(folder.glob("*.zdseg"), key=lambda path: path.stat().st_size)
    content = bytearray(path.read_bytes())
    content[4096] ^= 1
    path.unlink()
    path.write_bytes(content)
    return DraftMemory.load(folder)


def test_a_damaged_file_is_said_once_and_drafting_goes_on(tmp_path, caplog):
    """The kernel stops at each block that was not checked yet; a damaged one takes its file out of use."""
    sound, broken = list(range(50_000, 50_400)), list(range(100, 40_000))
    lines = SessionLines(Drafter(policy=policy_of(), memory=damaged(tmp_path, None, broken, sound)), 12)
    _, other = one_line(lines, [5, 6, 7, 8])
    _, step = one_line(lines, [5, 6, 7, 8])
    with caplog.at_level(logging.WARNING):
        drafts = [step([103, 104, 105, 106]), step([5, 6]), step([50_003, 50_004, 50_005]), other([103, 104, 105])]
    assert [record.message for record in caplog.records if "damaged" in record.message] == [caplog.records[0].message]
    assert len(caplog.records) == 1
    assert drafts[0] == drafts[3] == []  # nothing of the damaged file
    assert drafts[1][:2] == [7, 8]  # of the row's own text
    assert drafts[2][:3] == [50_006, 50_007, 50_008]  # of the sound file


def test_files_are_checked_while_rows_are_stepped(tmp_path):
    """Rows that ask for a check, beside one that has to grow and one that has nothing to ask."""
    texts = [np.random.default_rng(seed).integers(0, 50_000, 30_000).tolist() for seed in range(3)]
    memory = DraftMemory(directory=tmp_path)
    memory.preload(texts)
    memory.save()
    unchecked = DraftMemory.load(tmp_path)
    batch = Batch(Drafter(policy=policy_of(), memory=unchecked), [[1], [2], [3]], width=2000)
    (segment,) = unchecked.view(None).segments
    checked = [int(segment.blocks.checked.sum())]
    for at in (100, 10_000, 29_000):
        batch.step([texts[0][at : at + 5], texts[1][at : at + 600], [60_000 + at]])
        assert batch.drafts[0].token_ids.tolist() == texts[0][at + 5 : at + 5 + len(batch.drafts[0])] != []
        assert batch.drafts[1].token_ids.tolist() == texts[1][at + 600 : at + 600 + len(batch.drafts[1])] != []
        checked.append(int(segment.blocks.checked.sum()))
    assert checked == sorted(set(checked))  # block by block, and not all of them
    assert checked[-1] < len(segment.blocks.checked)


def test_what_others_publish_is_drafted_after_a_refresh(tmp_path):
    ours, theirs = DraftMemory(directory=tmp_path), DraftMemory(directory=tmp_path)
    lines = SessionLines(Drafter(policy=policy_of(), memory=ours), 12)
    _, step = one_line(lines, [1, 2, 3])
    theirs.add(list(range(100, 160)))
    theirs.save()
    assert step([100, 101, 102]) == []
    ours.refresh()
    assert step([9, 120, 121, 122])[:2] == [123, 124]
    ours.clear(None)
    assert step([8, 110, 111, 112]) == []


def test_phrases_join_when_they_are_asked():
    pytest.importorskip("ahocorasick")
    lines = SessionLines(Drafter(policy=policy_of(), phrases=PhraseBook([list(range(50, 70))])), 12)
    assert lines.has_phrases
    assert not SessionLines(Drafter(policy=policy_of()), 12).has_phrases
    line, step = one_line(lines, [1, 2, 50])
    assert step([51]) == []
    lines.ask_phrases(line, 0, 12)
    assert lines.num_drafted[0] == 0
    assert step([52]) == []
    lines.ask_phrases(line, 0, 12)
    drafted = lines.drafts[0, : lines.num_drafted[0]].tolist()
    assert drafted == list(range(53, 53 + len(drafted))) != []
    source = lines._phrases[line][0]
    before = source._beliefs.copy()
    step(drafted)
    lines.ask_phrases(line, 0, 0)  # told what came, asked for nothing
    assert not np.array_equal(source._beliefs, before)
    assert lines.num_drafted[0] == 0


@pytest.mark.parametrize(
    ("drafter", "named"),
    [
        (Drafter(), "max_branches"),
        (Drafter(policy=policy_of(max_batch_tokens=8)), "max_batch_tokens"),
        (Drafter(policy=policy_of(), sources=[Source]), "sources"),
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
    parents = [min(parent, node - 1) for node, (parent, _) in enumerate(nodes)]
    tree = np.zeros((_block.NUM_ROWS, len(nodes)), np.int32)
    tree[_block.PARENT], tree[_block.MATCH], tree[_block.SOURCE] = parents, 3, 2
    tree[_block.TOKEN], tree[_block.ORIGIN] = 100 + np.arange(len(nodes)), 50 + np.arange(len(nodes))
    tree[_block.PROB].view(np.float32)[:] = [prob / 4 for _, prob in nodes]
    expected, drafted = likeliest_chain(parents, [prob for _, prob in nodes])[:width], np.zeros(width, np.int32)
    n = _merge.keep_likeliest(tree, len(nodes), drafted)
    assert n == len(expected)
    assert drafted[:n].tolist() == tree[_block.TOKEN, :n].tolist() == [100 + node for node in expected]
    assert tree[_block.PARENT, :n].tolist() == list(range(-1, n - 1))
    assert tree[_block.ORIGIN, :n].tolist() == [50 + node for node in expected]
    assert tree[_block.PROB].view(np.float32)[:n].tolist() == [nodes[node][1] / 4 for node in expected]
