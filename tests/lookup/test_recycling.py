"""The table of successors and the tree drafted from it, against plain dictionaries (cases 1 to 5, 7, 29)."""

from __future__ import annotations

import numpy as np
import pytest
import reference.successors
from hypothesis import given, settings
from hypothesis import strategies as st

from zerodraft.lookup import _block
from zerodraft.lookup._prices import WORTH_FACTOR
from zerodraft.lookup.draft import RECYCLED, Draft, Outcome
from zerodraft.lookup.drafter import Drafter
from zerodraft.lookup.policy import DraftPolicy
from zerodraft.lookup.recycle import _recycling_core as core
from zerodraft.lookup.recycle.recycler_shelf import RecyclerShelf
from zerodraft.lookup.recycle.token_recycler import MIN_PROB, TokenRecycler

VOCAB = 12


def made(path, new_ids, stop="full", topk=None) -> Outcome:
    return Outcome(path=path, new_ids=new_ids, stop=stop, topk=topk)


def a_topk(rng, n):
    return np.array([rng.permutation(VOCAB)[: core.K] for _ in range(n + 1)], np.int32)


def a_tree(rng, n):
    parents = [int(rng.integers(-1, i)) if i else -1 for i in range(n)]
    seen, tokens = set(), []
    for parent in parents:
        token = next(int(t) for t in rng.permutation(VOCAB) if (parent, int(t)) not in seen)
        seen.add((parent, token))
        tokens.append(token)
    return tokens, parents


def a_path(rng, parents):
    path, node = [], -1
    while (below := [i for i, up in enumerate(parents) if up == node]) and rng.random() < 0.6:
        node = int(rng.choice(below))
        path.append(node)
    return path


def filled(seed, steps=8):
    """(recycler, oracle, context) after some random forwards."""
    rng = np.random.default_rng(seed)
    ours, theirs, context = TokenRecycler(), reference.successors.SuccessorTable(), rng.integers(0, VOCAB, 2).tolist()
    for _ in range(steps):
        tokens, parents = a_tree(rng, int(rng.integers(0, 7)))
        path, topk = a_path(rng, parents), a_topk(rng, len(tokens))
        new = [tokens[i] for i in path] + [int(topk[path[-1] + 1 if path else 0, 0])]
        pair = (context[-2] if len(context) > 1 else -1, context[-1])
        ours.update(pair, Draft.tree(tokens, parents), made(tuple(path), tuple(new), "rejected", topk))
        theirs.update(context, tokens, parents, path, topk.tolist())
        context += new
    return ours, theirs, context


def chances_of(recycler):
    return (recycler._counts[:, : core.K] / recycler._counts.sum(1, keepdims=True)).tolist()


def paths_of(block, n):
    paths = []
    for token, parent in zip(block[_block.TOKEN, :n].tolist(), block[_block.PARENT, :n].tolist()):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return paths


@settings(deadline=None)
@given(st.integers(0, 10**6))
def test_lists_and_levels_are_the_oracles(seed):
    ours, theirs, _ = filled(seed)
    ours.check_integrity()
    assert len(ours) == len(theirs.lists)
    for before in range(-1, VOCAB):
        for last in range(VOCAB):
            successors, kind = theirs.asked([last] if before < 0 else [before, last], [])[0]
            assert ours.successors(before, last) == successors
            if kind < core.ONE_AFTER_TWO:
                place = core.find(ours._lists.keys, core.pair_key(before, last) if kind >= core.TWO else last)
                assert ours._lists.levels[place] == kind % 4


@settings(deadline=None)
@given(st.integers(0, 10**6))
def test_ranks_are_counted_as_the_oracle_counts_them(seed):
    ours, theirs, context = filled(seed)
    rng = np.random.default_rng(seed)
    came = [int(token) for token in rng.integers(0, VOCAB, 4)]
    before, common = ours._counts.copy(), ours._common.tolist()
    for kind, rank in reference.successors.ranks_counted(theirs, context, common, came):
        before[kind, rank] += 1
        if before[kind].sum() >= core.COUNT_CAP:
            before[kind] *= 0.5
    ours.update(tuple(context[-2:]), Draft.empty(), made((), came))
    assert ours._counts == pytest.approx(before)


@settings(deadline=None)
@given(st.lists(st.integers(0, VOCAB - 1), max_size=40), st.integers(0, 10**6))
def test_a_text_that_was_read_is_known(text, seed):
    ours, theirs, _ = filled(seed)
    ours.read(np.array(text, np.int32))
    theirs.read(text)
    ours.check_integrity()
    for key, successors in theirs.lists.items():
        assert ours.successors(*(key if len(key) == 2 else (-1, *key))) == successors


@settings(deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(0, 24),
    st.integers(1, 8),
    st.sampled_from([0, 6]),
    st.floats(0.05, 1.0),
    st.lists(st.sampled_from([0.0, 0.0, 0.02, 0.1]), min_size=24, max_size=24),
)
def test_trees_are_the_oracles(seed, room, depth, num_held, price, slopes):
    ours, theirs, context = filled(seed)
    rng = np.random.default_rng(seed + 1)
    tree = np.zeros((_block.NUM_ROWS, num_held + room), np.int32)
    nodes = []
    tokens, parents = a_tree(rng, num_held)
    left = {-1: 1.0}
    for node, (token, parent) in enumerate(zip(tokens, parents)):
        left[node] = float(np.float32(left[parent] * rng.uniform(0.2, 0.6)))
        left[parent] -= left[node]
        nodes.append((token, parent, left[node]))
    tree[_block.TOKEN, :num_held], tree[_block.PARENT, :num_held] = tokens, parents
    tree[_block.PROB, :num_held].view(np.float32)[:] = [prob for _, _, prob in nodes]
    before = tree[:, :num_held].copy()
    common = [token for token in ours._common.tolist() if token >= 0]
    falling = sorted(slopes, reverse=True)  # the cost of a further position from 1, 2, ... positions on
    bounds = room, depth, MIN_PROB, [slope / WORTH_FACTOR for slope in falling]
    expected = reference.successors.recycled_nodes(theirs, chances_of(ours), context, common, nodes, *bounds, price)
    pair = (context[-2] if len(context) > 1 else -1, context[-1])
    size = ours.grow(pair, tree, num_held, room, depth, price, np.array([0.0, *falling, 0.0]))
    assert np.array_equal(tree[:, :num_held], before)  # what is held stays as it is
    added = dict(zip(paths_of(tree, size)[num_held:], tree[_block.PROB].view(np.float32)[num_held:size].tolist()))
    assert len(added) == size - num_held
    # a chance at the very edge of what pays may fall on either side, and equal chances come in any order
    assert abs(len(added) - len(expected)) <= 1
    n = min(len(added), len(expected))
    assert list(added.values())[:n] == pytest.approx([prob for _, prob in expected][:n], abs=1e-6)
    smallest = min([*added.values(), *(prob for _, prob in expected)], default=0.0)
    assert {path for path, prob in expected if prob > smallest + 1e-6} <= set(added)
    Draft.from_block(np.ascontiguousarray(tree[:, :size])).check()
    assert all(len(path) <= depth for path in added)
    assert set(tree[_block.SOURCE, num_held:size].tolist()) <= {RECYCLED}
    assert set(tree[_block.ORIGIN, num_held:size].tolist()) <= {-1}
    assert tree[_block.PRICE].view(np.float32)[num_held:size].tolist() == pytest.approx([price] * len(added))


def test_a_draft_of_recycled_successors_says_so():
    ours, theirs, _ = filled(3)
    known = next(key for key in theirs.lists if len(key) == 2)
    draft = ours.propose(known, 5)
    assert 0 < len(draft) <= 5
    assert set(draft.source.tolist()) == {RECYCLED}
    assert set(draft.origin.tolist()) == {-1}
    assert (np.diff(draft.probs) <= 0).all()


def test_costs_bound_the_tree_and_free_nodes_fill_the_budget():
    ours, _, context = filled(4, steps=30)
    pair, tree = (context[-2], context[-1]), np.empty((_block.NUM_ROWS, 24), np.int32)
    sizes = [ours.grow(pair, tree, 0, 24, 8, 1.0, np.full(26, slope)) for slope in (0.0, 0.02, 0.1, 0.3, 1.1)]
    assert sizes[0] == 24
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[2] < 24
    assert sizes[-1] == 0
    cheap = ours.grow(pair, tree, 0, 24, 8, 0.2, np.full(26, 0.1))
    assert cheap < sizes[2]


def test_probabilities_follow_the_text():
    """Where the best successor always comes its chance rises, where it never comes it falls."""
    topk = np.arange(8, dtype=np.int32)[None] + 2
    for came, rises in ((2, True), (3, False)):
        recycler = TokenRecycler()
        recycler.update((0, 1), Draft.empty(), made((), (2,), "full", topk))
        before = recycler.propose((0, 1), 1).probs[0]
        for _ in range(40):
            recycler.update((0, 1), Draft.empty(), made((), (came,), "full"))
        after = recycler.propose((0, 1), 1)
        assert (after.probs[0] > before) == rises
        assert after.token_ids[0] == (2 if rises else 3) or not rises


@pytest.mark.parametrize("max_keys", [4, 64, 1000])
def test_the_table_is_bounded_and_the_newest_stay(max_keys):
    recycler = TokenRecycler(max_keys)
    rng = np.random.default_rng(0)
    for token in range(3000):
        row = rng.permutation(5000)[None, : core.K].astype(np.int32)
        recycler.update((-1, token), Draft.empty(), made((), (0,), "full", row))
        assert len(recycler) <= max_keys
        assert recycler.successors(-1, token) == row[0].tolist()
    recycler.check_integrity()
    assert recycler.nbytes <= 56 * max_keys
    assert len(recycler) > max_keys // 4


def test_ids_of_every_size_are_kept_apart():
    recycler = TokenRecycler()
    ids = [0, 1, 65535, 65536, 151935, 2**31 - 1]
    for before in [-1, *ids]:
        for last in ids:
            row = np.full((1, core.K), (before * 7 + last) % 9973, np.int32)
            recycler.update((before, last), Draft.empty(), made((), (1,), "full", row))
    for before in ids:
        for last in ids:
            assert recycler.successors(before, last)[0] == (before * 7 + last) % 9973
    recycler.check_integrity()


def test_misuse_is_refused_by_name():
    with pytest.raises(ValueError, match="max_keys"):
        TokenRecycler(3)
    with pytest.raises(ValueError, match="max_keys"):
        TokenRecycler(2.5)
    recycler = TokenRecycler()
    with pytest.raises(ValueError, match="topk"):
        recycler.update((1, 2), Draft.empty(), made((), (1,), "full", np.zeros((1, 3), np.int32)))
    with pytest.raises(ValueError, match="path"):
        recycler.update((1, 2), Draft.chain([1]), made((5,), (1,), "full", np.zeros((2, 8), np.int32)))
    with pytest.raises(ValueError, match="recycle"):
        Drafter(recycle="yes")
    assert len(recycler) == 0
    assert len(recycler.propose((-1, -1), 4)) == 0


def answer(token):
    """A target that always says the next number, then the one after that."""
    return np.array([[(token + 1 + i) % 50 for i in range(8)]], np.int32)


def test_sessions_recycle_alone_unless_shared():
    for recycle, leaks in ((True, False), ("shared", True)):
        drafter = Drafter(recycle=recycle, policy=DraftPolicy(max_draft_tokens=4))
        first = drafter.begin([30, 7])
        assert first.num_topk == 8
        assert len(first.propose(4)) == 0
        first.commit(Draft.empty(), made((), (8,), "full", answer(7)))
        first.commit(Draft.empty(), made((), (9,), "full", answer(8)))
        first.finish()
        second = drafter.begin([40, 7])
        assert (len(second.propose(4)) > 0) == leaks
        assert len(drafter.begin([40, 7], namespace="other").propose(4)) == 0
    assert Drafter().begin([1, 2]).num_topk == 0


def test_copies_and_recycled_successors_share_one_tree():
    drafter = Drafter(recycle=True, policy=DraftPolicy(max_draft_tokens=8))
    session = drafter.begin([1, 2, 3, 4, 5])
    topk = np.array([[20, 21, 22, 23, 24, 25, 26, 27]], np.int32)
    session.commit(Draft.empty(), made((), (2,), "full", topk))  # after 5
    session.commit(Draft.empty(), made((), (9,), "full", topk + 10))  # after 2
    session.commit(Draft.empty(), made((), (2,), "full", topk + 20))  # after 9
    draft = session.propose(64)
    draft.check()
    names = set(draft.source.tolist())
    assert len(draft) <= 8
    assert names == {0, RECYCLED}
    roots = [token for token, parent in zip(draft.token_ids.tolist(), draft.parents.tolist()) if parent < 0]
    assert {3, 30} <= set(roots)  # the copies' next token, and what the target said after 2


def test_the_shelf_forgets_the_namespace_used_longest_ago():
    shelf = RecyclerShelf(max_namespaces=2, max_keys=64)
    a, b = shelf["a"], shelf["b"]
    assert shelf["a"] is a
    c = shelf["c"]
    assert shelf["c"] is c
    assert shelf["a"] is a
    assert shelf["b"] is not b
