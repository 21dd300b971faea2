"""SuffixTree against the brute-force oracle, and its promises one by one."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reference.suffix_tree import SuffixOracle

from zerodraft.lookup.draft import MEMORY, Draft
from zerodraft.lookup.suffix import _suffix_core as core
from zerodraft.lookup.suffix.suffix_tree import MAX_BRANCHES, MAX_DRAFT_TOKENS, SuffixTree

Text = list[int | None]

# Few different tokens, so that everything repeats; sometimes a block that comes back, as text does.
tokens = st.integers(0, 3)
plain_texts = st.one_of(
    st.lists(tokens, max_size=40),
    st.lists(st.sampled_from([[0, 1, 2], [0, 1, 3], [1, 1], [2, 0, 1, 2]]), max_size=14).map(
        lambda parts: [token for part in parts for token in part]
    ),
)
texts = st.one_of(plain_texts, st.lists(st.one_of(tokens, tokens, tokens, st.none()), max_size=40))


def build(text: Text) -> SuffixTree:
    tree = SuffixTree()
    for token in text:
        if token is None:
            tree.add_barrier()
        else:
            tree.append(token)
    return tree


def build_in_runs(text: Text, cuts: set[int]) -> SuffixTree:
    """The same text by ``extend``, cut at barriers and at ``cuts``."""
    tree, run = SuffixTree(), []
    for i, token in enumerate(text):
        if token is None or i in cuts:
            tree.extend(run)
            run = []
        if token is None:
            tree.add_barrier()
        else:
            run.append(token)
    tree.extend(run)
    return tree


def nodes_of(draft: Draft, match_len: int, length: int) -> list[tuple[int, int, float, int]]:
    """A draft as the oracle writes it; origins as starts of the occurrence they were copied from."""
    depth: list[int] = []
    rows = []
    for token, parent, prob, origin in zip(draft.token_ids, draft.parents, draft.probs, draft.origin):
        depth.append(1 if parent < 0 else depth[parent] + 1)
        start = int(origin) - match_len - (depth[-1] - 1)
        rows.append((int(token), int(parent), float(prob), start))
    return rows


def same_draft(draft: Draft, expected: list[tuple[int, int, float, int]], oracle: SuffixOracle) -> None:
    match_len, length = oracle.match_len(), len(oracle.text)
    got = nodes_of(draft, match_len, length)
    assert [row[:2] for row in got] == [row[:2] for row in expected]
    assert [row[2] for row in got] == pytest.approx([row[2] for row in expected])
    for (_, _, _, start), (_, _, _, latest) in zip(got, expected):
        period = length - match_len - latest  # a copy past the end goes round: its origin is whole periods earlier
        assert (latest - start) % period == 0
        assert start <= latest
    assert all(0 <= int(origin) < length for origin in draft.origin)
    assert [oracle.text[int(origin)] for origin in draft.origin] == draft.token_ids.tolist()
    assert draft.match_len.tolist() == [match_len] * len(draft)
    draft.check()


@given(texts)
def test_match_len_and_integrity(text: Text) -> None:
    tree = build(text)
    tree.check_integrity()
    assert tree.match_len == SuffixOracle(text).match_len()
    assert len(tree) == len(text)


@given(texts)
def test_counts_of_every_substring(text: Text) -> None:
    tree, oracle = build(text), SuffixOracle(text)
    for start in range(len(text)):
        for end in range(start + 1, min(len(text), start + 6) + 1):
            pattern = text[start:end]
            if None not in pattern:
                assert tree.count(pattern) == len(oracle.starts(pattern))
    assert tree.count([9]) == 0
    assert tree.count([0, 9]) == 0


@given(texts)
def test_counts_lag_by_at_most_the_match(text: Text) -> None:
    """How far explicit counts are from true ones: the occurrences that begin in the match, nothing else."""
    tree, oracle = build(text), SuffixOracle(text)
    for start in range(len(text)):
        for end in range(start + 1, min(len(text), start + 4) + 1):
            pattern = text[start:end]
            if None not in pattern:
                missing = oracle.true_count(pattern) - tree.count(pattern)
                assert 0 <= missing <= oracle.match_len()


def test_counts_that_lag_the_example() -> None:
    """`1 2 | 1 3 50 51 52` three times: all but the first copy lie in one match, so the tree knows 1→3 once."""
    block = [1, 2, 1, 3, 50, 51, 52]
    tree = SuffixTree(block * 3)
    assert tree.count([1, 3]) == 1
    tree.append(99)
    assert tree.count([1, 3]) == 3


@given(texts)
def test_branches(text: Text) -> None:
    tree, oracle = build(text), SuffixOracle(text)
    match_len = oracle.match_len()
    expected = oracle.branches(text[len(text) - match_len :], MAX_BRANCHES) if match_len else []
    assert tree.branches() == [(token, count) for token, count, _ in expected]


@given(texts, st.integers(0, 12), st.sampled_from([0.0, 0.1, 0.3, 0.5, 1.0]))
def test_chain(text: Text, max_tokens: int, min_prob: float) -> None:
    oracle = SuffixOracle(text)
    draft = build(text).propose(max_tokens, min_prob=min_prob)
    same_draft(draft, oracle.propose(max_tokens, 1, min_prob), oracle)
    assert draft.is_chain


@settings(max_examples=200)
@given(texts, st.integers(0, 12), st.integers(2, MAX_BRANCHES), st.sampled_from([0.0, 0.1, 0.3, 1.0]))
@example([0, 0, 0, 0, 0, 1, 0], 4, 2, 0.0)  # equal shares, by other divisions
def test_tree(text: Text, max_tokens: int, max_branches: int, min_prob: float) -> None:
    oracle = SuffixOracle(text)
    draft = build(text).propose(max_tokens, max_branches=max_branches, min_prob=min_prob)
    same_draft(draft, oracle.propose(max_tokens, max_branches, min_prob), oracle)


@given(texts, st.integers(0, 12), st.integers(0, 5), st.integers(1, MAX_BRANCHES))
def test_max_depth_is_a_cut(text: Text, max_tokens: int, max_depth: int, max_branches: int) -> None:
    oracle = SuffixOracle(text)
    draft = build(text).propose(max_tokens, max_depth, max_branches=max_branches, min_prob=0.0)
    same_draft(draft, oracle.propose(max_tokens, max_branches, 0.0, max_depth), oracle)


@given(texts, st.sets(st.integers(0, 39), max_size=8))
def test_bulk_single_and_mixed_builds_are_one(text: Text, cuts: set[int]) -> None:
    one, other = build(text), build_in_runs(text, cuts)
    other.check_integrity()
    assert (one.match_len, one.num_nodes) == (other.match_len, other.num_nodes)
    for max_branches in (1, MAX_BRANCHES):
        a, b = (tree.propose(12, max_branches=max_branches, min_prob=0.0) for tree in (one, other))
        assert a.token_ids.tolist() == b.token_ids.tolist()
        assert a.parents.tolist() == b.parents.tolist()
        assert a.probs.tolist() == b.probs.tolist()
        assert a.origin.tolist() == b.origin.tolist()


@given(plain_texts)
def test_counting_late_or_at_once_or_anew_is_one(text: list[int]) -> None:
    late, at_once = SuffixTree(), SuffixTree()
    for token in text:
        late.append(token)
        at_once.append(token)
        at_once.branches()
    late.branches()
    anew = build([*text])
    anew._index()
    core.recount(anew._arrays)
    n = late.num_nodes
    for other in (at_once, anew):
        assert np.array_equal(late._arrays.nodes[1:n], other._arrays.nodes[1:n])
        assert np.array_equal(late._arrays.counts[1:n], other._arrays.counts[1:n])


@pytest.mark.parametrize("text", [[], [7], [7, 8]])
def test_nothing_to_continue(text: list[int]) -> None:
    assert len(SuffixTree(text).propose(8)) == 0
    assert SuffixTree(text).branches() == []
    assert SuffixTree(text).match_len == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ([5, 5], [5, 5, 5]),
        ([5, 5, 5], [5, 5, 5]),
        ([1, 2, 3, 1, 2], [3, 1, 2]),
        ([1, 2, 3, 1, 9], []),
        ([0, 0, 1, 0, 0], [1, 0, 0]),
        ([4, 0, 4], [0, 4, 0]),
    ],
)
def test_short_texts_copy_on_into_themselves(text: list[int], expected: list[int]) -> None:
    assert SuffixTree(text).propose(3).token_ids.tolist() == expected


def test_all_the_same_token_is_drafted_to_the_limit() -> None:
    tree = SuffixTree(np.full(100_000, 3, np.int32))
    assert tree.match_len == 99_999
    assert tree.propose(64).token_ids.tolist() == [3] * 64
    tree.append(4)  # now 100,000 leaves appear at once
    tree.append(3)
    assert tree.match_len == 1
    assert tree.branches() == [(3, 99_999), (4, 1)]


@pytest.mark.parametrize("token", [0, 1, 65_535, 65_536, 151_935, 2**31 - 1])
def test_ids_are_stored_exactly(token: int) -> None:
    tree = SuffixTree([token, 7, token])
    assert tree.propose(2).token_ids.tolist() == [7, token]
    assert tree.count([token]) == 1


BAD_IDS = [[-1], [-100], [2**31], [1.0], [[1, 2]], [True], ["a"], 5, [3, -1], np.array([1.5]), [2**63]]


@pytest.mark.parametrize("bad", BAD_IDS, ids=repr)
@pytest.mark.parametrize("call", [SuffixTree.extend, SuffixTree.count])
def test_refused_ids_change_nothing(bad: object, call: Callable[[SuffixTree, object], object]) -> None:
    tree = SuffixTree([1, 2, 1, 3, 1])
    tree.branches()  # a question, so that nothing is left to index
    before = [array.copy() for array in tree._arrays]
    with pytest.raises(ValueError, match="token ids"):
        call(tree, bad)
    assert all(np.array_equal(a, b) for a, b in zip(before, tree._arrays))
    tree.check_integrity()


@pytest.mark.parametrize("bad", [-1, 2**31, 1.0, True, "a", None])
def test_append_refuses_what_extend_refuses(bad: object) -> None:
    tree = SuffixTree([1, 2])
    with pytest.raises(ValueError, match="token ids"):
        tree.append(bad)  # type: ignore[arg-type]
    assert len(tree) == 2


def test_append_takes_numpy_integers() -> None:
    tree = SuffixTree([1, 2])
    tree.append(np.int64(1))  # type: ignore[arg-type]
    assert tree.match_len == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_tokens": -1},
        {"max_tokens": MAX_DRAFT_TOKENS + 1},
        {"max_tokens": 4, "max_depth": -1},
        {"max_tokens": 4, "max_branches": 0},
        {"max_tokens": 4, "max_branches": MAX_BRANCHES + 1},
        {"max_tokens": 4, "min_prob": -0.1},
        {"max_tokens": 4, "min_prob": 1.1},
        {"max_tokens": 4, "min_prob": float("nan")},
    ],
    ids=str,
)
def test_propose_refuses_what_it_cannot_do(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        SuffixTree([1, 1]).propose(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("budget", [0, 1, 2, 7, 64])
def test_budget_holds_with_many_continuations(budget: int) -> None:
    text: list[int] = []
    for i in range(200):
        text += [1, 2, 100 + i % 50, 300 + i]
    tree = SuffixTree([*text, 1, 2])
    draft = tree.propose(budget, max_branches=MAX_BRANCHES, min_prob=0.0)
    assert len(draft) == budget
    draft.check()


def test_barriers_are_neither_matched_nor_crossed_nor_drafted() -> None:
    tree = SuffixTree([1, 2, 3])
    tree.add_barrier()
    tree.extend([9, 2, 3])
    tree.add_barrier()
    assert (tree.match_len, len(tree.propose(8))) == (0, 0)
    tree.extend([2, 3])
    assert tree.match_len == 2
    assert len(tree.propose(8)) == 0  # both occurrences end at a barrier
    tree.extend([5, 2])
    assert tree.propose(2).token_ids.tolist() == [3, 5]
    assert tree.propose(2).probs.tolist() == pytest.approx([1, 1 / 3])  # one of three went on, two ended
    tree.check_integrity()


def test_ends_at_barriers_count_as_occurrences() -> None:
    tree = SuffixTree()
    for text in ([1, 2], [1, 2], [1, 2, 7]):
        tree.extend(text)
        tree.add_barrier()
    tree.extend([1, 2])
    assert tree.branches() == [(7, 1)]
    assert tree.propose(1).probs.tolist() == pytest.approx([1 / 3])


def test_source_is_stored() -> None:
    assert SuffixTree([1, 1]).propose(2, source=MEMORY).source.tolist() == [MEMORY, MEMORY]


def test_propose_does_not_change_the_text() -> None:
    tree = SuffixTree([1, 2, 1, 3, 1])
    first = tree.propose(4, max_branches=2)
    tree.propose(64)
    again = tree.propose(4, max_branches=2)
    assert first.token_ids.tolist() == again.token_ids.tolist()
    assert len(tree) == 5


@pytest.mark.parametrize("way", [copy.deepcopy, lambda tree: pickle.loads(pickle.dumps(tree))], ids=["copy", "pickle"])
def test_a_copy_is_a_tree_of_its_own(way: Callable[[SuffixTree], SuffixTree]) -> None:
    tree = SuffixTree([1, 2, 3, 1, 2])
    twin = way(tree)
    tree.extend([9] * 50)
    twin.extend([3, 1])
    assert twin.propose(2).token_ids.tolist() == [2, 3]
    assert len(tree) == 55
    tree.check_integrity()
    twin.check_integrity()


def test_growth_is_amortised() -> None:
    """Few reallocations: capacity grows by a quarter, 20,000 appends replace the text array under 40 times."""
    tree, replaced = SuffixTree(), 0
    last = tree._arrays.tokens
    for token in np.random.default_rng(1).integers(0, 50, 20_000).tolist():
        tree.append(token)
        replaced += tree._arrays.tokens is not last
        last = tree._arrays.tokens
    assert replaced < 40
    tree.check_integrity()


@pytest.mark.parametrize("max_branches", [1, MAX_BRANCHES])
def test_a_question_makes_the_room_it_needs(max_branches: int) -> None:
    """Tokens wait unindexed until something is asked; however many wait, the draft is that of a bulk build."""
    stream = np.random.default_rng(2).integers(0, 40, 3000).tolist()
    tree, asked = SuffixTree(), 0
    for length, token in enumerate(stream, start=1):
        tree.append(token)
        if length in (1, 2, 700, 2990) or length > 2990 or 20 <= length < 100:
            draft = tree.propose(8, max_branches=max_branches)
            expected = SuffixTree(stream[:length]).propose(8, max_branches=max_branches)
            assert draft.token_ids.tolist() == expected.token_ids.tolist()
            asked += 1
    assert asked > 90
    tree.check_integrity()


@pytest.mark.parametrize("vocab", [3, 40, 3000])
def test_wide_and_narrow_nodes(vocab: int) -> None:
    """Nodes of two edges, of more, and the root: all edges are found, in rows or in the table."""
    tree = SuffixTree(np.random.default_rng(3).integers(0, vocab, 2000))
    tree.check_integrity()
    is_wide = tree._arrays.nodes[1 : tree.num_nodes, core.LINK] < 0
    assert is_wide.any()
    assert not is_wide.all()


def test_rows_of_nodes_lie_in_one_cache_line() -> None:
    tree = SuffixTree(np.arange(1000) % 7)
    assert tree._arrays.nodes.ctypes.data % 64 == 0
    assert tree._arrays.nodes.strides == (32, 4)


def test_memory_stays_within_its_bound() -> None:
    rng = np.random.default_rng(5)
    for vocab in (2, 50, 30_000):
        tree = SuffixTree(rng.integers(0, vocab, 30_000))
        assert tree.nbytes <= 110 * len(tree)


@pytest.mark.parametrize("vocab", [1, 100, 30_000])
def test_bytes_per_token_do_not_grow_with_the_text(vocab: int) -> None:
    stream = np.random.default_rng(6).integers(0, vocab, 400_000)
    per_token = [SuffixTree(stream[:n]).nbytes / n for n in (50_000, 100_000, 200_000, 400_000)]
    assert all(longer <= 1.3 * shorter for shorter, longer in itertools.pairwise(per_token))
