"""Kernels of the suffix tree: Ukkonen's algorithm on flat int32 arrays; two edges in a node's row, more in one table.

Ids: an internal node is a number >= 0 (ROOT is 0); leaf j, the suffix that starts at position j, is written ~j (< 0).
As a child 0 means "none", because the root is nobody's child.

Arrays (int32, grown by the owner):
    tokens (capacity,)      the text. A barrier at position i is stored as ~i: negative, and equal to nothing else.
    leaf_parent (capacity,) node above leaf j; -1 for a suffix that starts with a barrier: it is in no tree.
    nodes (capacity, 8)     one row per internal node, columns PARENT ... CHILD_2 below: half a cache line, and all that
                            indexing needs to know of a node.
    counts (capacity, 5)    the rest of the row, which only counting and drafting read: columns COUNT, BRANCH below.
    table (slots, 3)        (node, first token, child) for the edges that do not fit into ``nodes``; child 0: free.
    state int64 (9,)        scalars, see the names below. NUM_LEAVES is also the first suffix that is still implicit,
                            so the length of the current match is INDEXED - NUM_LEAVES.

A node is born with two edges, and most have no more: they stand in its row. All further ones, and those of the root,
are in the table; a node that has such edges is wide, and its LINK is written as ~link.

An edge needs no label: the tokens between a node at depth a and its child at depth b are tokens[w + a : w + b], where w
is any suffix below the child: WITNESS for a node, j for leaf j, whose edge is open-ended.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from zerodraft.lookup import _block as rows
from zerodraft.lookup.runtime._jit import (
    Floats,
    Ints,
    Ints2D,
    Longs,
    ReadInts,
    ReadInts2D,
    kernel,
)
from zerodraft.lookup.runtime._prefetch import prefetch

ROOT: Final = 0
MAX_BRANCHES: Final = 4  # branches remembered per node: a fifth has at most a fifth of its node's occurrences
PARENT, DEPTH, WITNESS, LINK, TOKEN_1, CHILD_1, TOKEN_2, CHILD_2, NUM_COLUMNS = range(9)
COUNT, BRANCH = 0, 1  # columns of ``counts``; BRANCH: the first of MAX_BRANCHES
NUM_COUNT_COLUMNS: Final = BRANCH + MAX_BRANCHES
NODE, TOKEN, CHILD, NUM_SLOT_COLUMNS = range(4)
NO_TOKEN: Final = -(2**31)  # as TOKEN_1 and TOKEN_2 of the root; no barrier is written so either
(
    INDEXED,  # tokens in the tree; those behind them wait in the arena for the next question
    NUM_LEAVES,  # explicit suffixes, = first implicit one
    NUM_COUNTED,  # leaves that COUNT, WITNESS and BRANCH know of
    NUM_NODES,
    NUM_STORED,  # edges in the table
    ACTIVE_NODE,  # the deepest node at or above the end of the longest suffix that occurred before
    ACTIVE_LENGTH,  # tokens from there to that end
    ACTIVE_CHILD,  # child at the end of the edge on which they lie, 0 if there are none
    UNLINKED,  # node split off in this phase that waits for its suffix link, 0: none
) = range(9)
NUM_SCALARS: Final = 9

# At most 7 in 10 slots are taken.
_LOAD_PART: Final = 7
_LOAD_WHOLE: Final = 10
AHEAD: Final = 8  # tokens between a prefetch and its use
_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)
_MIXER: Final = np.uint64(0xD6E8FEB86659FD93)
_LOW: Final = np.uint64(0xFFFFFFFF)
_U32: Final = np.uint64(32)


class Tree(NamedTuple):
    """The arrays of one tree, as the docstring of this file says."""

    tokens: Ints
    leaf_parent: Ints
    nodes: Ints2D
    counts: Ints2D
    table: Ints2D
    state: Longs


@kernel
def home_of(table: ReadInts2D, node: int, token: int) -> int:
    """Slot where the search for an edge begins.

    Edges by one token from four nodes in a row begin side by side: most suffix links lead to the next node, and the
    suffixes of a match are left one after the other by the same token.
    """
    mixed = ((np.uint64(node >> 2) << _U32) | (np.uint64(token) & _LOW)) * _MULTIPLIER
    mixed = ((mixed ^ (mixed >> _U32)) * _MIXER) >> _U32
    return np.int64((mixed * np.uint64(len(table) - 3)) >> _U32) + (node & 3)


@kernel
def slot_of(table: ReadInts2D, node: int, token: int) -> int:
    """Slot of the edge from ``node`` by ``token``, or the free slot where it belongs."""
    slot = home_of(table, node, token)
    while table[slot, CHILD] != 0 and (table[slot, TOKEN] != token or table[slot, NODE] != node):
        slot += 1
        if slot == len(table):
            slot = 0
    return slot


@kernel
def store_edge(table: Ints2D, node: int, token: int, child: int) -> None:
    """Put a new edge into the table."""
    slot = slot_of(table, node, token)
    table[slot, NODE], table[slot, TOKEN], table[slot, CHILD] = node, token, child


@kernel
def move_edges(old: ReadInts2D, new: Ints2D) -> None:
    """Fill an empty, larger table. Slots grow with the hash, so both tables are walked nearly in order."""
    for i in range(len(old)):
        if old[i, CHILD] != 0:
            store_edge(new, old[i, NODE], old[i, TOKEN], old[i, CHILD])


@kernel
def child_of(nodes: ReadInts2D, table: ReadInts2D, node: int, token: int) -> int:
    """Child of ``node`` whose edge begins with ``token``, 0: there is none."""
    if nodes[node, TOKEN_1] == token:
        return np.int64(nodes[node, CHILD_1])
    if nodes[node, TOKEN_2] == token:
        return np.int64(nodes[node, CHILD_2])
    if nodes[node, LINK] >= 0:
        return 0
    return np.int64(table[slot_of(table, node, token), CHILD])


@kernel
def link_of(nodes: ReadInts2D, node: int) -> int:
    """The node whose label is that of ``node`` without the first token."""
    link = np.int64(nodes[node, LINK])
    return link if link >= 0 else ~link


@kernel
def add_edge(nodes: Ints2D, table: Ints2D, state: Longs, node: int, token: int, child: int) -> None:
    """Add an edge to a node that has two or more, or to the root: the node is wide from now on."""
    if nodes[node, LINK] >= 0:
        nodes[node, LINK] = ~nodes[node, LINK]
    store_edge(table, node, token, child)
    state[NUM_STORED] += 1


@kernel
def replace_child(nodes: Ints2D, table: Ints2D, node: int, token: int, old: int, new: int) -> None:
    """Let the edge from ``node`` by ``token``, which leads to ``old``, lead to ``new``."""
    if nodes[node, CHILD_1] == old:
        nodes[node, CHILD_1] = new
    elif nodes[node, CHILD_2] == old:
        nodes[node, CHILD_2] = new
    else:
        table[slot_of(table, node, token), CHILD] = new


@kernel
def split_edge(
    tokens: ReadInts,
    leaf_parent: Ints,
    nodes: Ints2D,
    counts: Ints2D,
    table: Ints2D,
    state: Longs,
    node: int,
    length: int,
    child: int,
    witness: int,
    leaf: int,
) -> int:
    """Return a new node, ``length`` tokens below ``node`` on the edge to ``child``, with ``leaf`` hanging from it."""
    middle = state[NUM_NODES]
    state[NUM_NODES] = middle + 1
    depth = nodes[node, DEPTH] + length
    replace_child(nodes, table, node, tokens[witness + depth - length], child, middle)
    next_token = tokens[witness + depth]
    nodes[middle, PARENT] = node
    nodes[middle, DEPTH] = depth
    nodes[middle, WITNESS] = witness
    nodes[middle, LINK] = ROOT
    nodes[middle, TOKEN_1], nodes[middle, CHILD_1] = next_token, child
    nodes[middle, TOKEN_2], nodes[middle, CHILD_2] = tokens[leaf + depth], ~leaf
    if child > 0:
        nodes[child, PARENT] = middle
    else:
        leaf_parent[~child] = middle
    leaf_parent[leaf] = middle
    for k in range(NUM_COUNT_COLUMNS):
        counts[middle, k] = 0
    num_counted = state[NUM_COUNTED]
    if num_counted > 0:  # not in a bulk build
        count = np.int64(counts[child, COUNT]) if child > 0 else np.int64(~child < num_counted)
        counts[middle, COUNT] = count
        if count > 0:
            if next_token >= 0:
                counts[middle, BRANCH] = child
            for k in range(BRANCH, NUM_COUNT_COLUMNS):
                if counts[node, k] == child:
                    counts[node, k] = middle
                    break
    return middle


@kernel
def prefetch_next(nodes: ReadInts2D, table: ReadInts2D, node: int, token: int) -> None:
    """Have ready where the next suffix goes on: by the same token, at the node that the suffix link leads to."""
    link = link_of(nodes, node)
    prefetch(nodes, link, 0)
    prefetch(table, home_of(table, link, token), 0)


@kernel
def prefetch_near_root(tokens: ReadInts, nodes: ReadInts2D, table: ReadInts2D, i: int) -> None:
    """Have ready what the suffixes at AHEAD and 2 AHEAD from ``i`` will be looked up by at the root and below it."""
    prefetch(table, home_of(table, ROOT, tokens[i + 2 * AHEAD]), 0)
    near = np.int64(table[slot_of(table, ROOT, tokens[i + AHEAD]), CHILD])
    if near > 0:
        prefetch(nodes, near, 0)
        prefetch(table, home_of(table, near, tokens[i + AHEAD + 1]), 0)


@kernel
def index_tokens(
    tokens: ReadInts, leaf_parent: Ints, nodes: Ints2D, counts: Ints2D, table: Ints2D, state: Longs, end: int
) -> bool:
    """Bring tokens[INDEXED:end] into the tree; False: ``nodes`` or ``table`` is full, grow it and call again.

    Ukkonen (1995), "On-line construction of suffix trees". One phase per token; the active point at its end is the
    longest suffix that occurred before. Stops only between two insertions, where the state is complete.
    """
    node, length, child = state[ACTIVE_NODE], state[ACTIVE_LENGTH], state[ACTIVE_CHILD]
    i, j, unlinked = state[INDEXED], state[NUM_LEAVES], state[UNLINKED]
    max_stored = len(table) * _LOAD_PART // _LOAD_WHOLE - 2
    has_room = True
    while i < end and has_room:
        token = tokens[i]
        if i - j <= 2 and i + 2 * AHEAD < end:  # little matches here: so it will be soon after, too
            prefetch_near_root(tokens, nodes, table, i)
        while j <= i:
            if state[NUM_NODES] == len(nodes) or state[NUM_STORED] > max_stored:
                has_room = False
                break
            if length == 0:
                if unlinked > 0:
                    nodes[unlinked, LINK] = node
                    unlinked = 0
                prefetch_next(nodes, table, node, token)
                if node == ROOT and token < 0:
                    leaf_parent[j] = -1
                    j += 1
                    break
                child = child_of(nodes, table, node, token)
                if child != 0:
                    length = 1
                    break
                leaf_parent[j] = node
                add_edge(nodes, table, state, node, token, ~j)
            else:
                witness = np.int64(nodes[child, WITNESS]) if child > 0 else ~child
                if tokens[witness + nodes[node, DEPTH] + length] == token:
                    length += 1
                    break
                prefetch_next(nodes, table, node, tokens[i - length])
                middle = split_edge(tokens, leaf_parent, nodes, counts, table, state, node, length, child, witness, j)
                if unlinked > 0:
                    nodes[unlinked, LINK] = middle
                unlinked = middle
            j += 1
            if node != ROOT:
                node = link_of(nodes, node)
            elif length > 0:
                length -= 1
            while length > 0:  # skip/count: these tokens are known to be there
                child = child_of(nodes, table, node, tokens[i - length])
                if child < 0:
                    break
                edge = nodes[child, DEPTH] - nodes[node, DEPTH]
                if length < edge:
                    break
                node = child
                length -= edge
        if has_room:
            i += 1
            if length > 0 and child > 0 and nodes[child, DEPTH] - nodes[node, DEPTH] == length:
                node, length = child, np.int64(0)
    state[ACTIVE_NODE], state[ACTIVE_LENGTH] = node, length
    state[ACTIVE_CHILD] = child if length > 0 else 0
    state[INDEXED], state[NUM_LEAVES], state[UNLINKED] = i, j, unlinked
    return has_room


@kernel
def place_branch(nodes: ReadInts2D, counts: Ints2D, node: int, child: int) -> None:
    """Put a child whose COUNT or WITNESS grew in its place among its parent's branches: by count, then recency."""
    count, latest = np.int64(1), ~child
    if child > 0:
        count, latest = np.int64(counts[child, COUNT]), np.int64(nodes[child, WITNESS])
    at = BRANCH
    while at < NUM_COUNT_COLUMNS and counts[node, at] != child and counts[node, at] != 0:
        at += 1
    while at > BRANCH:
        rival = np.int64(counts[node, at - 1])
        rival_count = np.int64(counts[rival, COUNT]) if rival > 0 else np.int64(1)
        if rival_count > count:
            break
        if rival_count == count and (np.int64(nodes[rival, WITNESS]) if rival > 0 else ~rival) > latest:
            break
        if at < NUM_COUNT_COLUMNS:
            counts[node, at] = rival
        at -= 1
    if at < NUM_COUNT_COLUMNS:
        counts[node, at] = child


@kernel
def prefetch_node(nodes: ReadInts2D, counts: ReadInts2D, node: int) -> None:
    """Have all of a node ready; -1, which is no node, does no harm."""
    prefetch(nodes, node, 0)
    prefetch(counts, node, 0)


@kernel
def recount(tokens: ReadInts, leaf_parent: ReadInts, nodes: Ints2D, counts: Ints2D, state: Longs) -> None:
    """Compute COUNT, WITNESS and BRANCH of all nodes anew, children before parents. Cost: one pass over the tree."""
    num_nodes, num_leaves = state[NUM_NODES], state[NUM_LEAVES]
    to_come = np.zeros(num_nodes, np.int32)  # internal children not added up yet
    for node in range(1, num_nodes):
        to_come[nodes[node, PARENT]] += 1
        nodes[node, WITNESS] = -1
        for k in range(NUM_COUNT_COLUMNS):
            counts[node, k] = 0
    for j in range(num_leaves):
        prefetch_node(nodes, counts, leaf_parent[min(j + 2 * AHEAD, num_leaves - 1)])
        above = leaf_parent[j]
        if above > ROOT:
            counts[above, COUNT] += 1
            nodes[above, WITNESS] = j
            if tokens[j + nodes[above, DEPTH]] >= 0:  # the latest of the leaves so far: it comes first
                for k in range(NUM_COUNT_COLUMNS - 1, BRANCH, -1):
                    counts[above, k] = counts[above, k - 1]
                counts[above, BRANCH] = ~j
    for first in range(1, num_nodes):
        prefetch_node(nodes, counts, nodes[min(first + 2 * AHEAD, num_nodes - 1), PARENT])
        node = np.int64(first)
        while node > ROOT and to_come[node] == 0:
            to_come[node] = -1
            above = np.int64(nodes[node, PARENT])
            to_come[above] -= 1
            if above > ROOT:
                counts[above, COUNT] += counts[node, COUNT]
                nodes[above, WITNESS] = max(nodes[above, WITNESS], nodes[node, WITNESS])
                place_branch(nodes, counts, above, node)
            node = above
    state[NUM_COUNTED] = num_leaves


@kernel
def count_leaves(tokens: ReadInts, leaf_parent: ReadInts, nodes: Ints2D, counts: Ints2D, state: Longs) -> None:
    """Count the leaves that are not counted yet: each by a walk to the root, or all anew where that is cheaper."""
    num_leaves = state[NUM_LEAVES]
    steps_left = 2 * (state[NUM_NODES] + num_leaves)  # about what recount costs
    if (num_leaves - state[NUM_COUNTED]) * 4 > num_leaves + 64:
        steps_left = 0
    for j in range(state[NUM_COUNTED], num_leaves):
        if steps_left <= 0:
            recount(tokens, leaf_parent, nodes, counts, state)
            return
        child, node = ~j, np.int64(leaf_parent[j])
        # A leaf that goes on with a barrier is an occurrence of its node, but no branch that could be drafted.
        is_branch = node > ROOT and tokens[j + nodes[node, DEPTH]] >= 0
        while node > ROOT:
            counts[node, COUNT] += 1
            nodes[node, WITNESS] = j
            if is_branch:
                place_branch(nodes, counts, node, child)
            is_branch = True
            child, node = node, np.int64(nodes[node, PARENT])
            steps_left -= 1
    state[NUM_COUNTED] = num_leaves


@kernel
def find_below(tree: Tree, pattern: ReadInts) -> int:
    """The highest node or leaf that begins with ``pattern``; ROOT if no explicit suffix does."""
    tokens, _, nodes, _, table, state = tree
    num_tokens = state[INDEXED]
    node, spelled, num_wanted = np.int64(ROOT), np.int64(0), np.int64(len(pattern))
    while spelled < num_wanted:
        node = child_of(nodes, table, node, pattern[spelled])
        if node == ROOT:
            return ROOT
        witness, depth = ~node, num_wanted
        if node > 0:
            witness, depth = np.int64(nodes[node, WITNESS]), min(num_wanted, np.int64(nodes[node, DEPTH]))
        while spelled < depth:
            if witness + spelled >= num_tokens or tokens[witness + spelled] != pattern[spelled]:
                return ROOT
            spelled += 1
    return node


@kernel
def share_of(counts: ReadInts2D, node: int, child: int) -> float:
    """Part of the node's counted occurrences that go on to this child."""
    if child == 0:
        return 0.0
    count = np.int64(counts[child, COUNT]) if child > 0 else np.int64(1)
    return count / counts[node, COUNT]


@kernel
def put_node(block: Ints2D, n: int, token: int, parent: int, prob: float, match_len: int, position: int) -> None:
    """Write draft node ``n`` into a draft block."""
    block[rows.TOKEN, n], block[rows.PARENT, n], block[rows.MATCH, n] = token, parent, match_len
    block[rows.ORIGIN, n], block[rows.SOURCE, n] = position, rows.CONTEXT
    block[rows.PROB].view(np.float32)[n], block[rows.PRICE].view(np.float32)[n] = prob, 1.0


@kernel
def index(tree: Tree, end: int) -> bool:
    """``index_tokens`` for Python."""
    tokens, leaf_parent, nodes, counts, table, state = tree
    return index_tokens(tokens, leaf_parent, nodes, counts, table, state, end)


@kernel
def catch_up(tree: Tree, end: int) -> bool:
    """Index tokens[INDEXED:end] and count their leaves; False as from ``index_tokens``."""
    tokens, leaf_parent, nodes, counts, table, state = tree
    if not index_tokens(tokens, leaf_parent, nodes, counts, table, state, end):
        return False
    if state[NUM_COUNTED] != state[NUM_LEAVES]:
        count_leaves(tokens, leaf_parent, nodes, counts, state)
    return True


@kernel
def propose_chain(tree: Tree, num_tokens: int, max_tokens: int, min_prob: float, block: Ints2D) -> int:
    """Catch up, write the chain of best branches into ``block`` and return its length; -1: no room to catch up.

    Cost: O(1) per token.
    """
    if not catch_up(tree, num_tokens):
        return -1
    tokens, _, nodes, counts, _, state = tree
    match_len = num_tokens - state[NUM_LEAVES]
    if match_len == 0:
        return 0
    node, length = state[ACTIVE_NODE], state[ACTIVE_LENGTH]
    depth = nodes[node, DEPTH] + length
    if length > 0:
        child, prob = state[ACTIVE_CHILD], 1.0
    else:
        child = np.int64(counts[node, BRANCH])
        prob = share_of(counts, node, child)
    n = 0
    while n < max_tokens and child != 0 and prob >= min_prob:
        if child > 0:
            position = nodes[child, WITNESS] + depth
            stop = min(nodes[child, DEPTH] - depth, max_tokens - n)
        else:
            position = ~child + depth
            stop = max_tokens - n
        for _ in range(stop):
            if position == num_tokens:  # past the end: the copy goes on in what it has just written
                position = ~child + match_len
            if tokens[position] < 0:
                return n
            put_node(block, n, tokens[position], n - 1, prob, match_len, position)
            n += 1
            position += 1
        if child < 0:
            break
        node, child = child, np.int64(counts[child, BRANCH])
        depth = np.int64(nodes[node, DEPTH])
        prob *= share_of(counts, node, child)
    return n


@kernel
def heap_push(probs: Floats, heap: Ints, size: int, item: int) -> int:
    """Add an item to a heap ordered by highest probability, then by lowest number; return the new size."""
    at = size
    while at > 0:
        above = (at - 1) >> 1
        if probs[heap[above]] >= probs[item]:  # equal: items are numbered in order, so the one above came first
            break
        heap[at] = heap[above]
        at = above
    heap[at] = item
    return size + 1


@kernel
def heap_pop(probs: Floats, heap: Ints, size: int) -> int:
    """Remove the first item of a heap of ``size`` items; it is returned, the caller lowers the size."""
    first, item = np.int64(heap[0]), np.int64(heap[size - 1])
    size -= 1
    at, below = np.int64(0), np.int64(1)
    while below < size:
        if below + 1 < size:
            a, b = np.int64(heap[below]), np.int64(heap[below + 1])
            if probs[b] > probs[a] or (probs[b] == probs[a] and b < a):
                below += 1
        a = np.int64(heap[below])
        if probs[a] < probs[item] or (probs[a] == probs[item] and a > item):
            break
        heap[at] = a
        at, below = below, 2 * below + 1
    heap[at] = item
    return first


@kernel
def propose_tree(
    tree: Tree,
    num_tokens: int,
    max_tokens: int,
    max_depth: int,
    max_branches: int,
    min_prob: float,
    block: Ints2D,
) -> int:
    """Catch up, write the likeliest nodes, best first, into ``block``; return how many; -1: no room to catch up.

    Every step takes the likeliest candidate (the earlier one among equals), drafts it and puts what may follow it among
    the candidates: the next token of its edge, or the branches of the node at the edge's end. Cost: O(log max_tokens)
    per drafted token.
    """
    if not catch_up(tree, num_tokens):
        return -1
    tokens, _, nodes, counts, _, state = tree
    match_len = num_tokens - state[NUM_LEAVES]
    if match_len == 0 or max_tokens == 0:
        return 0
    room = (max_tokens + 1) * max_branches
    heap, chance = np.empty(room, np.int32), np.empty(room, np.float64)
    # Candidates: child at the end of the edge, arena position, draft parent, depth in the draft.
    candidates = np.empty((room, 4), np.int32)
    num_candidates, size, n = np.int64(0), np.int64(0), np.int64(0)
    # What is looked at: first the match itself, then one drafted token after another. It lies either on the edge to
    # ``child``, where only the token at ``position`` follows, or at ``node`` (child 0).
    node, length = state[ACTIVE_NODE], state[ACTIVE_LENGTH]
    drafted, depth, prob = np.int64(-1), np.int64(1), 1.0
    child, position = np.int64(0), np.int64(0)
    if length > 0:
        child = state[ACTIVE_CHILD]
        position = (nodes[child, WITNESS] if child > 0 else ~child) + nodes[node, DEPTH] + length
    while True:
        first = num_candidates
        if depth > max_depth:
            pass
        elif child != 0:
            if position == num_tokens:  # past the end: the copy goes on in what it has just written
                position = ~child + match_len
            if tokens[position] >= 0:
                candidates[first, 0], candidates[first, 1], chance[first] = child, position, prob
                num_candidates += 1
        else:
            for k in range(BRANCH, BRANCH + max_branches):
                branch = np.int64(counts[node, k])
                share = prob * share_of(counts, node, branch)
                if branch == 0 or share < min_prob:
                    break
                start = (nodes[branch, WITNESS] if branch > 0 else ~branch) + nodes[node, DEPTH]
                candidates[num_candidates, 0], candidates[num_candidates, 1] = branch, start
                chance[num_candidates] = share
                num_candidates += 1
        if n == max_tokens:
            return n
        for item in range(first, num_candidates):
            candidates[item, 2], candidates[item, 3] = drafted, depth
        if num_candidates == first + 1 and (size == 0 or chance[heap[0]] < chance[first]):
            best = first  # as a rule, on an edge: it would come out of the heap as it goes in
        else:
            for item in range(first, num_candidates):
                size = heap_push(chance, heap, size, item)
            if size == 0:
                return n
            best = heap_pop(chance, heap, size)
            size -= 1
        child, position, prob = np.int64(candidates[best, 0]), np.int64(candidates[best, 1]), chance[best]
        put_node(block, n, tokens[position], candidates[best, 2], prob, match_len, position)
        drafted, depth = n, np.int64(candidates[best, 3]) + 1
        n += 1
        position += 1
        if child > 0 and position == nodes[child, WITNESS] + nodes[child, DEPTH]:
            node, child = child, np.int64(0)
