"""SuffixTree: every repetition of one text, kept up to date token by token. The page on why: docs/suffix_tree.md."""

from __future__ import annotations

from typing import Any, Final, cast

import numpy as np

from zerodraft.lookup._block import NUM_ROWS, SOURCE
from zerodraft.lookup.checks import bounds, int_in, number_in
from zerodraft.lookup.draft import CONTEXT, INT32, MAX_TOKEN_ID, SOURCE_NAMES, Draft, IntArray, as_token_ids
from zerodraft.lookup.runtime._jit import direct, dtype_of
from zerodraft.lookup.suffix import _suffix_core as core

MAX_DRAFT_TOKENS: Final = 4096
MAX_BRANCHES: Final = core.MAX_BRANCHES

# First sizes of a bulk build per token of text: enough for source code, grown by what is known then where it is not.
_NODES_PER_TOKEN: Final = 0.47
_SLOTS_PER_TOKEN: Final = 1.45
_propose, _index, _catch_up = direct(core.propose), direct(core.index), direct(core.catch_up)
_LINE: Final = 16  # int32 in a cache line


class SuffixTree:
    """An incremental suffix tree over one text of token ids.

    The tree always knows the **match**: the longest suffix of the text that occurred before, however long it is and
    however often it occurred. ``propose`` drafts what followed those occurrences, the most frequent continuation first.

    Counts are counts of *explicit* suffixes. A suffix that lies inside the current match has no leaf yet and is not
    counted until the match breaks: counts lag behind by the length of the match, never more.

    Every method says what it costs; none depends on the length of the text. Memory: about 50 bytes per token of source
    code, at most about 110.

    New tokens are only stored; the first question after them indexes them, so a step of ``append`` and ``propose`` is
    one call of a kernel (a bulk build indexes at once). ``propose``, ``branches`` and ``count`` then count the leaves
    that are new: one walk to the root for each, never more than one pass over the tree.
    Not thread-safe: one tree belongs to one request.

    >>> tree = SuffixTree()
    >>> tree.extend([10, 11, 12, 13, 10, 11])
    >>> tree.match_len
    2
    >>> tree.propose(3).token_ids.tolist()
    [12, 13, 10]
    """

    def __init__(self, token_ids: object = ()) -> None:
        """Build the tree of ``token_ids``, empty by default. Cost and errors: those of ``extend``.

        >>> len(SuffixTree([5, 6, 5]))
        3
        """
        nodes, counts = _rows(8, core.NUM_COLUMNS), _rows(8, core.NUM_COUNT_COLUMNS)
        nodes[core.ROOT] = counts[core.ROOT] = 0
        nodes[core.ROOT, core.PARENT] = -1
        nodes[core.ROOT, core.LINK] = ~core.ROOT
        nodes[core.ROOT, [core.TOKEN_1, core.TOKEN_2]] = core.NO_TOKEN
        table, state = np.zeros((32, core.NUM_SLOT_COLUMNS), np.int32), cast(Any, np.zeros(1, dtype_of(core.State)))
        state[0].num_nodes = 1
        self._arrays = core.Tree(np.empty(16, np.int32), np.empty(16, np.int32), nodes, counts, table, state)
        self._length = 0
        self.extend(token_ids)

    def extend(self, token_ids: object) -> None:
        """Append tokens to the text.

        Bulk or single makes no difference to the result: ``extend([1, 2])`` is ``extend([1]); extend([2])``.
        Cost: amortised O(1) per token; a token that breaks a match of m tokens costs O(m).

        Args:
            token_ids: ids in [0, 2**31 - 1]; a sequence of ints or a 1-D integer array.

        Raises:
            ValueError: anything else. The tree is then unchanged.

        >>> tree = SuffixTree([1, 2])
        >>> tree.extend([1])
        >>> tree.match_len
        1
        >>> tree.extend([-100])
        Traceback (most recent call last):
        ValueError: token ids must be in [0, 2147483647], got -100 at position 0
        """
        self._extend(as_token_ids(token_ids))

    def append(self, token_id: int) -> None:
        """Append one token: ``extend([token_id])``.

        Raises:
            ValueError: not an integer in [0, 2**31 - 1]. The tree is then unchanged.

        >>> tree = SuffixTree([1, 2])
        >>> tree.append(1)
        >>> tree.propose(1).token_ids.tolist()
        [2]
        """
        self._extend(as_token_ids([token_id]))

    def add_barrier(self) -> None:
        """Append a place that matches nothing, not even another barrier, and is never drafted. Ends the match.

        It takes one position of the text and keeps unrelated texts (a prediction, an earlier output, the prompt) apart.

        >>> tree = SuffixTree([1, 2, 3])
        >>> tree.add_barrier()
        >>> tree.extend([9, 3])
        >>> tree.match_len, len(tree.propose(4))
        (1, 0)
        """
        self._extend(np.array([~self._length], INT32))

    def __len__(self) -> int:
        """Number of positions in the text, barriers included. Cost: O(1).

        >>> len(SuffixTree([7, 8]))
        2
        """
        return self._length

    @property
    def match_len(self) -> int:
        """Length of the longest suffix of the text that also ends earlier in it; not capped. Cost: O(1).

        The two occurrences may overlap, and neither contains a barrier.

        >>> SuffixTree([4, 4, 4, 4]).match_len
        3
        """
        self._index()
        return self._length - int(self._arrays.state[0].num_leaves)

    @property
    def num_occurrences(self) -> int:
        """Explicit suffixes that begin with the match, as ``count`` says; after ``propose``. Cost: O(1)."""
        state = self._arrays.state[0]
        return core.count_of(self._arrays.counts, state.active_child or state.active_node)

    @property
    def num_nodes(self) -> int:
        """Number of internal nodes, the root included. Cost: O(1).

        >>> SuffixTree([1, 2, 1, 3]).num_nodes
        2
        """
        self._index()
        return int(self._arrays.state[0].num_nodes)

    @property
    def nbytes(self) -> int:
        """Bytes held by the arrays, spare capacity included. Cost: O(1).

        >>> SuffixTree().nbytes < 2048
        True
        """
        return sum(array.nbytes for array in cast(tuple[Any, ...], self._arrays))

    def propose(
        self,
        max_tokens: int,
        max_depth: int | None = None,
        *,
        max_branches: int = 1,
        min_prob: float = 0.1,
        source: int = CONTEXT,
    ) -> Draft:
        """Draft the likeliest continuation of the match.

        A node's probability is the product, over the branchings above it, of the counts: occurrences that went this
        way over all occurrences. Which branch comes first: the higher count, then the more recent occurrence (two
        branches never tie in that). Where only one occurrence is left it is copied, past the end of the text into the
        copy itself if need be, so that periodic text goes on for ever. Barriers end a branch.

        Does not change the text. Cost: see the class.

        Args:
            max_tokens: upper bound on ``len(draft)``, 0 to 4096.
            max_depth: upper bound on the depth of every node (1: directly after the last token); None: no bound.
            max_branches: branches followed at one node, 1 (a chain) to 4 (a tree, best nodes first).
            min_prob: nodes with a lower probability are not drafted, in [0, 1].
            source: stored with every drafted node.

        Returns:
            Draft with probabilities, the match length and where each token was copied from (``origin``); empty if the
            last token never occurred before.

        Raises:
            ValueError: an argument outside its range.

        Source: SuffixDecoding (arXiv:2411.04975), section 3; here on explicit counts and one longest match.

        >>> tree = SuffixTree([1, 2, 3, 1, 2, 3, 1, 2, 4, 1, 2])
        >>> draft = tree.propose(3, max_branches=2)
        >>> draft.token_ids.tolist(), draft.parents.tolist()
        ([3, 1, 2], [-1, 0, 1])
        >>> [round(float(p), 2) for p in tree.propose(2).probs]
        [0.67, 0.67]
        """
        max_tokens, max_depth = bounds(max_tokens, max_depth)
        int_in("max_tokens", max_tokens, 0, MAX_DRAFT_TOKENS)
        min_prob = number_in("min_prob", min_prob, 0.0, 1.0)
        int_in("max_branches", max_branches, 1, MAX_BRANCHES)
        int_in("source", source, 0, len(SOURCE_NAMES) - 1)
        depth = max_tokens if max_depth is None else max_depth
        block, n = self.propose_block(max_tokens, depth, max_branches, min_prob)
        block[SOURCE] = source
        return Draft.from_block(block[:, :n])

    def branches(self) -> list[tuple[int, int]]:
        """What followed the match: up to 4 pairs (token id, count), best first. Cost: O(1).

        The counts of branches that are not among the four, and of occurrences that a barrier ends, are not listed:
        the total is ``count(match)``.

        >>> SuffixTree([1, 2, 1, 3, 1, 2, 5, 1]).branches()
        [(2, 2), (3, 1)]
        """
        self._count()
        tree, state, depth = self._arrays, self._arrays.state[0], self.match_len
        if depth == 0:
            return []
        listed = [state.active_child] if state.active_child else tree.counts[state.active_node, core.BRANCH :].tolist()
        starts = [(core.start_of(tree.nodes, child), core.count_of(tree.counts, child)) for child in listed if child]
        pairs = [(int(tree.tokens[start + depth]), count) for start, count in starts]
        return [(token, count) for token, count in pairs if token >= 0]

    def count(self, token_ids: object) -> int:
        """Number of explicit suffixes that begin with these tokens. Cost: O(len(token_ids)).

        The number of occurrences in the text, less those that lie in the current match and start in it: see the class.

        Raises:
            ValueError: ids that no text can hold, or none at all.

        >>> tree = SuffixTree([1, 2, 9, 1, 2])
        >>> tree.count([1, 2])
        1
        >>> tree.append(7)
        >>> tree.count([1, 2])
        2
        """
        ids = as_token_ids(token_ids)
        if len(ids) == 0:
            raise ValueError("token_ids must hold at least one id, got none")
        self._count()
        return core.count_of(self._arrays.counts, core.find_below(self._arrays, ids))

    def check_integrity(self) -> None:
        """Recount everything from the text and raise an AssertionError at the first thing that is wrong.

        For tests. Cost: O(n) node visits in Python, O(n**2) token comparisons at worst.

        >>> SuffixTree([3, 1, 3, 1, 4]).check_integrity()
        """
        self._index()
        _check_integrity(self._arrays, self._length)

    def propose_block(
        self, max_tokens: int, max_depth: int, max_branches: int, min_prob: float
    ) -> tuple[IntArray, int]:
        """``propose`` for sources: (block as in ``_block``, number of nodes), arguments unchecked."""
        room = min(max_tokens, max_depth) if max_branches == 1 or max_depth == 0 else max_tokens
        block = np.empty((NUM_ROWS, room), INT32)
        while (n := _propose(self._arrays, self._length, room, max_depth, max_branches, min_prob, block)) < 0:
            self._grow()
        return block, n

    def _extend(self, ids: IntArray) -> None:
        """``extend`` for ids that have been checked."""
        start, end = self._length, self._length + len(ids)
        if end > len(self._arrays.tokens):
            self._reserve(end)
        self._arrays.tokens[start:end] = ids
        self._length = end
        if len(ids) * 4 > end:  # a bulk build counts at once, so that the first propose is like any other
            self._count()

    def _reserve(self, num_tokens: int) -> None:
        """Make room for a text of this length. Everything is allocated before anything is replaced."""
        held, tree = len(self._arrays.tokens), self._arrays
        if num_tokens <= held:
            return
        if num_tokens > MAX_TOKEN_ID:
            raise ValueError(f"a suffix tree holds at most {MAX_TOKEN_ID} tokens, got {num_tokens}")
        capacity = min(max(num_tokens, held * 5 // 4), MAX_TOKEN_ID)
        tree = tree._replace(tokens=_grown(tree.tokens, capacity), leaf_parent=_grown(tree.leaf_parent, capacity))
        if (num_tokens - self._length) * 4 > num_tokens:
            tree = _with_room(tree, int(_NODES_PER_TOKEN * num_tokens), int(_SLOTS_PER_TOKEN * num_tokens))
        self._arrays = tree

    def _index(self) -> None:
        """Index the tokens that were stored since the last question."""
        while not _index(self._arrays, self._length):
            self._grow()

    def _count(self) -> None:
        """Index, and count the leaves that are not counted yet."""
        while not _catch_up(self._arrays, self._length):
            self._grow()

    def _grow(self) -> None:
        """More nodes or slots, whichever ran out: by a quarter, or in a bulk build what the rest seems to need."""
        tree, state = self._arrays, self._arrays.state[0]
        factor = max(1.25, 1.03 * self._length / state.indexed)
        is_full = state.num_nodes == len(tree.nodes)
        num_nodes, num_slots = (len(tree.nodes) * factor, 0) if is_full else (0, len(tree.table) * factor)
        self._arrays = _with_room(tree, int(num_nodes), int(num_slots))


def _with_room(tree: core.Tree, num_nodes: int, num_slots: int) -> core.Tree:
    """The tree with room for so many nodes and edges at least."""
    if num_nodes > len(tree.nodes):
        tree = tree._replace(nodes=_grown(tree.nodes, num_nodes), counts=_grown(tree.counts, num_nodes))
    if num_slots > len(tree.table):
        table = np.zeros((num_slots, core.NUM_SLOT_COLUMNS), np.int32)
        core.move_edges(tree.table, table)
        tree = tree._replace(table=table)
    return tree


def _rows(capacity: int, num_columns: int) -> IntArray:
    """Room for rows, not filled, that begins with a cache line, so that a row of nodes lies in one."""
    flat = np.empty(capacity * num_columns + _LINE, np.int32)
    start = -flat.__array_interface__["data"][0] // flat.itemsize % _LINE
    return flat[start : start + capacity * num_columns].reshape(capacity, num_columns)


def _grown(array: IntArray, capacity: int) -> IntArray:
    """A copy with room for ``capacity`` rows."""
    larger = np.empty(capacity, np.int32) if array.ndim == 1 else _rows(capacity, array.shape[1])
    larger[: len(array)] = array
    return larger


def _check_integrity(tree: core.Tree, num_tokens: int) -> None:
    """From the root downwards: the explicit suffixes that begin with a node's label say all that it must hold."""
    tokens, state = tree.tokens[:num_tokens].tolist(), tree.state[0]
    assert state.num_counted <= state.num_leaves <= state.indexed == num_tokens, "leaves out of range"
    is_barrier = [token < 0 for token in tokens[: state.num_leaves]]
    assert (tree.leaf_parent[: state.num_leaves] < 0).tolist() == is_barrier, "barriers and leaves in no tree"
    suffixes = {core.ROOT: [start for start, outside in enumerate(is_barrier) if not outside]}
    todo, num_stored = [core.ROOT], 0
    for node in todo:  # which grows
        depth = int(tree.nodes[node, core.DEPTH])
        groups: dict[int, list[int]] = {}
        for start in suffixes[node]:
            groups.setdefault(tokens[start + depth], []).append(start)
        for token, starts in groups.items():
            child = core.child_of(tree.nodes, tree.table, node, token)
            if len(starts) == 1:
                assert (child, tree.leaf_parent[starts[0]]) == (~starts[0], node), f"leaf {starts[0]} below {node}"
                continue
            below = next(at for at in range(depth + 1, num_tokens) if len({tokens[start + at] for start in starts}) > 1)
            place = tree.nodes[child, [core.PARENT, core.DEPTH]].tolist()
            assert place == [node, below], f"child {child} of {node} is not where {token} leads to"
            suffixes[child] = starts
            todo.append(child)
        is_wide = node == core.ROOT or len(groups) > 2
        num_stored += len(groups) - (2 if node else 0)
        assert (tree.nodes[node, core.LINK] < 0) == is_wide, f"node {node} has {len(groups)} children, wide or not"
    assert (len(todo), 0) == (state.num_nodes, state.unlinked), "nodes that nothing leads to, or a link is missing"
    assert num_stored == state.num_stored == np.count_nonzero(tree.table[:, core.CHILD]), "edges in the table"
    for node in todo[1:]:
        _check_node(tree, node, suffixes[node], tokens)
    _check_match(tree, tokens)


def _check_node(tree: core.Tree, node: int, starts: list[int], tokens: list[int]) -> None:
    """Suffix link, count, latest occurrence and branches of a node against the suffixes that begin with its label."""
    depth, link, latest = (
        int(tree.nodes[node, core.DEPTH]),
        core.link_of(tree.nodes, node),
        core.start_of(tree.nodes, node),
    )
    first, other = starts[0] + 1, core.start_of(tree.nodes, link)
    assert tree.nodes[link, core.DEPTH] == depth - 1, f"suffix link of node {node}: depth"
    assert tokens[other : other + depth - 1] == tokens[first : first + depth - 1], f"suffix link of node {node}: label"
    counted = [start for start in starts if start < tree.state[0].num_counted]
    branches: dict[int, list[int]] = {}
    for start in counted:
        branches.setdefault(tokens[start + depth], []).append(start)
    assert core.count_of(tree.counts, node) == len(counted), f"count of node {node}"
    assert max(counted, default=latest) == latest in starts, f"latest occurrence of node {node}"
    ranked = sorted(((len(group), max(group), token) for token, group in branches.items() if token >= 0), reverse=True)
    expected = [core.child_of(tree.nodes, tree.table, node, token) for _, _, token in ranked[:MAX_BRANCHES]]
    expected += [0] * (MAX_BRANCHES - len(expected))
    assert tree.counts[node, core.BRANCH :].tolist() == expected, f"branches of node {node}"


def _check_match(tree: core.Tree, tokens: list[int]) -> None:
    """The match ends at the active point: at a node, or on the edge below one."""
    state = tree.state[0]
    match = tokens[state.num_leaves :]
    below = core.find_below(tree, np.array(match, np.int32))
    is_node = below >= 0 and tree.nodes[below, core.DEPTH] == len(match)
    above = below if is_node else int(tree.nodes[below, core.PARENT] if below > 0 else tree.leaf_parent[~below])
    place = above, len(match) - int(tree.nodes[above, core.DEPTH]), 0 if is_node else below
    assert (state.active_node, state.active_length, state.active_child) == place, "the active point is elsewhere"
