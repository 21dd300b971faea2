"""TextPool: the texts of many lines in one set of arrays, each as if it were alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from zerodraft.lookup.copy.ngram_index import NgramIndex
from zerodraft.lookup.runtime._jit import dtype_of
from zerodraft.lookup.serving import _rows
from zerodraft.lookup.serving.text_pool import PLACES, TextPool
from zerodraft.lookup.session._state import State

NUM_LINES = 6
ids = st.one_of(
    st.lists(st.integers(0, 3), max_size=40),
    st.integers(0, 3000).map(lambda seed: np.random.default_rng(seed).integers(0, 2**31 - 1, seed).tolist()),
)


class Pool(RuleBasedStateMachine):
    """Lines are placed, grow, end and are used again; beside them plain lists of what they hold."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = TextPool()
        self.lines = np.zeros(NUM_LINES, dtype_of(_rows.Line))
        self.states = np.zeros(NUM_LINES, dtype_of(State))
        self.texts: dict[int, list[int]] = {}
        self.in_use: dict[str, int] = {}

    def index(self, number: int) -> NgramIndex:
        return self.pool.index_of(self.lines[number], self.states["text"][number : number + 1])

    def place(self, number: int, index: NgramIndex, room: int) -> None:
        index.reserve(room, room)
        self.pool.place(index, self.lines[number], self.lines)

    @rule(number=st.integers(0, NUM_LINES - 1), tokens=ids, room=st.integers(0, 600))
    def begin(self, number: int, tokens: list[int], room: int) -> None:
        if number in self.texts:
            self.pool.free(self.lines[number])
        self.states[number] = np.zeros(1, self.states.dtype)[0]
        index = NgramIndex(self.states["text"][number : number + 1])
        index.extend(tokens)
        self.place(number, index, room)
        self.texts[number] = list(tokens)

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), tokens=ids, room=st.integers(0, 600))
    def grow(self, data: st.DataObject, tokens: list[int], room: int) -> None:
        number = data.draw(st.sampled_from(sorted(self.texts)))
        index = self.index(number)
        index.extend(tokens)  # in place as long as there is room, else in arrays of its own
        self.place(number, index, room)
        self.texts[number] += tokens

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.texts)))
        self.pool.free(self.lines[number])
        del self.texts[number]

    @invariant()
    def every_text_is_whole(self) -> None:
        for number, text in self.texts.items():
            index, alone = self.index(number), NgramIndex()
            alone.extend(text)
            index.check_integrity()
            assert index.token_ids.tolist() == text
            assert index.match(64).positions.tolist() == alone.match(64).positions.tolist()

    @invariant()
    def no_two_share_a_place(self) -> None:
        for array, (at, size) in zip(self.pool.arrays, PLACES):
            parts = sorted((int(self.lines[n][at]), int(self.lines[n][size])) for n in self.texts)
            ends = [0, *(start + length for start, length in parts)]
            assert all(start >= end for (start, _), end in zip(parts, ends))
            assert ends[-1] <= len(array)

    @invariant()
    def what_is_given_back_is_used_again(self) -> None:
        for array, (_, size) in zip(self.pool.arrays, PLACES):
            assert len(array) <= max(1 << 12, self.most(size))

    def most(self, size: str) -> int:
        """Twice what was ever in use at once."""
        self.in_use[size] = max(self.in_use.get(size, 0), int(self.lines[size].sum()))
        return 2 * self.in_use[size]


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


@given(st.integers(1, 40), st.integers(1, 2000))
def test_what_came_and_went_leaves_nothing_behind(num_texts: int, length: int) -> None:
    """One line used again and again needs room for a few texts, however many there were."""
    pool, lines = TextPool(), np.zeros(1, dtype_of(_rows.Line))
    for number in range(num_texts):
        index = NgramIndex()
        index.extend(list(range(number, number + length)))
        pool.place(index, lines[0], lines)
        assert pool.index_of(lines[0], index._meta).token_ids.tolist() == list(range(number, number + length))
        pool.free(lines[0])
    assert sum(array.nbytes for array in pool.arrays) <= 5 * 4 * max(1 << 12, 4 * 5 * (length + 600))
