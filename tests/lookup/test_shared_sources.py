"""Own text, prediction, memory and phrases in one draft (cases 1, 2, 5, 29)."""

from __future__ import annotations

import dataclasses
import logging
import threading
from fractions import Fraction

import numpy as np
import pytest
import reference.memory
import reference.merge
import reference.policy
import reference.session
from hypothesis import given, settings
from hypothesis import strategies as st

from zerodraft.lookup import _block
from zerodraft.lookup.copy import _copies
from zerodraft.lookup.copy._text import WINDOW
from zerodraft.lookup.copy._work import Work
from zerodraft.lookup.cost import CostCurve
from zerodraft.lookup.draft import CONTEXT, MEMORY, PHRASE, PREDICTION, Draft, Outcome
from zerodraft.lookup.drafter import Drafter
from zerodraft.lookup.memory import _stored
from zerodraft.lookup.memory.draft_memory import DraftMemory
from zerodraft.lookup.policy import DraftPolicy
from zerodraft.lookup.runtime._jit import dtype_of
from zerodraft.lookup.session._step import HARDLY_WRONG
from zerodraft.lookup.sources.phrases import PhraseBook

FREE = DraftPolicy(cost=CostCurve([(1, 1.0), (2, 1.0001)]))  # nodes cost next to nothing


def paths_of(draft: Draft) -> list[reference.merge.Path]:
    paths: list[reference.merge.Path] = []
    for token, parent in zip(draft.token_ids.tolist(), draft.parents.tolist()):
        paths.append(((*paths[parent], token)) if parent >= 0 else (token,))
    return paths


def remembering(text, namespace=None, **options) -> Drafter:
    drafter = Drafter(policy=FREE, memory=DraftMemory(**options))
    drafter.memory.add(text, namespace)
    return drafter


def test_memory_is_drafted_in_its_namespace_only():
    drafter = remembering(range(100, 120), "alice")
    draft = drafter.begin([7, 103, 104, 105, 106], namespace="alice").propose(8)
    assert draft.token_ids.tolist()[:4] == [107, 108, 109, 110]
    assert set(draft.source.tolist()) == {MEMORY}
    assert set(draft.origin.tolist()) == {-1}
    assert draft.match_len.tolist()[0] == 4
    for namespace in (None, "bob", ""):
        assert len(drafter.begin([7, 103, 104, 105, 106], namespace=namespace).propose(8)) == 0


@pytest.mark.parametrize(("remember", "known"), [(True, "output"), ("output", "output"), ("both", "both"), (False, "")])
def test_finish_remembers_what_it_is_told(remember, known):
    drafter = Drafter(policy=FREE, memory=DraftMemory())
    session = drafter.begin(list(range(10)), [500, 501, 502, 503, 504], namespace="a")
    session.commit(Draft.empty(), Outcome(path=(), new_ids=tuple(range(20, 40)), stop="full"))
    session.finish(remember)
    session.finish(remember)
    assert drafter.memory.num_tokens == {"output": 20, "both": 30, "": 0}[known]
    for text, kind in ((range(2, 6), ("both",)), (range(22, 26), ("output", "both")), (range(500, 504), ())):
        draft = drafter.begin(list(text), namespace="a").propose(4)
        assert bool(len(draft)) == (known in kind)


def test_what_cannot_be_remembered_is_an_error():
    session = Drafter(memory=DraftMemory()).begin([1])
    with pytest.raises(ValueError, match="remember"):
        session.finish("prompt")
    with pytest.raises(RuntimeError):
        session.propose(1)
    with pytest.raises(ValueError, match="memory"):
        Drafter().begin([1]).finish("output")
    with pytest.raises(ValueError, match="namespace"):
        Drafter().begin([1], namespace=3)
    for option in ("memory", "phrases", "policy"):
        with pytest.raises(ValueError, match=option):
            Drafter(**{option: object()})


def test_phrases_are_followed_token_by_token():
    drafter = Drafter(policy=FREE, phrases=PhraseBook([[1, 2, 3, 4, 5, 6]], min_match=2))
    session = drafter.begin([9, 1])
    assert len(session.propose(8)) == 0
    session.commit(Draft.empty(), Outcome(path=(), new_ids=(2,), stop="full"))
    draft = session.propose(8)
    assert draft.token_ids.tolist() == [3, 4, 5, 6]
    assert set(draft.source.tolist()) == {PHRASE}
    session.commit(draft, Outcome(path=(0, 1), new_ids=(3, 4, 7), stop="rejected"))
    assert len(session.propose(8)) == 0


def test_the_same_token_in_the_same_place_is_one_node():
    drafter = remembering([1, 2, 3, 4, 5, 6, 7, 8, 9])
    session = drafter.begin([3, 4, 5, 6, 7, 20, 3, 4, 5, 6])
    draft = session.propose(16)
    draft.check()
    assert draft.token_ids.tolist()[0] == 7
    assert {8, 20} <= set(draft.token_ids.tolist())  # memory and context differ after the 7
    shared = draft.token_ids.tolist().index(7)
    assert draft.origin[shared] == 4  # one node, wherever it was copied from, moves the pointer of the copy
    session.commit(draft, Outcome(path=(shared,), new_ids=(7, 30), stop="rejected"))
    assert session.copy_pointer == 5


small = st.lists(st.integers(0, 2), max_size=30)


@given(small, small, st.lists(small, max_size=3), st.lists(small, max_size=4), st.integers(0, 12), st.integers(0, 5))
def test_any_merged_draft_is_a_tree_within_its_bounds(prompt, prediction, remembered, steps, budget, depth):
    memory = DraftMemory(min_match_len=1, min_prob=0)
    memory.preload(remembered)
    phrases = PhraseBook([[0, 1, 2, 2, 1], [0, 1, 1, 1], [2, 2, 0, 1, 0, 1, 0, 1]], min_match=1)
    session = Drafter(policy=FREE, memory=memory, phrases=phrases).begin(prompt, prediction)
    alone = Drafter(policy=FREE).begin(prompt, prediction)
    for new in steps:
        draft = session.propose(budget, depth)
        draft.check()
        paths = paths_of(draft)
        assert len(draft) <= budget
        assert max(map(len, paths), default=0) <= depth
        assert set(draft.source.tolist()) <= {CONTEXT, PREDICTION, MEMORY, PHRASE}
        assert (draft.probs <= 1).all()
        assert (draft.probs >= 0).all()
        up = draft.parents
        assert (draft.probs[up >= 0] <= draft.probs[up[up >= 0]] + 1e-6).all()
        for node in np.flatnonzero(draft.origin >= 0):
            if draft.origin[node] < len(session.index):
                assert session.index.token_ids[draft.origin[node]] == draft.token_ids[node]
        path = []
        while draft.parents.tolist().count(path[-1] if path else -1):
            path.append(draft.parents.tolist().index(path[-1] if path else -1))
        ids = (*draft.token_ids[path].tolist(), *new)
        session.commit(draft, Outcome(path=tuple(path), new_ids=ids, stop="rejected"))
        alone.commit(Draft.empty(), Outcome(path=(), new_ids=ids, stop="rejected"))
        assert session.index.token_ids.tolist() == alone.index.token_ids.tolist()


class WithMemory:
    """A session with a memory and its oracle: every draft is compared, and what the session believes of its memory.

    What copies of the text propose is asked of their own kernel, which is compared elsewhere.
    """

    def __init__(self, policy: DraftPolicy, stored: list[list[int]], prompt: list[int], min_prob: float) -> None:
        self.policy, self.memory = policy, DraftMemory(10_000, min_prob=min_prob)
        self.memory.preload(stored)
        self.session = Drafter(policy=policy, memory=self.memory).begin(prompt)
        self.tables = policy.tables()
        self._chain: list[int] = []
        self._match = self._position = self._serial = 0
        self._pointer, self._pointer_serial = -1, 0

    def text_part(self, room: int, depth: int) -> reference.session.Part:
        """What the session's own text proposes."""
        session, state = self.session, self.session._states[0]
        block = np.empty((_block.NUM_ROWS, room), np.int32)
        work = np.zeros(1, dtype_of(Work))[0]
        n = _copies.write(session.index.arrays, state, self.tables, work, room, depth, block, 0)
        draft = Draft.from_block(block[:, :n].copy())
        nodes = [
            reference.merge.Node(*node) for node in zip(paths_of(draft), draft.probs.tolist(), draft.origin.tolist())
        ]
        return reference.session.Part(nodes, block[_block.PRICE, :n].view(np.float32).tolist())

    def stored_part(self, room: int) -> reference.session.Part:
        """What the memory proposes; it is remembered until the commit."""
        context, best = self.session.index.token_ids.tolist()[-4096:], (-1, 0, 0)
        limits, found = (WINDOW, _stored.LIMIT, self.policy.prompt_lookup_min, 4096), None
        segments = self.memory._shelf.of(None)
        for segment in [*(s for s in segments if s.serial == self._pointer_serial), *segments[::-1]]:
            is_own = segment.serial == self._pointer_serial
            arena = segment.index.token_ids.tolist()
            one = reference.memory.find_stored(arena, context, segment.floor, self._pointer if is_own else -1, *limits)
            score = Fraction(32 ** min(one[1], 32), 1 + one[2])
            if one[0] >= 0 and (found is None or score > Fraction(32 ** min(best[1], 32), 1 + best[2])):
                best, found = one, (segment.serial, arena)
        if found is None:
            return reference.session.Part([], [])
        self._serial, arena = found
        self._position, self._match, _ = best
        rest = arena[self._position : self._position + room]
        self._chain = rest[: rest.index(-1)] if -1 in rest else rest
        belief = reference.policy.believed(self.beliefs().tolist())
        of_kinds = self.tables.breaks.tolist(), self.tables.prices.tolist()
        return reference.session.stored_part(self._chain, self._match, belief, *of_kinds, self.memory.min_prob)

    def beliefs(self) -> np.ndarray:
        return self.session._states["beliefs"][0, _block.MEMORY].copy()

    def propose(self, room: int, depth: int) -> Draft:
        draft = self.session.propose(room, depth)
        draft.check()
        room, self._chain = min(room, self.policy.max_draft_tokens), []
        depth = min(room, depth)
        if not depth:
            return draft
        own = self.text_part(room, depth)
        parts = [own] if own.nodes and own.nodes[0].prob >= HARDLY_WRONG else [own, self.stored_part(depth)]
        expected = reference.session.drafted(parts, self.tables.costs.tolist(), room)
        assert paths_of(draft) == [node.path for node in expected]
        assert draft.probs.tolist() == pytest.approx([node.prob for node in expected], rel=1e-4, abs=1e-6)
        assert draft.origin.tolist() == [node.origin for node in expected]
        return draft

    def accept(self, draft: Draft, path: tuple[int, ...], more: list[int]) -> None:
        came = [*draft.token_ids[list(path)].tolist(), *more]
        expected, agreed = self.beliefs().tolist(), 0
        if self._chain:
            chain = self._chain, list(range(-1, len(self._chain) - 1)), self._match
            expected = reference.policy.learned_from_tree(expected, self.tables.breaks.tolist(), *chain, came, True)
            while agreed < min(len(came), len(self._chain)) and came[agreed] == self._chain[agreed]:
                agreed += 1
        if agreed:
            self._pointer, self._pointer_serial = self._position + agreed, self._serial
        self.session.commit(draft, Outcome(path=path, new_ids=tuple(came), stop="rejected"))
        assert self.beliefs() == pytest.approx(np.array(expected))
        self._chain = []


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=25), max_size=5),
    st.lists(st.integers(0, 3), max_size=25),
    st.lists(
        st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(0, 4), st.lists(st.integers(0, 3), max_size=4)),
        max_size=6,
    ),
    st.sampled_from([FREE.curve, CostCurve([(1, 1.0), (21, 2.0)]), CostCurve([(1, 1.0), (5, 2.0)])]),
    st.integers(1, 3),
    st.sampled_from([0.05, 0.3, 0.6]),
)
def test_a_session_with_a_memory_drafts_what_the_oracle_does(stored, prompt, steps, curve, shortest, min_prob):
    policy = DraftPolicy(cost=curve, max_draft_tokens=16, prompt_lookup_min=shortest)
    both = WithMemory(policy, stored, prompt, min_prob)
    for room, depth, take, new in steps:
        draft = both.propose(room, depth)
        leaf, path = len(draft) - 1, []
        while leaf >= 0:
            path.insert(0, leaf)
            leaf = int(draft.parents[leaf])
        both.accept(draft, tuple(path[:take]), [*new, 1])


def test_where_positions_are_dear_unlikely_memories_are_left_out():
    dear = DraftPolicy(cost=CostCurve([(1, 1.0), (2, 1.95)]))
    free = remembering(range(100, 120))
    context = [7, 103, 104, 105, 106]
    assert len(free.begin(context).propose(16)) > 0
    assert len(Drafter(policy=dear, memory=free.memory).begin(context).propose(16)) == 0


def test_a_memory_that_is_wrong_again_and_again_is_believed_less():
    drafter = remembering([*range(100, 110)] * 3)
    session = drafter.begin([1])
    chances = []
    for i in range(6):
        session.commit(Draft.empty(), Outcome(path=(), new_ids=(200 + i, 103, 104, 105, 106), stop="rejected"))
        draft = session.propose(8)
        mine = np.flatnonzero((draft.token_ids == 107) & (draft.parents == -1))
        chances.append(float(draft.probs[mine[0]]) if len(mine) else 0.0)
    assert chances[-1] < chances[0]
    fresh = drafter.begin([1, 103, 104, 105, 106]).propose(8)
    assert float(fresh.probs[0]) == pytest.approx(chances[0])  # and only within that session


def test_a_damaged_memory_file_does_not_stop_a_session(tmp_path, caplog):
    memory = DraftMemory(directory=tmp_path)
    memory.add(range(100, 40_000))
    memory.save()
    path = next(tmp_path.glob("*.zdseg"))
    content = bytearray(path.read_bytes())
    content[4096] ^= 1
    path.unlink()
    path.write_bytes(content)
    session = Drafter(policy=FREE, memory=DraftMemory.load(tmp_path)).begin([5, 6, 7, 103, 104, 105, 106, 5, 6])
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert len(session.propose(4))
            session.commit(Draft.empty(), Outcome(path=(), new_ids=(103, 104, 105, 106, 5, 6), stop="rejected"))
    assert len(caplog.records) == 1


@pytest.mark.parametrize("shortest", [1, 4, 5, 40, 600])
def test_the_shortest_match_binds_memory_and_phrases(shortest):
    policy = dataclasses.replace(FREE, prompt_lookup_min=shortest, prompt_lookup_max=4096)
    text = list(range(2000, 3000))
    drafter = Drafter(policy=policy, memory=DraftMemory(), phrases=PhraseBook([text], min_match=1))
    alone = Drafter(policy=policy, memory=drafter.memory)
    drafter.memory.add(text)
    for num_known in (shortest - 1, shortest):
        for source in (drafter, alone, Drafter(policy=policy, phrases=drafter.phrases)):
            draft = source.begin([7, *text[:num_known]]).propose(4)
            assert draft.token_ids.tolist()[:1] == (text[num_known : num_known + 1] if num_known == shortest else [])
        session = alone.begin(text[: shortest + 1])  # and where the copy of a memory is followed
        session.commit(
            session.propose(4), Outcome(path=(0,), new_ids=(text[shortest + 1], 9, *text[500 : 499 + shortest]))
        )
        assert len(session.propose(4)) == 0 or shortest == 1


def test_a_memory_that_can_never_match_is_refused():
    with pytest.raises(ValueError, match=r"max_tokens must be above prompt_lookup_min, got 100 and 100"):
        Drafter(policy=DraftPolicy(prompt_lookup_min=100), memory=DraftMemory(100))
    Drafter(policy=DraftPolicy(prompt_lookup_min=100), memory=DraftMemory(101))


def test_a_batch_is_its_rows():
    drafter = Drafter()
    prompts = [[1, 2, 3, 4, 1, 2], [5, 5, 5], [9]]
    sessions = [drafter.begin(prompt) for prompt in prompts]
    together = drafter.propose_batch(sessions, 8, [None, 2, 3])
    for prompt, depth, draft in zip(prompts, [None, 2, 3], together):
        alone = drafter.begin(prompt).propose(8, depth, num_rows=3)
        assert {f.name: getattr(draft, f.name).tolist() for f in dataclasses.fields(Draft)} == {
            f.name: getattr(alone, f.name).tolist() for f in dataclasses.fields(Draft)
        }
    assert [len(d) for d in drafter.propose_batch(sessions, [1, 0, 4])] == [1, 0, 0]
    with pytest.raises(ValueError, match="one per session"):
        drafter.propose_batch(sessions, [1, 2])
    assert drafter.propose_batch([], 4) == []


def test_threads_share_a_drafter():
    drafter = Drafter(policy=FREE, memory=DraftMemory(5_000), phrases=PhraseBook([list(range(900, 920))]))
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            rng = np.random.default_rng(number)
            for _ in range(40):
                session = drafter.begin(rng.integers(0, 30, 50), namespace=str(number % 2))
                for _ in range(10):
                    draft = session.propose(16)
                    draft.check()
                    new = (*draft.token_ids[:1].tolist(), int(rng.integers(0, 30)))
                    path = (0,) if len(draft) else ()
                    session.commit(draft, Outcome(path=path, new_ids=new, stop="rejected"))
                session.index.check_integrity()
                session.finish("both")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    drafter.memory.check_integrity()
    assert 4_000 < drafter.memory.num_tokens <= 5_000
