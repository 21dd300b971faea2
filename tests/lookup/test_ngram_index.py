"""NgramIndex against the oracle (cases 2, 3, 4)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import reference.copies
import reference.text
from hypothesis import example, given
from hypothesis import strategies as st

from zerodraft.lookup.copy import _ngram_core as core
from zerodraft.lookup.copy.ngram_index import NgramIndex

EDGE_IDS = [0, 65535, 65536, 151935, 2**31 - 1]
texts = st.lists(st.one_of(st.integers(0, 2), st.sampled_from(EDGE_IDS)), max_size=60)
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


@given(st.lists(st.integers(0, 3), max_size=40))
def test_one_token_at_a_time_is_the_same_index(tokens):
    """A tuple of one goes its own way into the arena."""
    single, whole = NgramIndex(), NgramIndex()
    for token in tokens:
        single.extend((token,))
    whole.extend(tokens)
    single.check_integrity()
    assert single.token_ids.tolist() == tokens
    assert np.array_equal(single._links[:, : len(tokens)], whole._links[:, : len(tokens)])


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


@given(pieces, st.integers(0, 40), st.integers(0, 9), st.integers(1, 9), st.integers(1, 3), st.integers(3, 50))
@example([[1] * 50], 9, 9, 9, 40, 45)
@example([[1] * 50], 9, 9, 9, 2, 2)
def test_the_copy_is_the_one_of_the_oracle(parts, pointer, window, limit, min_len, max_len):
    index, tokens = build(parts)
    found = core.find_copy(index._tokens, index._links, len(index), pointer, window, limit, min_len, max_len)
    assert found == reference.copies.find_copy(tokens, pointer, window, limit, min_len, max_len)


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(0, 70))
def test_a_wide_search_considers_every_position(tokens, pointer):
    index, _ = build([tokens])
    bounded = core.find_copy(index._tokens, index._links, len(tokens), pointer, 128, 1, 1, 64)
    assert bounded == reference.copies.find_copy(tokens, pointer, 10**6, 10**6, 1, 64)


@given(st.lists(texts, max_size=6))
def test_piece_by_piece_equals_all_at_once(parts):
    by_piece, tokens = build(parts)
    at_once = NgramIndex()
    at_once.extend(tokens)
    assert by_piece.token_ids.tolist() == at_once.token_ids.tolist()
    n = len(tokens)
    assert np.array_equal(by_piece._links[:, :n], at_once._links[:, :n])


def test_scores_that_tie_exactly_go_to_the_latest():
    # match 1 at distance 0 and match 2 at distance 31 score the same: 1 - 0 == 2 - log2(32) / 5.
    tokens = [8, 1, *range(100, 129), 7, 1, 9, 7, 1]
    index, _ = build([tokens])
    assert core.find_copy(index._tokens, index._links, len(tokens), 2, 64, 8, 1, 64) == (33, 2)
    tokens.insert(2, 50)  # one token farther away, and the nearer one wins
    index, _ = build([tokens])
    assert core.find_copy(index._tokens, index._links, len(tokens), 2, 64, 8, 1, 64) == (2, 1)


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
    assert np.array_equal(index._links[:, : len(tokens)], at_once._links[:, : len(tokens)])


@pytest.mark.parametrize("bad", [[-1], [3, -100], [2**31], [1.5], [[1]], [True], ["a"]])
def test_bad_ids_leave_the_index_unchanged(bad):
    index, _ = build([[1, 2, 1]])
    with pytest.raises(ValueError):
        index.extend(bad)
    assert index.token_ids.tolist() == [1, 2, 1]
    index.check_integrity()


def test_the_check_sees_damage():
    index, _ = build([[1, 2, 3, 4, 5, 1, 2, 3, 4, 5]])
    index._links[1, 9] = 3
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
    n, limit, window = len(index), 8, 16
    before = core.find_copy(index._tokens, index._links, n, n - 1, window, limit, 1, 64)
    for family in range(2):
        last, seen = index._links[family, n - 1], 0
        while last >= 0 and seen < limit:
            following, seen = index._links[family, last], seen + 1
            if seen == limit:
                index._links[family, last] = 10**9  # would be read, and crash or change the answer, if the walk went on
            last = following
    assert core.find_copy(index._tokens, index._links, n, n - 1, window, limit, 1, 64) == before
    assert (before[0] >= 0) == (kind != "miss")
