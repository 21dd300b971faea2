"""SuffixTree: every repetition of one text, kept up to date token by token. The page on why: docs/suffix_tree.md."""

from __future__ import annotations

from typing import Final

import numpy as np

from zerodraft.lookup._block import NUM_ROWS, SOURCE
from zerodraft.lookup.checks import bounds, int_in, number_in
from zerodraft.lookup.draft import CONTEXT, INT32, MAX_TOKEN_ID, SOURCE_NAMES, Draft, IntArray, as_token_ids
from zerodraft.lookup.runtime._jit import direct
from zerodraft.lookup.suffix import _suffix_core as core

MAX_DRAFT_TOKENS: Final = 4096
MAX_BRANCHES: Final = core.MAX_BRANCHES

# First sizes of a bulk build per token of text: enough for source code, grown by what is known then where it is not.
_NODES_PER_TOKEN: Final = 0.47
_SLOTS_PER_TOKEN: Final = 1.45
_propose_chain, _propose_tree = direct(core.propose_chain), direct(core.propose_tree)
_index, _catch_up, _find_below = direct(core.index), direct(core.catch_up), direct(core.find_below)
_LINE: Final = 16  # int32 in a cache line
_NO_BLOCK: Final = np.empty((NUM_ROWS, 0), np.int32)


class SuffixTree:
    """An incremental suffix tree over one text of token ids.

    The tree always knows the **match**: the longest suffix of the text that occurred before, however long it is and
    however often it occurred. ``propose`` drafts what followed those occurrences, the most frequent continuation first.

    Counts are counts of *explicit* suffixes. A suffix that lies inside the current match has no leaf yet and is not
    counted until the match breaks: counts lag behind by the length of the match, never more.

    | call | cost |
    |---|---|
    | ``extend(ids)`` | O(len(ids)) amortised; one token after a match of m tokens that breaks: O(m) |
    | ``match_len``, ``len`` | O(1) |
    | ``propose(n)`` | O(n) a chain, O(n log n) a tree, whatever the length of the text |
    | ``branches()`` | O(1) |
    | ``count(ids)`` | O(len(ids)) |
    | memory | about 50 bytes per token of source code, at most about 110 |

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
        table, state = np.zeros((32, core.NUM_SLOT_COLUMNS), np.int32), np.zeros(core.NUM_SCALARS, np.int64)
        state[core.NUM_NODES] = 1
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
        """Append one token: ``extend([token_id])`` without the cost of making an array.

        Raises:
            ValueError: not an integer in [0, 2**31 - 1]. The tree is then unchanged.

        >>> tree = SuffixTree([1, 2])
        >>> tree.append(1)
        >>> tree.propose(1).token_ids.tolist()
        [2]
        """
        if type(token_id) is not int or not 0 <= token_id <= MAX_TOKEN_ID:
            self.extend([token_id])  # numpy integers pass, everything else is refused there with its reason
            return
        end = self._length + 1
        if end > len(self._arrays.tokens):
            self._reserve(end)
        self._arrays.tokens[end - 1] = token_id
        self._length = end

    def add_barrier(self) -> None:
        """Append a place that matches nothing, not even another barrier, and is never drafted. Ends the match.

        It takes one position of the text and keeps unrelated texts (a prediction, an earlier output, the prompt) apart.

        >>> tree = SuffixTree([1, 2, 3])
        >>> tree.add_barrier()
        >>> tree.extend([9, 3])
        >>> tree.match_len, len(tree.propose(4))
        (1, 0)
        """
        end = self._length + 1
        self._reserve(end)
        self._arrays.tokens[end - 1] = ~(end - 1)
        self._length = end

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
        return self._length - self._arrays.state.item(core.NUM_LEAVES)

    @property
    def num_occurrences(self) -> int:
        """Explicit suffixes that begin with the match, as ``count`` says; after ``propose``. Cost: O(1)."""
        state = self._arrays.state
        if state.item(core.ACTIVE_LENGTH):
            return self._count_of(state.item(core.ACTIVE_CHILD))
        return int(self._arrays.counts[state.item(core.ACTIVE_NODE), core.COUNT])

    @property
    def num_nodes(self) -> int:
        """Number of internal nodes, the root included. Cost: O(1).

        >>> SuffixTree([1, 2, 1, 3]).num_nodes
        2
        """
        self._index()
        return int(self._arrays.state[core.NUM_NODES])

    @property
    def nbytes(self) -> int:
        """Bytes held by the arrays, spare capacity included. Cost: O(1).

        >>> SuffixTree().nbytes < 2048
        True
        """
        return sum(array.nbytes for array in self._arrays)

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
        if type(max_tokens) is not int or (max_depth is not None and type(max_depth) is not int):
            max_tokens, max_depth = bounds(max_tokens, max_depth)
        min_prob = number_in("min_prob", min_prob, 0.0, 1.0)
        int_in("max_branches", max_branches, 1, MAX_BRANCHES)
        int_in("source", source, 0, len(SOURCE_NAMES) - 1)
        depth = max_tokens if max_depth is None else max_depth
        if not 0 <= max_tokens <= MAX_DRAFT_TOKENS or depth < 0:
            raise ValueError(
                f"max_tokens must be in [0, {MAX_DRAFT_TOKENS}] and max_depth not negative, "
                f"got {max_tokens} and {max_depth}"
            )
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
        state = self._arrays.state
        if self.match_len == 0:
            return []
        node, length = int(state[core.ACTIVE_NODE]), int(state[core.ACTIVE_LENGTH])
        depth = int(self._arrays.nodes[node, core.DEPTH]) + length
        if length:
            children = [int(state[core.ACTIVE_CHILD])]
        else:
            children = [int(child) for child in self._arrays.counts[node, core.BRANCH :] if child]
        pairs = [(int(self._arrays.tokens[self._witness(child) + depth]), self._count_of(child)) for child in children]
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
        child = _find_below(self._arrays, ids)
        return self._count_of(int(child))

    def check_integrity(self) -> None:
        """Recount everything from the text and raise an AssertionError at the first thing that is wrong.

        For tests. Cost: O(n) node visits in Python, O(n**2) token comparisons at worst.

        >>> SuffixTree([3, 1, 3, 1, 4]).check_integrity()
        """
        self._index()
        _check_integrity(self)

    def propose_block(
        self, max_tokens: int, max_depth: int, max_branches: int, min_prob: float
    ) -> tuple[IntArray, int]:
        """``propose`` for sources: (block as in ``_block``, number of nodes), arguments unchecked."""
        room = max_depth if max_branches == 1 and max_depth < max_tokens else max_tokens
        if room == 0 or max_depth == 0:
            return _NO_BLOCK, 0
        block = np.empty((NUM_ROWS, room), INT32)
        while True:
            if max_branches == 1:
                n = _propose_chain(self._arrays, self._length, room, min_prob, block)
            else:
                n = _propose_tree(self._arrays, self._length, room, max_depth, max_branches, min_prob, block)
            if n >= 0:
                return block, n
            self._grow()

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
        if num_tokens <= len(self._arrays.tokens):
            return
        capacity = max(num_tokens, len(self._arrays.tokens) * 5 // 4)
        if capacity > MAX_TOKEN_ID:
            raise ValueError(f"a suffix tree holds at most {MAX_TOKEN_ID} tokens, got {num_tokens}")
        added = num_tokens - self._length
        tokens, leaf_parent = _grown(self._arrays.tokens, capacity), _grown(self._arrays.leaf_parent, capacity)
        num_nodes, num_slots = len(self._arrays.nodes), len(self._arrays.table)
        if added * 4 > num_tokens:
            num_nodes = max(num_nodes, int(_NODES_PER_TOKEN * num_tokens))
            num_slots = max(num_slots, int(_SLOTS_PER_TOKEN * num_tokens))
        self._resize(num_nodes, num_slots)
        self._arrays = self._arrays._replace(tokens=tokens, leaf_parent=leaf_parent)

    def _index(self) -> None:
        """Index the tokens that were stored since the last question."""
        while self._arrays.state.item(core.INDEXED) != self._length:
            if not _index(self._arrays, self._length):
                self._grow()

    def _count(self) -> None:
        """Index, and count the leaves that are not counted yet."""
        while not _catch_up(self._arrays, self._length):
            self._grow()

    def _grow(self) -> None:
        """More nodes or slots, whichever ran out: by a quarter, or in a bulk build what the rest seems to need."""
        factor = max(1.25, 1.03 * self._length / self._arrays.state.item(core.INDEXED))
        num_nodes, num_slots = len(self._arrays.nodes), len(self._arrays.table)
        if self._arrays.state.item(core.NUM_NODES) == num_nodes:
            self._resize(int(num_nodes * factor), num_slots)
        else:
            self._resize(num_nodes, int(num_slots * factor))

    def _resize(self, num_nodes: int, num_slots: int) -> None:
        nodes, counts, table = self._arrays.nodes, self._arrays.counts, self._arrays.table
        if num_nodes > len(nodes):
            nodes, counts = _grown(nodes, num_nodes), _grown(counts, num_nodes)
        if num_slots > len(table):
            table = np.zeros((num_slots, core.NUM_SLOT_COLUMNS), np.int32)
            core.move_edges(self._arrays.table, table)
        self._arrays = self._arrays._replace(nodes=nodes, counts=counts, table=table)

    def _count_of(self, child: int) -> int:
        return 1 if child < 0 else int(self._arrays.counts[child, core.COUNT])

    def _witness(self, child: int) -> int:
        return ~child if child < 0 else int(self._arrays.nodes[child, core.WITNESS])


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


def _check_integrity(tree: SuffixTree) -> None:
    state = {name: int(tree._arrays.state[getattr(core, name)]) for name in _SCALARS}
    num_tokens, num_leaves, num_nodes = state["INDEXED"], state["NUM_LEAVES"], state["NUM_NODES"]
    assert num_tokens == len(tree) <= len(tree._arrays.tokens), "arena and index disagree"
    assert 0 <= state["NUM_COUNTED"] <= num_leaves <= num_tokens, "leaves out of range"
    assert num_nodes <= len(tree._arrays.nodes), "nodes out of range"
    tokens = tree._arrays.tokens[:num_tokens]
    children = _children(tree, num_leaves, num_nodes)
    in_rows = np.count_nonzero(tree._arrays.nodes[:num_nodes, [core.CHILD_1, core.CHILD_2]])
    assert state["NUM_STORED"] == sum(map(len, children)) - in_rows, "edges"
    assert state["NUM_STORED"] == np.count_nonzero(tree._arrays.table[:, core.CHILD]), "table entries"
    for node in range(num_nodes):
        _check_node(tree, tokens, node, children[node])
    _check_counts(tree, children, state["NUM_COUNTED"])
    _check_match(tree, tokens, state)


_SCALARS: Final = (
    "INDEXED",
    "NUM_LEAVES",
    "NUM_COUNTED",
    "NUM_NODES",
    "NUM_STORED",
    "ACTIVE_NODE",
    "ACTIVE_LENGTH",
    "ACTIVE_CHILD",
    "UNLINKED",
)


def _children(tree: SuffixTree, num_leaves: int, num_nodes: int) -> list[list[int]]:
    children: list[list[int]] = [[] for _ in range(num_nodes)]
    for j, above in enumerate(tree._arrays.leaf_parent[:num_leaves].tolist()):
        assert (above == -1) == (tree._arrays.tokens[j] < 0), f"leaf {j} begins with a barrier or hangs in the tree"
        if above >= 0:
            children[above].append(~j)
    for node, above in enumerate(tree._arrays.nodes[1:num_nodes, core.PARENT].tolist(), start=1):
        children[above].append(node)
    return children


def _check_node(tree: SuffixTree, tokens: IntArray, node: int, children: list[int]) -> None:
    """Edges of one node: found by their first token, spelled alike from below and above; its suffix link."""
    depth = int(tree._arrays.nodes[node, core.DEPTH])
    label = tokens[tree._witness(node) : tree._witness(node) + depth]
    assert node == core.ROOT or len(children) >= 2, f"node {node} has {len(children)} children"
    is_wide = len(children) > 2 or node == core.ROOT
    assert (tree._arrays.nodes[node, core.LINK] < 0) == is_wide, (
        f"node {node} has {len(children)} children, wide or not"
    )
    firsts = set()
    for child in children:
        start = tree._witness(child)
        assert child < 0 or tree._arrays.nodes[child, core.DEPTH] > depth, f"child {child} not below node {node}"
        assert np.array_equal(tokens[start : start + depth], label), f"child {child} does not continue node {node}"
        first = int(tokens[start + depth])
        firsts.add(first)
        found = core.child_of(tree._arrays.nodes, tree._arrays.table, node, first)
        assert found == child, f"child {child} of node {node} is not found by its token"
    assert len(firsts) == len(children), f"two edges of node {node} begin with the same token"
    if node != core.ROOT:
        link = int(core.link_of(tree._arrays.nodes, node))
        start = tree._witness(link)
        assert tree._arrays.nodes[link, core.DEPTH] == depth - 1, f"suffix link of node {node}: depth"
        assert np.array_equal(tokens[start : start + depth - 1], label[1:]), f"suffix link of node {node}: label"


def _check_counts(tree: SuffixTree, children: list[list[int]], num_counted: int) -> None:
    """COUNT, WITNESS and BRANCH against a recount over the counted leaves, deepest nodes first."""
    nodes, tokens = tree._arrays.nodes, tree._arrays.tokens
    counts: dict[int, tuple[int, int]] = {
        ~j: (int(j < num_counted), j) for j in range(int(tree._arrays.state[core.NUM_LEAVES]))
    }
    deepest_first = sorted(range(1, len(children)), key=lambda node: -int(nodes[node, core.DEPTH]))
    for node in deepest_first:
        depth = int(nodes[node, core.DEPTH])
        counted = [child for child in children[node] if counts[child][0]]
        total = sum(counts[child][0] for child in counted)
        assert tree._arrays.counts[node, core.COUNT] == total, f"count of node {node}"
        if counted:
            latest = max(counts[child][1] for child in counted)
            assert nodes[node, core.WITNESS] == latest, f"latest occurrence of node {node}"
        counts[node] = (total, tree._witness(node))
        ranked = sorted((counts[c], c) for c in counted if tokens[tree._witness(c) + depth] >= 0)[::-1]
        best = [child for _, child in ranked[:MAX_BRANCHES]]
        stored = tree._arrays.counts[node, core.BRANCH :].tolist()
        assert stored == best + [0] * (MAX_BRANCHES - len(best)), f"branches of node {node}"


def _check_match(tree: SuffixTree, tokens: IntArray, state: dict[str, int]) -> None:
    """The active point spells the suffix that the match claims, at its canonical place."""
    node, length = state["ACTIVE_NODE"], state["ACTIVE_LENGTH"]
    depth = int(tree._arrays.nodes[node, core.DEPTH])
    assert state["UNLINKED"] == 0, "a suffix link is missing"
    assert depth + length == tree.match_len, "the active point is not at the end of the match"
    match = tokens[len(tokens) - tree.match_len :]
    below = node
    if length:
        below = int(core.child_of(tree._arrays.nodes, tree._arrays.table, node, int(match[depth])))
    assert state["ACTIVE_CHILD"] == (below if length else 0), "the active child is not at the end of the active edge"
    if length:
        assert below < 0 or tree._arrays.nodes[below, core.DEPTH] > depth + length, "the active point is not canonical"
    start = tree._witness(below)
    assert np.array_equal(tokens[start : start + tree.match_len], match), "the active point spells something else"
