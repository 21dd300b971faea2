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
    state record (1,)       scalars, see ``State``.

A node is born with two edges, and most have no more: they stand in its row. All further ones, and those of the root,
are in the table; a node that has such edges is wide, and its LINK is written as ~link.

An edge needs no label: the tokens between a node at depth a and its child at depth b are tokens[w + a : w + b], where w
is any suffix below the child: WITNESS for a node, j for leaf j, whose edge is open-ended.
"""

from __future__ import annotations

import heapq
from typing import Final, NamedTuple

import numpy as np

from zerodraft.lookup import _block as rows
from zerodraft.lookup.runtime._jit import Ints, Ints2D, ReadInts, ReadInts2D, kernel, record

ROOT: Final = 0
MAX_BRANCHES: Final = 4  # branches remembered per node: a fifth has at most a fifth of its node's occurrences
PARENT, DEPTH, WITNESS, LINK, TOKEN_1, CHILD_1, TOKEN_2, CHILD_2, NUM_COLUMNS = range(9)
COUNT, BRANCH = 0, 1  # columns of ``counts``; BRANCH: the first of MAX_BRANCHES
NUM_COUNT_COLUMNS: Final = BRANCH + MAX_BRANCHES
NODE, TOKEN, CHILD, NUM_SLOT_COLUMNS = range(4)
NO_TOKEN: Final = -(2**31)  # as TOKEN_1 and TOKEN_2 of the root; no barrier is written so either
_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)
_MIXER: Final = np.uint64(0xD6E8FEB86659FD93)
_LOW: Final = np.uint64(0xFFFFFFFF)
_U32: Final = np.uint64(32)


@record
class State:
    """Where the building of a tree stands. The length of the current match is ``indexed - num_leaves``."""

    indexed: int  # tokens in the tree; those behind them wait in the arena for the next question
    num_leaves: int  # explicit suffixes, = first implicit one
    num_counted: int  # leaves that COUNT, WITNESS and BRANCH know of
    num_nodes: int
    num_stored: int  # edges in the table
    active_node: int  # the deepest node at or above the end of the longest suffix that occurred before
    active_length: int  # tokens from there to that end
    active_child: int  # child at the end of the edge on which they lie, 0 if there are none
    unlinked: int  # node split off in this phase that waits for its suffix link, 0: none


class Tree(NamedTuple):
    """The arrays of one tree, as the docstring of this file says."""

    tokens: Ints
    leaf_parent: Ints
    nodes: Ints2D
    counts: Ints2D
    table: Ints2D
    state: list[State]


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
    return np.int64(table[slot_of(table, node, token), CHILD]) if nodes[node, LINK] < 0 else 0


@kernel
def link_of(nodes: ReadInts2D, node: int) -> int:
    """The node whose label is that of ``node`` without the first token."""
    link = np.int64(nodes[node, LINK])
    return link if link >= 0 else ~link


@kernel
def start_of(nodes: ReadInts2D, child: int) -> int:
    """A suffix that goes through this node, the latest that is counted, or that ends in this leaf."""
    return np.int64(nodes[child, WITNESS]) if child > 0 else ~child


@kernel
def count_of(counts: ReadInts2D, child: int) -> int:
    """Counted suffixes that go through this node; 1 for a leaf, 0 for no child."""
    return np.int64(counts[child, COUNT]) if child > 0 else np.int64(child < 0)


@kernel
def add_leaf(tree: Tree, node: int, token: int, leaf: int) -> None:
    """Hang a leaf from a node that has two edges or more, or from the root: the node is wide from now on."""
    if tree.nodes[node, LINK] >= 0:
        tree.nodes[node, LINK] = ~tree.nodes[node, LINK]
    store_edge(tree.table, node, token, ~leaf)
    tree.leaf_parent[leaf] = node
    tree.state[0].num_stored += 1


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
def split_edge(tree: Tree, node: int, length: int, child: int, leaf: int) -> int:
    """Return a new node, ``length`` tokens below ``node`` on the edge to ``child``, with ``leaf`` hanging from it."""
    tokens, leaf_parent, nodes, counts, table, state = tree
    middle, depth, start = state[0].num_nodes, nodes[node, DEPTH] + length, start_of(nodes, child)
    state[0].num_nodes = middle + 1
    replace_child(nodes, table, node, tokens[start + depth - length], child, middle)
    next_token = tokens[start + depth]
    nodes[middle, PARENT], nodes[middle, DEPTH], nodes[middle, WITNESS], nodes[middle, LINK] = node, depth, start, ROOT
    nodes[middle, TOKEN_1], nodes[middle, CHILD_1] = next_token, child
    nodes[middle, TOKEN_2], nodes[middle, CHILD_2] = tokens[leaf + depth], ~leaf
    if child > 0:
        nodes[child, PARENT] = middle
    else:
        leaf_parent[~child] = middle
    leaf_parent[leaf] = middle
    counts[middle] = 0
    if state[0].num_counted > 0:  # not in a bulk build
        counts[middle, COUNT] = count_of(counts, child) if ~child < state[0].num_counted else 0
        if counts[middle, COUNT] > 0 and next_token >= 0:
            counts[middle, BRANCH] = child
        for k in range(BRANCH, NUM_COUNT_COLUMNS):
            if counts[node, k] == child:
                counts[node, k] = middle
    return middle


@kernel
def index(tree: Tree, end: int) -> bool:
    """Bring tokens[indexed:end] into the tree; False: ``nodes`` or ``table`` is full, grow it and call again.

    Ukkonen (1995), "On-line construction of suffix trees". One phase per token; the active point at its end is the
    longest suffix that occurred before. Stops only between two insertions, where the state is complete.
    """
    tokens, leaf_parent, nodes, _, table, states = tree
    state = states[0]
    node, length, child = state.active_node, state.active_length, state.active_child
    i, j, unlinked = state.indexed, state.num_leaves, state.unlinked
    max_stored = len(table) * 7 // 10 - 2  # at most 7 in 10 slots are taken
    has_room = True
    while i < end and has_room:
        token = tokens[i]
        while j <= i:
            if state.num_nodes == len(nodes) or state.num_stored > max_stored:
                has_room = False
                break
            if length == 0:
                if unlinked > 0:
                    nodes[unlinked, LINK] = node
                    unlinked = 0
                if node == ROOT and token < 0:
                    leaf_parent[j] = -1
                    j += 1
                    break
                child = child_of(nodes, table, node, token)
                if child != 0:
                    length = 1
                    break
                add_leaf(tree, node, token, j)
            else:
                if tokens[start_of(nodes, child) + nodes[node, DEPTH] + length] == token:
                    length += 1
                    break
                middle = split_edge(tree, node, length, child, j)
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
                edge = nodes[child, DEPTH] - nodes[node, DEPTH]
                if child < 0 or length < edge:
                    break
                node = child
                length -= edge
        if has_room:
            i += 1
            if length > 0 and child > 0 and nodes[child, DEPTH] - nodes[node, DEPTH] == length:
                node, length = child, np.int64(0)
    state.active_node, state.active_length, state.active_child = node, length, child if length > 0 else 0
    state.indexed, state.num_leaves, state.unlinked = i, j, unlinked
    return has_room


@kernel
def count_in(tree: Tree, node: int, child: int, count: int, latest: int) -> None:
    """Add to a node ``count`` suffixes that go on to this child, and put it in its place among the branches.

    Branches stand by count, then by recency. A leaf that goes on with a barrier is an occurrence of its node, but no
    branch that could be drafted.
    """
    tokens, _, nodes, counts, _, _ = tree
    counts[node, COUNT] += count
    nodes[node, WITNESS] = max(nodes[node, WITNESS], latest)
    if tokens[latest + nodes[node, DEPTH]] < 0:
        return
    total, at = count_of(counts, child), BRANCH
    while at < NUM_COUNT_COLUMNS and counts[node, at] != child and counts[node, at] != 0:
        at += 1
    while at > BRANCH:
        rival = np.int64(counts[node, at - 1])
        ahead = count_of(counts, rival)
        if ahead > total or (ahead == total and start_of(nodes, rival) > latest):
            break
        if at < NUM_COUNT_COLUMNS:
            counts[node, at] = rival
        at -= 1
    if at < NUM_COUNT_COLUMNS:
        counts[node, at] = child


@kernel
def recount(tree: Tree) -> None:
    """Compute COUNT, WITNESS and BRANCH of all nodes anew, children before parents. Cost: one pass over the tree."""
    _, leaf_parent, nodes, counts, _, state = tree
    num_nodes, num_leaves = state[0].num_nodes, state[0].num_leaves
    to_come = np.zeros(num_nodes, np.int32)  # internal children not added up yet
    for node in range(1, num_nodes):
        to_come[nodes[node, PARENT]] += 1
        nodes[node, WITNESS] = -1
        counts[node] = 0
    for j in range(num_leaves):
        if leaf_parent[j] > ROOT:
            count_in(tree, leaf_parent[j], ~j, 1, j)
    for first in range(1, num_nodes):
        node = np.int64(first)
        while node > ROOT and to_come[node] == 0:
            to_come[node] = -1
            child, node = node, np.int64(nodes[node, PARENT])
            to_come[node] -= 1
            if node > ROOT:
                count_in(tree, node, child, counts[child, COUNT], nodes[child, WITNESS])
    state[0].num_counted = num_leaves


@kernel
def catch_up(tree: Tree, end: int) -> bool:
    """``index``, then count the leaves that are not counted yet: each by a walk to the root, or all anew if cheaper."""
    if not index(tree, end):
        return False
    state = tree.state[0]
    first, last = state.num_counted, state.num_leaves
    steps_left = 0 if (last - first) * 4 > last + 64 else 2 * (state.num_nodes + last)  # about what recount costs
    for j in range(first, last):
        if steps_left <= 0:
            recount(tree)
            return True
        child, node = ~j, np.int64(tree.leaf_parent[j])
        while node > ROOT:
            count_in(tree, node, child, 1, j)
            child, node = node, np.int64(tree.nodes[node, PARENT])
            steps_left -= 1
    state.num_counted = last
    return True


@kernel
def find_below(tree: Tree, pattern: ReadInts) -> int:
    """The highest node or leaf that begins with ``pattern``; ROOT if no explicit suffix does."""
    tokens, _, nodes, _, table, state = tree
    node, spelled, num_wanted = np.int64(ROOT), np.int64(0), np.int64(len(pattern))
    while spelled < num_wanted:
        node = child_of(nodes, table, node, pattern[spelled])
        if node == ROOT:
            return ROOT
        start = start_of(nodes, node)
        depth = min(num_wanted, np.int64(nodes[node, DEPTH])) if node > 0 else num_wanted
        while spelled < depth:
            if start + spelled >= state[0].indexed or tokens[start + spelled] != pattern[spelled]:
                return ROOT
            spelled += 1
    return node


@kernel
def propose(
    tree: Tree, num_tokens: int, max_tokens: int, max_depth: int, max_branches: int, min_prob: float, block: Ints2D
) -> int:
    """Catch up, write the likeliest nodes, best first, into ``block``; return how many; -1: no room to catch up.

    Every step takes the likeliest candidate (the earlier one among equals), drafts it and puts what may follow it among
    the candidates: the next token of its edge, or the branches of the node at the edge's end. Cost: O(log max_tokens)
    per drafted token.
    """
    if not catch_up(tree, num_tokens):
        return -1
    tokens, _, nodes, counts, _, states = tree
    state, probs, prices = states[0], block[rows.PROB].view(np.float32), block[rows.PRICE].view(np.float32)
    match_len = num_tokens - state.num_leaves
    if match_len == 0 or max_tokens == 0:
        return 0
    # What is looked at: first the match itself, then one drafted token after another. It lies either on the edge to
    # ``child``, where only the token at ``position`` follows, or at ``node`` (child 0).
    node, child = state.active_node, state.active_child
    position = start_of(nodes, child) + match_len
    parent, depth, prob, number, n = np.int64(-1), np.int64(1), 1.0, np.int64(0), np.int64(0)
    # Candidates: minus the probability, number, child at the end of the edge, arena position, parent and depth.
    heap = [(-prob, number, child, position, parent, depth) for _ in range(0)]
    while True:
        if depth > max_depth:
            pass
        elif child != 0:
            if tokens[position] >= 0:
                heapq.heappush(heap, (-prob, number, child, position, parent, depth))
                number += 1
        else:
            for branch in counts[node, BRANCH : BRANCH + max_branches]:
                share = prob * (count_of(counts, branch) / counts[node, COUNT])  # equal shares stay equal
                if branch == 0 or share < min_prob:
                    break
                start = start_of(nodes, branch) + nodes[node, DEPTH]
                heapq.heappush(heap, (-share, number, np.int64(branch), start, parent, depth))
                number += 1
        if n == max_tokens or len(heap) == 0:
            return n
        less, _, child, position, above, depth = heapq.heappop(heap)
        block[rows.TOKEN, n], block[rows.PARENT, n], block[rows.MATCH, n] = tokens[position], above, match_len
        block[rows.ORIGIN, n], block[rows.SOURCE, n] = position, rows.CONTEXT
        prob = probs[n] = -less
        prices[n] = 1.0
        parent, depth, n, position = n, depth + 1, n + 1, position + 1
        if child > 0 and position == start_of(nodes, child) + nodes[child, DEPTH]:
            node, child = child, np.int64(0)
        elif position == num_tokens:  # past the end: the copy goes on in what it has just written
            position = ~child + match_len
