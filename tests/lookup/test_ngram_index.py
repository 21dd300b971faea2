"""NgramIndex against the oracle (cases 2, 3, 4)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import reference.copies
import reference.text
from hypothesis import example, given
from hypothesis import strategies as st

from zerodraft.lookup.copy import _search, _text
from zerodraft.lookup.copy._work import LIMIT, Work
from zerodraft.lookup.copy.ngram_index import NgramIndex
from zerodraft.lookup.drafter import Drafter
from zerodraft.lookup.runtime._jit import dtype_of
from zerodraft.lookup.session.states import new_states

EDGE_IDS = [0, 65535, 65536, 151935, 2**31 - 1]
texts = st.lists(st.one_of(st.integers(0, 2), st.sampled_from(EDGE_IDS)), max_size=60)
# Long enough for the limits of a search: runs that come again and again, and what stands between them.
long_texts = st.lists(
    st.one_of(
        st.just(None),
        st.builds(lambda run, n: run * n, st.lists(st.integers(0, 2), min_size=1, max_size=6), st.integers(1, 40)),
        st.integers(1, 200).map(lambda length: list(range(10, 10 + length))),
    ),
    max_size=6,
)
# A text with barriers, in pieces of any size; -1 stands for a barrier.
pieces = st.lists(st.one_of(st.just(None), st.lists(st.integers(0, 2), max_size=12)), max_size=12)


def build(parts) -> tuple[NgramIndex, list[int]]:
    index, tokens = NgramIndex(), []
    for part in parts:
        if part is None:
            index.add_barrier()
            tokens.append(reference.text.BARRIER)
        else:
            index.extend(part)
            tokens += part
    return index, tokens


def same_links(one: NgramIndex, other: NgramIndex) -> bool:
    n = len(one)
    links = ((one.arrays.links_1, other.arrays.links_1), (one.arrays.links_n, other.arrays.links_n))
    return len(other) == n and all(np.array_equal(ours[:n], theirs[:n]) for ours, theirs in links)


def copies(index: NgramIndex, pointer: int, room: int, min_len: int, max_len: int) -> list[tuple[int, int, int]]:
    """(position, match length, evidence) of what a session with this text would copy, best first."""
    states = new_states(1, Drafter())
    states["text"]["length"] = len(index)
    states["pointer"], states["max_copies"] = pointer, room
    states["min_match"], states["max_match"] = min_len, max_len
    work = np.zeros(1, dtype_of(Work))[0]
    n = _search.find_copies(index.arrays, states[0], work)
    return list(zip(*(row[:n].tolist() for row in (work.at, work.lens, work.evidence))))


@given(st.lists(st.integers(0, 3), max_size=40))
def test_one_token_at_a_time_is_the_same_index(tokens):
    """A tuple of one goes its own way into the arena."""
    single, whole = NgramIndex(), NgramIndex()
    for token in tokens:
        single.extend((token,))
    whole.extend(tokens)
    single.check_integrity()
    assert single.token_ids.tolist() == tokens
    assert same_links(single, whole)


@pytest.mark.parametrize("bad", [-1, 2**31, 2**63, 1.0, True, "a", None, (1, 2)], ids=repr)
def test_one_bad_token_is_refused(bad):
    index = NgramIndex()
    index.extend((5,))
    with pytest.raises(ValueError, match="token ids"):
        index.extend((bad,))
    assert index.token_ids.tolist() == [5]


@given(pieces, st.integers(1, 12), st.integers(1, 9))
def test_matches_are_those_of_the_oracle(parts, limit, max_len):
    index, tokens = build(parts)
    index.check_integrity()
    assert index.token_ids.tolist() == tokens
    found = index.match(limit, max_len=max_len)
    expected = reference.copies.matches(tokens, limit, max_len) if tokens else []
    assert list(zip(found.positions.tolist(), found.match_lens.tolist())) == expected


@given(st.one_of(pieces, long_texts), st.floats(0, 1), st.integers(1, 4), st.integers(1, 3), st.integers(3, 50))
@example([[1] * 50], 0.2, 1, 40, 45)
@example([[1] * 50], 0.2, 1, 2, 2)
@example([[1] * 600], 0.1, 2, 1, 50)
@example([[7, 1, 8, *range(100, 400), *[9, 1] * 60], [1]], 0.0, 4, 1, 50)
def test_the_copies_are_those_of_the_oracle(parts, where, room, min_len, max_len):
    index, tokens = build(parts)
    pointer = int(where * len(tokens))
    found = copies(index, pointer, room, min_len, max_len)
    limits = _text.WINDOW, LIMIT, min_len, max_len
    expected = reference.copies.find_copies(tokens, pointer, *limits, room, reference.copies.Run(-1, -1, 0))
    assert found == (expected if len(tokens) > 1 and tokens[-1] >= 0 else [])


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(0, 70))
def test_a_short_text_is_searched_everywhere(tokens, pointer):
    index, _ = build([tokens])
    found = [(position, match) for position, match, _ in copies(index, pointer, 1, 1, 64)]
    expected = reference.copies.find_copy(tokens, pointer, 10**6, 10**6, 1, 64)
    assert found == ([expected] if expected[0] >= 0 else [])


@given(st.lists(texts, max_size=6))
def test_piece_by_piece_equals_all_at_once(parts):
    by_piece, tokens = build(parts)
    at_once = NgramIndex()
    at_once.extend(tokens)
    assert by_piece.token_ids.tolist() == at_once.token_ids.tolist()
    assert same_links(by_piece, at_once)


def test_scores_that_tie_exactly_go_to_the_latest():
    # match 1 at distance 0 and match 2 at distance 31 score the same: 1 - 0 == 2 - log2(32) / 5.
    tokens = [8, 1, *range(100, 129), 7, 1, 9, 7, 1]
    index, _ = build([tokens])
    assert copies(index, 2, 1, 1, 64)[0][:2] == (33, 2)
    tokens.insert(2, 50)  # one token farther away, and the nearer one wins
    index, _ = build([tokens])
    assert copies(index, 2, 1, 1, 64)[0][:2] == (2, 1)


def test_large_index_survives_growth_of_everything():
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, 2**31, 40_000)
    index, at_once = NgramIndex(), NgramIndex()
    for start in range(0, len(tokens), 777):
        index.extend(tokens[start : start + 777])
    at_once.extend(tokens)  # long enough to be indexed without the GIL
    for each in (index, at_once):
        each.check_integrity()
        assert each.token_ids.tolist() == tokens.tolist()
    assert same_links(index, at_once)


@pytest.mark.parametrize("bad", [[-1], [3, -100], [2**31], [1.5], [[1]], [True], ["a"]])
def test_bad_ids_leave_the_index_unchanged(bad):
    index, _ = build([[1, 2, 1]])
    with pytest.raises(ValueError):
        index.extend(bad)
    assert index.token_ids.tolist() == [1, 2, 1]
    index.check_integrity()


def test_the_check_sees_damage():
    index, _ = build([[1, 2, 3, 4, 5, 1, 2, 3, 4, 5]])
    index.arrays.links_n[9] = 3
    with pytest.raises(AssertionError, match="contradictions"):
        index.check_integrity()


@pytest.mark.parametrize(("limit", "max_len"), [(0, 4), (-1, 4), (4, 0)])
def test_limits_below_one_are_refused(limit, max_len):
    with pytest.raises(ValueError, match="at least 1"):
        build([[1, 1]])[0].match(limit, max_len=max_len)


def bytes_per_token(kind: str, length: int) -> float:
    rng = np.random.default_rng(3)
    if kind == "same":
        tokens = np.zeros(length, np.int32)
    elif kind == "random":
        tokens = rng.integers(0, 50_000, length).astype(np.int32)
    else:  # phrases that come back, as in code
        phrases = rng.zipf(1.3, (2000, 12)) % 5000
        tokens = phrases[rng.zipf(1.2, length // 12 + 1) % 2000].ravel()[:length].astype(np.int32)
    index = NgramIndex()
    index.extend(tokens)
    return index.nbytes / length


@pytest.mark.parametrize(("kind", "most"), [("same", 24), ("phrases", 24), ("random", 32)])
def test_bytes_per_token_stay_bounded_as_texts_grow(kind, most):
    sizes = [bytes_per_token(kind, length) for length in (50_000, 100_000, 200_000, 400_000)]
    assert max(sizes) <= most
    assert all(after <= 1.3 * before for before, after in itertools.pairwise(sizes))


@pytest.mark.parametrize("length", [1_000, 131_072])
@pytest.mark.parametrize("kind", ["hit", "miss", "same"])
def test_a_search_looks_at_a_bounded_number_of_places(kind, length):
    """Case 9 without a clock: a long text costs what its newest end costs (all links beyond the limit are cut)."""
    tokens = np.arange(length) % 977 if kind != "same" else np.zeros(length, np.int64)
    index = NgramIndex()
    index.extend(tokens)
    if kind == "miss":
        index.extend([5000])
    n = len(index)
    pointers = (n - 1, -1000)  # there, and far from everything
    before = [copies(index, pointer, 4, 1, 64) for pointer in pointers]
    for links in (index.arrays.links_1, index.arrays.links_n):
        last, seen = links[n - 1], 0
        while last >= 0 and seen < LIMIT:
            following, seen = links[last], seen + 1
            if seen == LIMIT:
                links[last] = 10**9  # would be read, and crash or change the answer, if the walk went on
            last = following
    assert [copies(index, pointer, 4, 1, 64) for pointer in pointers] == before
    assert [bool(found) for found in before] == [kind != "miss"] * 2
